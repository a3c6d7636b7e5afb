// SPDX-License-Identifier: Apache-2.0
// The bit contract of the kernels: a row's bits do not depend on its batch, its place in it, the
// number of threads or the instruction set.
#include "kernels/stream.hpp"
#include "tests/support/kernel_cases.hpp"
#include "tests/support/kernel_tables.hpp"
#include "tests/support/noise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace di::kernels {
namespace {

constexpr std::int64_t most_rows = 256;
constexpr std::int64_t batches[] = {1,  2,  3,  4,  5,  6,  7,   8,        9,
                                    16, 17, 31, 32, 33, 64, 100, most_rows};

/// Where two outputs first differ, in words for a failure message; empty if nowhere.
std::string difference(const row_case& c, const std::vector<std::byte>& want,
                       const std::vector<std::byte>& have, std::int64_t first) {
  if (want.size() != have.size())
    return "sizes differ";
  const auto [a, b] = std::mismatch(want.begin(), want.end(), have.begin());
  if (a == want.end())
    return "";
  const auto i = static_cast<std::size_t>(a - want.begin());
  return c.name + ": row " + std::to_string(first + static_cast<std::int64_t>(i / c.row_size))
         + " (place " + std::to_string(i / c.row_size) + "), byte " + std::to_string(i % c.row_size)
         + " of " + std::to_string(c.row_size);
}

const std::vector<row_case>& cases() {
  static const std::vector<row_case> all = all_row_cases(most_rows);
  return all;
}

std::vector<std::byte> one_by_one(const row_case& c, const op_table& ops, std::int64_t rows) {
  const auto s = make_cpu_stream(1);
  std::vector<std::byte> all;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto one = c.run(ops, *s, r, 1);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

class kernel_rows : public ::testing::TestWithParam<const op_table*> {};

TEST_P(kernel_rows, equal_themselves_in_every_batch_place_and_thread_count) {
  for (const row_case& c : cases()) {
    const auto want = one_by_one(c, *GetParam(), most_rows);
    for (unsigned threads = 1; threads <= 3; ++threads) {
      const auto s = std::make_unique<cpu_stream>(threads, 0); // even tiny regions are shared
      for (const std::int64_t rows : batches) {
        // A later start for each batch: every row stands in many places.
        const std::int64_t first = (most_rows - rows) * (threads - 1) / 3;
        const auto have = c.run(*GetParam(), *s, first, rows);
        const auto size = static_cast<std::ptrdiff_t>(c.row_size);
        const std::vector<std::byte> part(want.begin() + first * size,
                                          want.begin() + (first + rows) * size);
        ASSERT_EQ(difference(c, part, have, first), "")
            << rows << " rows from " << first << ", " << threads << " threads";
      }
    }
  }
}

TEST_P(kernel_rows, equal_the_reference_bit_for_bit) {
  constexpr std::int64_t rows = 40;
  for (const row_case& c : cases()) {
    const auto s = make_cpu_stream(2);
    const auto want = c.run(ref_ops(), *s, 0, rows);
    ASSERT_EQ(difference(c, want, c.run(*GetParam(), *s, 0, rows), 0), "");
    ASSERT_EQ(difference(c, want, one_by_one(c, *GetParam(), rows), 0), "");
  }
}

TEST_P(kernel_rows, top_k_picks_what_the_reference_picks) {
  noise r(77);
  const auto s = make_cpu_stream(1);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t n = r.below(400), k = r.below(90);
    std::vector<float> scores = r.normal_f32(n);
    std::vector<std::uint8_t> allowed = r.e8m0(n, 0, 1);
    for (float& v : scores) {
      if (round % 3 == 0)
        v = std::round(v * 2); // many ties, both zeros
      if (r.below(8) == 0)
        v = -std::numeric_limits<float>::infinity();
      if (round % 7 == 0 && r.below(20) == 0)
        v = std::numeric_limits<float>::infinity();
      if (round % 5 == 0 && r.below(20) == 0)
        v = std::numeric_limits<float>::quiet_NaN();
    }
    const std::uint8_t* mask = round % 2 == 0 ? nullptr : allowed.data();
    std::vector<std::int32_t> want(static_cast<std::size_t>(k)), have(want.size());
    ASSERT_EQ(ref_ops().top_k(*s, scores.data(), n, mask, k, want.data()), status::ok);
    ASSERT_EQ(GetParam()->top_k(*s, scores.data(), n, mask, k, have.data()), status::ok);
    ASSERT_EQ(want, have) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(every_build, kernel_rows, ::testing::ValuesIn(cpu_tables()),
                         [](const auto& p) { return std::string(p.param->name); });

} // namespace
} // namespace di::kernels
