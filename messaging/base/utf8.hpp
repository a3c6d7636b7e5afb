// SPDX-License-Identifier: Apache-2.0
// UTF-8 as it comes out of a model: checked, repaired, and put together again from pieces of
// characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace di {

/// U+FFFD, what stands for each maximal ill-formed part.
inline constexpr std::string_view utf8_replacement = "\xEF\xBF\xBD";

/// What the bytes at one place of a text are.
enum class utf8_kind : std::uint8_t {
  whole,   ///< one well-formed character
  broken,  ///< a maximal ill-formed part: no continuation makes it a character
  cut_off, ///< the text ends inside a character that is well-formed so far
};

/// The first character, or maximal ill-formed part, of a text.
struct utf8_part {
  utf8_kind kind = utf8_kind::whole;
  std::size_t size_bytes = 0; ///< [1, 4]; 1 to 3 when broken or cut off
};

/// Looks at the start of `bytes`.
///
/// @pre      bytes is not empty
/// @source   The Unicode Standard 16.0, table 3-7 and the "maximal subpart" practice of section 3.9
utf8_part utf8_first(std::string_view bytes) noexcept;

/// Length of the longest prefix that is well-formed UTF-8 [bytes]; equals bytes.size() for a valid
/// text.
std::size_t utf8_valid_prefix(std::string_view bytes) noexcept;

/// The text with every maximal ill-formed part, also one at the end, replaced by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

/// Turns a stream of bytes into a stream of text that never contains half a character.
///
/// Keeps back an incomplete but so far valid tail (at most 3 bytes; also the first two bytes of an
/// encoded surrogate, as the stored streams of tests/golden/data/tokenizer do) and passes on
/// everything else at once. The text pushed and flushed, joined, equals utf8_lossy() of the bytes
/// joined, however they were grouped. Copyable value; one owner, no locking.
class utf8_reassembler {
public:
  /// Takes more bytes and appends the text that is certain to `out`.
  void push(std::string_view bytes, std::string& out);

  /// Ends the stream: appends U+FFFD if a tail is held, and starts anew.
  void flush(std::string& out);

  /// Bytes kept back, [0, 3].
  std::size_t held_bytes() const noexcept { return tail_.size(); }

private:
  std::string tail_; // fits the small buffer of std::string: no allocation
};

} // namespace di
