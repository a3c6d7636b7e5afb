// SPDX-License-Identifier: Apache-2.0
// Times, sizes, host lists and suggestions.
#include "launch/units.hpp"

#include <gtest/gtest.h>

namespace di::launch {
TEST(units, read_times_with_every_unit) {
  EXPECT_EQ(parse_time("60ms").value().count(), 60'000'000);
  EXPECT_EQ(parse_time("1.5s").value().count(), 1'500'000'000);
  EXPECT_EQ(parse_time("2m").value().count(), 120'000'000'000);
  EXPECT_EQ(parse_time("7ns").value().count(), 7);
  EXPECT_EQ(parse_time("3d").value().count(), 259'200'000'000'000);
}

TEST(units, refuse_a_time_without_unit_or_with_a_strange_one) {
  EXPECT_EQ(parse_time("60").error().what, "time \"60\" has no unit: write e.g. 60ms");
  EXPECT_EQ(parse_time("60min").error().what,
            "time \"60min\" has the unknown unit \"min\": known are ns, us, ms, s, m, h, d");
  for (const char* bad :
       {"", "ms", "-1s", "1.s", ".5s", "1..5s", "1e9s", "99999999999999999999s", "9999999999999d"})
    EXPECT_FALSE(parse_time(bad).ok()) << bad;
}

TEST(units, read_sizes_in_powers_of_two_and_ten) {
  EXPECT_EQ(parse_size("512GiB").value(), 512ULL << 30U);
  EXPECT_EQ(parse_size("1.5KiB").value(), 1536U);
  EXPECT_EQ(parse_size("10MB").value(), 10'000'000U);
  EXPECT_FALSE(parse_size("512G").ok());
  EXPECT_FALSE(parse_size("512").ok());
  EXPECT_FALSE(parse_size("9000000TiB").ok());
}

TEST(units, print_what_they_read) {
  EXPECT_EQ(format_time(parse_time("1500ms").value()), "1500ms");
  EXPECT_EQ(format_time(parse_time("60s").value()), "1m");
  EXPECT_EQ(format_size(parse_size("64MiB").value()), "64MiB");
  EXPECT_EQ(format_size(1025), "1025B");
  EXPECT_EQ(pretty_size(12'825'880), "12.2 MiB");
}

TEST(hosts, expand_ranges_and_keep_leading_zeros) {
  const std::vector<std::string> want{"gpu008", "gpu009", "gpu010", "gpu7", "cpu1"};
  EXPECT_EQ(expand_hosts("gpu[008-010,7],cpu1").value(), want);
  EXPECT_EQ(expand_hosts("a[1-2].net").value(), (std::vector<std::string>{"a1.net", "a2.net"}));
}

TEST(hosts, refuse_what_is_no_host) {
  for (const char* bad : {"", "a,,b", "gpu[", "gpu[1-", "gpu[3-1]", "gpu[]", "gpu[x]", "-oProxy",
                          "a b", "gpu[1-9]]", "$(x)", "gpu[0-99999999999]"})
    EXPECT_FALSE(expand_hosts(bad).ok()) << bad;
  EXPECT_EQ(expand_hosts("gpu[1-5000]").error().code, ec::limit_exceeded);
}

TEST(nearest, finds_the_typing_error_and_nothing_else) {
  const std::vector<std::string> known{"ranks", "host", "address"};
  EXPECT_EQ(nearest("rnaks", known), "ranks");
  EXPECT_EQ(nearest("hosts", known), "host");
  EXPECT_EQ(nearest("quux", known), "");
}

} // namespace di::launch
