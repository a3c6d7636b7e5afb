// SPDX-License-Identifier: Apache-2.0
#include "messaging/base/utf8.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di {
namespace {

const std::string mark{utf8_replacement};

TEST(utf8, accepts_the_borders_of_every_row_of_the_unicode_table) {
  for (const char* good : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                           "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(utf8_valid_prefix(good), std::string_view{good}.size()) << good;
  EXPECT_EQ(utf8_valid_prefix(std::string_view{"\0a", 2}), 2U);
}

TEST(utf8, replaces_each_maximal_ill_formed_part_once) {
  EXPECT_EQ(utf8_lossy("a\xC0\x80z"), "a" + mark + mark + "z");         // overlong: two parts
  EXPECT_EQ(utf8_lossy("\xE2\x82z"), mark + "z");                       // cut inside: one part
  EXPECT_EQ(utf8_lossy("\xF0\x9F\x98"), mark);                          // cut at the end: one part
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), mark + mark + mark);            // surrogate: three parts
  EXPECT_EQ(utf8_lossy("\xF4\x90\x80\x80"), mark + mark + mark + mark); // above U+10FFFF
  EXPECT_EQ(utf8_lossy("\xE2\xF0\x9F\x98\x80"),
            mark + "\xF0\x9F\x98\x80"); // the next lead byte stays
}

TEST(utf8, holds_back_at_most_three_bytes_and_only_what_can_still_become_a_character) {
  utf8_reassembler stream;
  std::string out;
  stream.push("a\xF0\x9F\x98", out);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(stream.held_bytes(), 3U);
  stream.push("\x80", out);
  EXPECT_EQ(out, "a\xF0\x9F\x98\x80");
  stream.push("\xF5", out); // never valid: not held
  EXPECT_EQ(out, "a\xF0\x9F\x98\x80" + mark);
  EXPECT_EQ(stream.held_bytes(), 0U);
}

// The stream is the text whatever the grouping of bytes.
TEST(utf8, gives_the_same_text_for_random_bytes_in_random_groups) {
  std::mt19937 random{7};
  const std::string_view likely = "aZ\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\x80\xC0\xFF";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::size_t n = random() % 24; n > 0; --n)
      bytes +=
          random() % 4 == 0 ? static_cast<char>(random() & 0xFF) : likely[random() % likely.size()];
    utf8_reassembler stream;
    std::string out;
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::size_t n = 1 + random() % rest.size();
      stream.push(rest.substr(0, n), out);
      ASSERT_LE(stream.held_bytes(), 3U);
      ASSERT_EQ(utf8_valid_prefix(out), out.size());
      rest.remove_prefix(n);
    }
    stream.flush(out);
    ASSERT_EQ(out, utf8_lossy(bytes)) << "round " << round;
  }
}

} // namespace
} // namespace di
