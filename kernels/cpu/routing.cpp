// SPDX-License-Identifier: Apache-2.0
// Router scores with their top k, and the exact top-k of index scores in linear time.
#include "kernels/check.hpp"
#include "kernels/cpu/rows.hpp"

namespace di::kernels::DI_ISA {
namespace {

constexpr float minus_infinity = -__builtin_inff();

/// The k best of rank[0, n) in order, ties to the lower id: a sorted list takes each in turn.
void best_of(const float* rank, std::int64_t n, std::int64_t k, std::int32_t* ids) {
  float kept[max_routed];
  std::int64_t held = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    const float v = rank[e];
    if (held == k && !(v > kept[k - 1]))
      continue;
    std::int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && v > kept[at - 1]; --at) {
      kept[at] = kept[at - 1];
      ids[at] = ids[at - 1];
    }
    kept[at] = v;
    ids[at] = static_cast<std::int32_t>(e);
  }
}

} // namespace

void route(cpu_stream& s, const float* logits, const float* bias, std::int64_t rows,
           std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
           std::int32_t* ids, float* weights) {
  const std::int64_t padded = (experts + lane_count - 1) / lane_count * lane_count;
  const f32x16 temperature = f32x16::set(gate_temp);
  for_units(s, rows, rows * experts * 3, [&](std::int64_t r, unsigned worker) {
    auto* score = reinterpret_cast<float*>(
        s.worker_scratch(worker, static_cast<std::size_t>(2 * padded) * sizeof(float)));
    float* rank = score + padded;
    for (std::int64_t e = 0; e < experts; e += lane_count) {
      const std::int64_t n = experts - e;
      const f32x16 v =
          square_root(math::softplus(load_first(logits + r * experts + e, n) / temperature));
      v.store(score + e);
      const f32x16 biased = v + load_first(bias + e, n);
      from_bits(select_nan(biased, bits(f32x16::set(minus_infinity)), bits(biased)))
          .store(rank + e);
    }
    best_of(rank, experts, k, ids + r * k);
    float sum = 0;
    for (std::int64_t i = 0; i < k; ++i)
      sum += score[ids[r * k + i]];
    for (std::int64_t i = 0; i < k; ++i)
      weights[r * k + i] = score[ids[r * k + i]] / (sum + 1e-20F) * route_scale;
  });
}

namespace {

/// Larger float, larger key; -0 and +0 share one.
DI_KERNEL_INLINE std::uint32_t order_key(float v) {
  const auto u = std::bit_cast<std::uint32_t>(v == 0 ? 0.0F : v);
  return (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
}

struct picker {
  const float* scores;
  const std::uint8_t* allowed;
  std::int64_t n;

  DI_KERNEL_INLINE bool eligible(std::int64_t i) const {
    return (allowed == nullptr || allowed[i] != 0) && scores[i] > minus_infinity;
  }

  /// Among eligible keys whose bits above `shift + width` equal those of `prefix`: finds the digit
  /// in which the want-th largest lies, adds it to prefix and takes those above it off `want`.
  void refine(std::uint32_t& prefix, int shift, int width, std::int64_t& want) const {
    std::uint32_t count[2048] = {};
    const int above = shift + width;
    for (std::int64_t i = 0; i < n; ++i) {
      if (!eligible(i))
        continue;
      const std::uint32_t key = order_key(scores[i]);
      if (above < 32 && (key >> above) != (prefix >> above))
        continue;
      ++count[(key >> shift) & ((1U << width) - 1U)];
    }
    std::uint32_t digit = (1U << width) - 1U;
    while (count[digit] < want) {
      want -= count[digit];
      --digit;
    }
    prefix |= digit << shift;
  }
};

} // namespace

void top_k(cpu_stream&, const float* scores, std::int64_t n, const std::uint8_t* allowed,
           std::int64_t k, std::int32_t* selected) {
  const picker p{scores, allowed, n};
  std::int64_t eligible = 0;
  for (std::int64_t i = 0; i < n; ++i)
    eligible += p.eligible(i) ? 1 : 0;
  std::uint32_t threshold = 0;
  std::int64_t at_threshold = n; // how many of the keys equal to the threshold are taken
  if (k == 0)
    return;
  if (eligible > k) {
    at_threshold = k;
    p.refine(threshold, 21, 11, at_threshold);
    p.refine(threshold, 10, 11, at_threshold);
    p.refine(threshold, 0, 10, at_threshold);
  }
  std::int64_t out = 0;
  for (std::int64_t i = 0; i < n && out < k; ++i) {
    if (!p.eligible(i))
      continue;
    const std::uint32_t key = order_key(scores[i]);
    if (key > threshold || (key == threshold && at_threshold-- > 0))
      selected[out++] = static_cast<std::int32_t>(i);
  }
  for (; out < k; ++out)
    selected[out] = -1;
}

} // namespace di::kernels::DI_ISA
