// SPDX-License-Identifier: Apache-2.0
// actor_config: typed access, and one located error for every mistake.
#include "actors/config.hpp"

#include <gtest/gtest.h>

namespace di {
namespace {

using namespace std::chrono_literals;

actor_config meter(std::vector<config_entry> entries) {
  return actor_config{std::move(entries), "token_meter at /cluster/meter"};
}

TEST(actor_config, reads_each_type) {
  const auto c = meter({{"tokens_max", "500'000", "t.yaml:3:5"},
                        {"name", "north", ""},
                        {"strict", "true", ""},
                        {"period", "60ms", ""}});
  EXPECT_EQ(c.u64("tokens_max", 1), 500'000U);
  EXPECT_EQ(c.str("name"), "north");
  EXPECT_TRUE(c.flag("strict", false));
  EXPECT_EQ(c.duration("period"), 60ms);
  EXPECT_EQ(c.u64("burst", 7), 7U);
  EXPECT_TRUE(c.finish().ok());
}

TEST(actor_config, locates_a_wrong_type) {
  const auto c = meter({{"tokens_max", "many", "t.yaml:3:5"}});
  EXPECT_EQ(c.u64("tokens_max", 9), 9U);
  ASSERT_FALSE(c.finish().ok());
  EXPECT_EQ(
      c.finish().error().render(),
      "bad_config: t.yaml:3:5: config of token_meter at /cluster/meter: tokens_max: 'many' is "
      "no whole number in [0, 18446744073709551615]");
}

TEST(actor_config, refuses_signs_fractions_and_overflow) {
  for (const char* text : {"-1", "1.5", "", "18446744073709551616", " 1", "0x10"}) {
    const auto c = meter({{"n", text, ""}});
    (void)c.u64("n", 0);
    EXPECT_FALSE(c.finish().ok()) << "'" << text << "'";
  }
}

TEST(actor_config, names_the_known_keys_for_an_unknown_one) {
  const auto c = meter({{"token_max", "1", "t.yaml:4:7"}});
  (void)c.u64("tokens_max", 1);
  (void)c.flag("strict", false);
  ASSERT_FALSE(c.finish().ok());
  EXPECT_EQ(c.finish().error().what, "t.yaml:4:7: config of token_meter at /cluster/meter: "
                                     "token_max: unknown key; known are tokens_max, strict");
}

TEST(actor_config, misses_what_has_no_default) {
  const auto c = meter({});
  (void)c.str("upstream");
  ASSERT_FALSE(c.finish().ok());
  EXPECT_EQ(c.finish().error().what,
            "config of token_meter at /cluster/meter: upstream: is missing");
}

TEST(actor_config, keeps_the_first_mistake) {
  const auto c = meter({{"a", "x", "1:1"}, {"b", "y", "2:1"}});
  (void)c.u64("a", 0);
  (void)c.flag("b", false);
  EXPECT_NE(c.finish().error().what.find("1:1"), std::string::npos);
}

TEST(actor_config, demands_units_of_time) {
  EXPECT_EQ(parse_duration("3min").value(), 3min);
  EXPECT_EQ(parse_duration("250us").value(), 250us);
  for (const char* text : {"10", "ms", "1.5s", "-1s", "10 ms", "9999999999999999h"})
    EXPECT_FALSE(parse_duration(text).ok()) << text;
}

} // namespace
} // namespace di
