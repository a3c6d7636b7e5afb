// SPDX-License-Identifier: Apache-2.0
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace di {
namespace {

result<int> half(int x) {
  if (x % 2 != 0)
    return fail(ec::bad_argument, "{} is odd", x);
  return x / 2;
}

result<int> quarter(int x) {
  DI_TRY(const int h, half(x));
  DI_TRY(const int q, half(h));
  return q;
}

TEST(result, propagates_the_first_error_with_its_numbers) {
  EXPECT_EQ(quarter(12).value(), 3);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error(), (error{ec::bad_argument, "3 is odd"}));
}

TEST(result, holds_move_only_values) {
  result<std::unique_ptr<int>> r{std::make_unique<int>(7)};
  const std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 7);
}

TEST(result, ends_the_process_when_the_value_of_an_error_is_taken) {
  EXPECT_DEATH((void)half(1).value(), "1 is odd");
}

TEST(error, every_code_has_a_name_of_its_own) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(ec::internal); ++i)
    names.insert(to_string(static_cast<ec>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ec::internal) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(ids, do_not_convert_into_each_other) {
  static_assert(!std::is_convertible_v<rank_id, node_id>);
  static_assert(!std::is_convertible_v<std::uint32_t, rank_id>);
  EXPECT_LT(rank_id{1}, rank_id{2});
}

} // namespace
} // namespace di
