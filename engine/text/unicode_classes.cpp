// SPDX-License-Identifier: Apache-2.0
// Builds the two-step class table from the range list once per process.
#include "engine/text/unicode_classes.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

namespace di::engine {
namespace {

using char_class::cjk, char_class::letter, char_class::line_end, char_class::mark,
    char_class::number;
using char_class::punctuation, char_class::space, char_class::symbol;

struct class_range {
  std::uint8_t bits;
  std::uint32_t first, last; // inclusive
};

constexpr class_range ranges[] = {
#include "engine/text/unicode_ranges.inc"
    {line_end, 0x0A, 0x0A},
    {line_end, 0x0D, 0x0D},
    {cjk, 0x3040, 0x30FF},
    {cjk, 0x4E00, 0x9FA5},
};

} // namespace

unicode_classes::unicode_classes() {
  std::vector<std::uint8_t> flat(std::size_t{0x110000});
  for (const class_range& r : ranges)
    for (std::uint32_t c = r.first; c <= r.last; ++c)
      flat[c] = static_cast<std::uint8_t>(flat[c] | r.bits);
  std::map<std::string, std::uint16_t> known; // content of a page -> its row
  for (std::size_t page = 0; page < row_of_page_.size(); ++page) {
    const auto first = flat.begin() + static_cast<std::ptrdiff_t>(page * 256);
    const std::string row(first, first + 256);
    const auto [it, fresh] = known.try_emplace(row, static_cast<std::uint16_t>(known.size()));
    if (fresh)
      rows_.insert(rows_.end(), row.begin(), row.end());
    row_of_page_[page] = it->second;
  }
}

const unicode_classes& unicode_classes::instance() {
  static const unicode_classes table;
  return table;
}

} // namespace di::engine
