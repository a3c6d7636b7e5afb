// SPDX-License-Identifier: Apache-2.0
// The Unicode 16.0 character classes that the pre-tokenizer's expressions name.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace di::engine {

/// Class bits of a code point. A code point has at most one of the first five.
namespace char_class {
inline constexpr std::uint8_t letter = 1;      ///< \p{L}
inline constexpr std::uint8_t mark = 2;        ///< \p{M}
inline constexpr std::uint8_t number = 4;      ///< \p{N}
inline constexpr std::uint8_t punctuation = 8; ///< \p{P}
inline constexpr std::uint8_t symbol = 16;     ///< \p{S}
inline constexpr std::uint8_t space = 32;      ///< \s, the White_Space property
inline constexpr std::uint8_t line_end = 64;   ///< CR and LF
inline constexpr std::uint8_t cjk = 128;       ///< U+4E00..9FA5, U+3040..309F, U+30A0..30FF
} // namespace char_class

/// Class bits of every code point, in two steps: page of 256, then place.
///
/// Immutable; shared by all threads through instance().
/// @source   spec of the tokenizer, section 3; ranges in unicode_ranges.inc
class unicode_classes {
public:
  static const unicode_classes& instance();

  /// @pre code_point < 0x110000
  std::uint8_t of(std::uint32_t code_point) const noexcept {
    return rows_[row_of_page_[code_point >> 8] * std::size_t{256} + (code_point & 0xFF)];
  }

private:
  unicode_classes();

  std::array<std::uint16_t, 0x1100> row_of_page_{};
  std::vector<std::uint8_t> rows_; // [distinct pages, 256]
};

} // namespace di::engine
