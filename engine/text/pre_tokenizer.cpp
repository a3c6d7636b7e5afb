// SPDX-License-Identifier: Apache-2.0
// A hand-written scanner for the three splits.
//
// Split 1 isolates groups of up to three numbers, split 2 runs of CJK ideographs and kana; split 3
// sees one stretch between such cuts (or one CJK run) at a time. So the scanner walks once over the
// text, treats a change of stretch as the end of the text, and applies the alternatives a to f of
// split 3 in order.
#include "engine/text/pre_tokenizer.hpp"

#include "engine/text/unicode_classes.hpp"

#include <array>
#include <cstdint>

namespace di::engine {

const std::string_view pre_tokenizer_patterns[3] = {
    R"(\p{N}{1,3})",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

namespace {

using char_class::cjk, char_class::letter, char_class::line_end, char_class::mark,
    char_class::number;
using char_class::punctuation, char_class::space, char_class::symbol;

constexpr std::uint8_t stretch_bits =
    number | cjk; // what decides to which stretch a character belongs
constexpr std::uint8_t word_bits = letter | mark;
constexpr std::uint8_t sign_bits = punctuation | symbol;

struct character {
  std::uint8_t bits = 0;
  std::uint8_t size = 0; // bytes; 0 = the stretch ends here
};

class scanner {
public:
  scanner(std::string_view text, std::vector<std::size_t>& ends) : text_{text}, ends_{ends} {
    for (std::uint32_t c = 0; c < ascii_.size(); ++c)
      ascii_[c] = classes_.of(c);
  }

  void run() {
    std::size_t at = 0;
    while (at < text_.size()) {
      const character c = any(at);
      stretch_ = c.bits & stretch_bits;
      at = (c.bits & number) != 0 ? numbers(at) : stretch(at);
    }
  }

private:
  // The character at a place, whatever its stretch. @pre at < text_.size()
  character any(std::size_t at) const {
    const auto byte = [&](std::size_t i) {
      return static_cast<std::uint32_t>(static_cast<std::uint8_t>(text_[at + i]));
    };
    const std::uint32_t lead = byte(0);
    if (lead < 0x80)
      return {ascii_[lead], 1};
    if (lead < 0xE0)
      return {classes_.of((lead & 0x1F) << 6 | (byte(1) & 0x3F)), 2};
    if (lead < 0xF0)
      return {classes_.of((lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)), 3};
    return {classes_.of((lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6
                        | (byte(3) & 0x3F)),
            4};
  }

  // The character at a place if it belongs to the current stretch.
  character here(std::size_t at) const {
    if (at == text_.size())
      return {};
    const character c = any(at);
    return (c.bits & stretch_bits) == stretch_ ? c : character{};
  }

  // End of the run of characters with one of `bits`, from `at`.
  std::size_t run_of(std::uint8_t bits, std::size_t at) const {
    for (character c = here(at); (c.bits & bits) != 0; c = here(at))
      at += c.size;
    return at;
  }

  std::size_t numbers(std::size_t at) {
    for (int i = 0; i < 3; ++i) {
      const character c = here(at);
      if (c.size == 0)
        break;
      at += c.size;
    }
    ends_.push_back(at);
    return at;
  }

  // Splits one stretch; what no alternative matches is a gap that stays one piece.
  std::size_t stretch(std::size_t at) {
    std::size_t gap_begin = at;
    for (character c = here(at); c.size != 0; c = here(at)) {
      const std::size_t end = match(at, c);
      if (end == at) {
        at += c.size;
        continue;
      }
      if (gap_begin != at)
        ends_.push_back(at);
      ends_.push_back(end);
      gap_begin = at = end;
    }
    if (gap_begin != at)
      ends_.push_back(at);
    return at;
  }

  // End of the first alternative that matches at a place, or the place itself.
  std::size_t match(std::size_t at, character c) const {
    const std::size_t after = at + c.size;
    const character next = here(after);
    if ((c.bits & letter) != 0) // b
      return run_of(word_bits, after);
    if ((c.bits & sign_bits) != 0) {
      if (c.size == 1 && next.size == 1 && (next.bits & letter) != 0) // a: both are ASCII
        return ascii_letters(after);
      return run_of(line_end, run_of(sign_bits, after)); // c
    }
    if ((c.bits & line_end) == 0 && (next.bits & word_bits) != 0) // b with its optional character
      return run_of(word_bits, after);
    if ((c.bits & mark) != 0) // b with a lone mark
      return after;
    if (text_[at] == ' ' && (next.bits & sign_bits) != 0) // c
      return run_of(line_end, run_of(sign_bits, after));
    return (c.bits & space) != 0 ? white_space(at) : at;
  }

  std::size_t ascii_letters(std::size_t at) const {
    while (at < text_.size() && static_cast<std::uint8_t>((text_[at] | 0x20) - 'a') < 26)
      ++at;
    return at;
  }

  // Alternatives d, e, f. @pre the place holds white space
  std::size_t white_space(std::size_t at) const {
    std::size_t last_begin = at, line_end_after = 0, end = at;
    character c = here(at);
    for (; (c.bits & space) != 0; c = here(end)) {
      last_begin = end;
      end += c.size;
      if ((c.bits & line_end) != 0)
        line_end_after = end;
    }
    if (line_end_after != 0) // d: up to the last line end of the run
      return line_end_after;
    if (c.size == 0 || last_begin == at) // e at the end of the stretch; f for a single sign
      return end;
    return last_begin; // e: the last sign stays with what follows
  }

  std::string_view text_;
  std::vector<std::size_t>& ends_;
  const unicode_classes& classes_ = unicode_classes::instance();
  std::array<std::uint8_t, 128> ascii_{};
  std::uint8_t stretch_ = 0; // stretch_bits of the current stretch
};

} // namespace

void cut_pieces(std::string_view text, std::vector<std::size_t>& ends) {
  ends.clear();
  scanner{text, ends}.run();
}

} // namespace di::engine
