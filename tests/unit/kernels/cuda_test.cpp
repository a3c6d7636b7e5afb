// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/act_quant.hpp"
#include "kernels/cuda/cuda.hpp"
#include "tests/support/noise.hpp"

#include <gtest/gtest.h>

namespace di::kernels {
namespace {

constexpr std::int64_t rows = 37, dim = 96;

struct quantised {
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(rows * dim),
                            scales = std::vector<std::uint8_t>(rows * dim / 32);
  bool operator==(const quantised&) const = default;
};

std::vector<bf16> inputs() {
  noise r(41);
  std::vector<bf16> x = r.wide_bf16(rows * dim);
  x[5] = 0x7fc0;  // NaN
  x[40] = 0x7f80; // infinity
  return x;
}

quantised by_cpu(const std::vector<bf16>& x) {
  quantised q;
  const auto s = make_cpu_stream(1);
  EXPECT_EQ(best_cpu_ops().act_quant(*s, x.data(), dim, rows, dim, q.codes.data(), dim,
                                     q.scales.data(), dim / 32),
            status::ok);
  return q;
}

TEST(cuda, act_quant_lanes_run_on_the_host_give_the_bits_of_the_cpu_kernel) {
  const std::vector<bf16> x = inputs();
  quantised q;
  for (std::size_t group = 0; group < q.scales.size(); ++group) {
    float lane[cuda::warp_lanes];
    const bf16* in = x.data() + group * cuda::warp_lanes;
    for (int i = 0; i < cuda::warp_lanes; ++i)
      lane[i] = cuda::lane_magnitude(in[i]);
    for (int step = cuda::warp_lanes / 2; step > 0; step /= 2) { // the butterfly of the kernel
      float next[cuda::warp_lanes];
      for (int i = 0; i < cuda::warp_lanes; ++i)
        next[i] = cuda::joined(lane[i], lane[i ^ step]);
      std::copy(std::begin(next), std::end(next), std::begin(lane));
    }
    for (int i = 0; i < cuda::warp_lanes; ++i)
      q.codes[group * cuda::warp_lanes + static_cast<std::size_t>(i)] =
          cuda::lane_code(in[i], cuda::group_scale(lane[i]));
    q.scales[group] = cuda::group_scale(lane[0]);
  }
  EXPECT_EQ(q, by_cpu(x));
}

TEST(cuda, act_quant_runs_on_a_device_or_says_that_it_cannot) {
  const std::vector<bf16> x = inputs();
  quantised q;
  const status answer =
      cuda::act_quant(x.data(), dim, rows, dim, q.codes.data(), dim, q.scales.data(), dim / 32);
  if (cuda::available()) {
    ASSERT_EQ(answer, status::ok);
    EXPECT_EQ(q, by_cpu(x));
  } else {
    EXPECT_EQ(answer, status::unsupported);
    EXPECT_EQ(q, quantised{}) << "nothing is written";
  }
}

TEST(cuda, is_available_only_where_it_was_compiled) {
  EXPECT_TRUE(cuda::compiled() || !cuda::available());
}

} // namespace
} // namespace di::kernels
