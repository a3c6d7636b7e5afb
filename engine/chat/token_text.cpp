// SPDX-License-Identifier: Apache-2.0
// Tokens to text and markers.
#include "engine/chat/token_text.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace di::engine {
namespace {

// Grounding: part of what an answer says. @source prompt encoding specification, section 1
constexpr std::array<std::string_view, 8> grounding{
    "<｜ref｜>",   "<｜/ref｜>",   "<｜box｜>",     "<｜/box｜>",
    "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>"};

} // namespace

token_text::token_text(const tokenizer* words, bool strict, bool plain)
    : words_{words}, strict_{strict}, plain_{plain} {
  if (!words_)
    return;
  markers_.think_end = words_->added_token("</think>");
  markers_.dsml = words_->added_token("｜DSML｜");
}

marker_tokens token_text::markers(bool by_token) const {
  return by_token ? markers_ : marker_tokens{};
}

std::string_view token_text::shown(const token_unit& unit, bool at_start) const {
  const std::string_view spelling = unit.text;
  const auto when = [&](bool shows) { return shows ? spelling : std::string_view{}; };
  if (strict_ || unit.special == markers_.think_end || unit.special == markers_.dsml)
    return spelling;
  if (plain_)
    return when(!words_->is_special(*unit.special));
  if (spelling == "<think>")
    return when(!at_start);
  const bool control = words_->is_special(*unit.special) || spelling.starts_with("<｜")
                       || spelling.starts_with("<|");
  return when(!control
              || std::find(grounding.begin(), grounding.end(), spelling) != grounding.end());
}

void token_text::push(std::span<const token_id> ids, std::vector<token_unit>& out) {
  for (const token_id id : ids) {
    if (!words_) {
      out.push_back({1, {}, {}});
      continue;
    }
    const std::string_view bytes = words_->token_bytes(id);
    if (words_->is_added(id) || words_->is_special(id)) {
      pass_text(true, out);
      out.push_back({1, id, std::string{bytes}});
      continue;
    }
    ++tokens_;
    bytes_ += bytes;
    if (!strict_)
      pass_text(false, out);
  }
  if (strict_)
    pass_text(false, out);
}

void token_text::pass_text(bool whole, std::vector<token_unit>& out) {
  if (bytes_.empty() && tokens_ == 0)
    return;
  std::string text;
  if (strict_ || whole) {
    text = utf8_lossy(bytes_);
    if (!whole && text.ends_with(utf8_replacement))
      return;
    bytes_.clear();
  } else {
    utf8_reassembler sure;
    sure.push(bytes_, text);
    bytes_.erase(0, bytes_.size() - sure.held_bytes());
  }
  out.push_back({std::exchange(tokens_, 0), {}, std::move(text)});
}

void token_text::finish(std::vector<token_unit>& out) {
  if (!strict_)
    pass_text(true, out);
  bytes_.clear();
  tokens_ = 0;
}

} // namespace di::engine
