// SPDX-License-Identifier: Apache-2.0
// One automaton per marker, advanced side by side.
#include "engine/chat/marker_matcher.hpp"

#include <algorithm>
#include <utility>

namespace di::engine {

marker& marker::text(std::string_view bytes) {
  for (const char c : bytes)
    append(output_symbol::byte(c), 1);
  return *this;
}

marker& marker::special(token_id id, std::string_view spelling) {
  append(output_symbol::special(id), spelling.size());
  return *this;
}

void marker::append(output_symbol symbol, std::size_t size_bytes) {
  std::uint32_t border = symbols_.empty() ? 0 : borders_.back();
  while (border > 0 && !(symbols_[border] == symbol))
    border = borders_[border - 1];
  if (!symbols_.empty() && symbols_[border] == symbol)
    ++border;
  symbols_.push_back(symbol);
  borders_.push_back(border);
  bytes_.push_back(bytes_.back() + static_cast<std::uint32_t>(size_bytes));
}

void marker_set::add(marker m) {
  progress_.push_back({std::move(m)});
}

void marker_set::reset() {
  for (progress& p : progress_)
    p.symbols = p.newlines = 0;
  newlines_ = 0;
}

std::optional<marker_set::match> marker_set::push(output_symbol symbol) {
  std::optional<match> found;
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    progress& p = progress_[i];
    const marker& m = p.wanted;
    while (p.symbols > 0 && !(m.symbols_[p.symbols] == symbol))
      p.symbols = m.borders_[p.symbols - 1];
    if (!(m.symbols_[p.symbols] == symbol))
      continue;
    // A marker that takes line feeds does not begin with one, so its borders are none either.
    if (p.symbols == 0)
      p.newlines = m.newlines_ ? newlines_ : 0;
    if (++p.symbols < m.size())
      continue;
    const std::size_t bytes = m.bytes_.back() + p.newlines;
    if (!found || bytes > found->bytes)
      found = match{i, bytes};
    p.symbols = m.borders_.back();
  }
  newlines_ = symbol == output_symbol::byte('\n') ? newlines_ + 1 : 0;
  return found;
}

std::size_t marker_set::held_bytes() const noexcept {
  std::size_t held = 0;
  for (const progress& p : progress_) {
    std::size_t mine = p.wanted.bytes_[p.symbols];
    if (p.wanted.newlines_)
      mine += p.symbols > 0 ? p.newlines : newlines_;
    held = std::max(held, mine);
  }
  return held;
}

} // namespace di::engine
