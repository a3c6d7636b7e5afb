// SPDX-License-Identifier: Apache-2.0
// Reference of the router and of the exact top-k, and the table of the reference.
#include "kernels/ref/ref.hpp"

#include <algorithm>
#include <limits>

namespace di::kernels {
namespace ref {

status route(stream&, const float* logits, const float* bias, std::int64_t rows,
             std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
             std::int32_t* ids, float* weights) {
  if (const status s = check_route(rows, experts, k); s != status::ok)
    return s;
  const fp_control_guard fp;
  const auto n = static_cast<std::size_t>(experts);
  std::vector<float> score(n), rank(n);
  std::vector<bool> taken(n);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::size_t e = 0; e < n; ++e) {
      const float logit = logits[r * experts + static_cast<std::int64_t>(e)] / gate_temp;
      score[e] = std::sqrt(math::softplus(scalar_f32{logit}).v);
      const float biased = score[e] + bias[e];
      rank[e] = std::isnan(biased) ? -std::numeric_limits<float>::infinity() : biased;
    }
    std::fill(taken.begin(), taken.end(), false);
    float sum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      std::size_t best = n;
      for (std::size_t e = 0; e < n; ++e)
        if (!taken[e] && (best == n || rank[e] > rank[best]))
          best = e;
      taken[best] = true;
      ids[r * k + i] = static_cast<std::int32_t>(best);
      sum += score[best];
    }
    for (std::int64_t i = 0; i < k; ++i)
      weights[r * k + i] =
          score[static_cast<std::size_t>(ids[r * k + i])] / (sum + 1e-20F) * route_scale;
  }
  return status::ok;
}

status top_k(stream&, const float* scores, std::int64_t n, const std::uint8_t* allowed,
             std::int64_t k, std::int32_t* selected) {
  if (const status s = check_sizes(n, k); s != status::ok)
    return s;
  std::vector<std::int32_t> order;
  for (std::int64_t i = 0; i < n; ++i)
    if ((allowed == nullptr || allowed[i] != 0)
        && scores[i] > -std::numeric_limits<float>::infinity())
      order.push_back(static_cast<std::int32_t>(i));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  if (std::ssize(order) > k)
    order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<std::size_t>(k), -1);
  std::copy(order.begin(), order.end(), selected);
  return status::ok;
}

} // namespace ref

const op_table& ref_ops() {
  static const op_table table = {
      .name = "ref",
      .linear = ref::linear,
      .rms_norm = ref::rms_norm,
      .act_quant = ref::act_quant,
      .pack_rows = ref::pack_rows,
      .unpack_rows = ref::unpack_rows,
      .rope = ref::rope,
      .attention = ref::attention,
      .index_scores = ref::index_scores,
      .hc_mix = ref::hc_mix,
      .hc_collapse = ref::hc_collapse,
      .hc_update = ref::hc_update,
      .route = ref::route,
      .swiglu = ref::swiglu,
      .combine = ref::combine,
      .pool_pairs = ref::pool_pairs,
      .engram_gate = ref::engram_gate,
      .top_k = ref::top_k,
  };
  return table;
}

} // namespace di::kernels
