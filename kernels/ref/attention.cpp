// SPDX-License-Identifier: Apache-2.0
// Reference of sparse attention with a sink and of the index scores.
#include "kernels/ref/ref.hpp"

#include <algorithm>
#include <limits>

namespace di::kernels::ref {
namespace {

constexpr std::int64_t block_rows = 64;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Online softmax of one (row, head) over the blocks of its list.
struct head_state {
  float maximum = minus_infinity;
  float denominator = 0;
  std::vector<float> value;
};

void take_block(const std::vector<float>& q, const std::vector<std::vector<float>>& rows,
                float scale, head_state& st) {
  std::vector<float> score(rows.size(), minus_infinity);
  float maximum = st.maximum;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    if (rows[j].empty())
      continue;
    lanes dot;
    for (std::size_t d = 0; d < q.size(); ++d)
      dot.add_product(static_cast<std::int64_t>(d), q[d], rows[j][d]);
    score[j] = dot.sum() * scale;
    maximum = score[j] > maximum ? score[j] : maximum;
  }
  if (maximum == minus_infinity)
    return; // nothing visible so far
  const float alpha = exp(st.maximum - maximum);
  lanes sum;
  std::vector<float> p(rows.size(), 0.0F);
  for (std::size_t j = 0; j < rows.size(); ++j) {
    if (!rows[j].empty())
      p[j] = exp(score[j] - maximum);
    sum.add(static_cast<std::int64_t>(j), p[j]);
  }
  st.denominator = std::fma(st.denominator, alpha, sum.sum());
  for (std::size_t d = 0; d < q.size(); ++d) {
    float acc = st.value[d] * alpha;
    for (std::size_t j = 0; j < rows.size(); ++j)
      if (!rows[j].empty())
        acc = std::fma(bf16_to_f32(f32_to_bf16(p[j])), rows[j][d], acc);
    st.value[d] = acc;
  }
  st.maximum = maximum;
}

std::vector<float> unpack(row_format f, const std::byte* row, std::int64_t dim) {
  std::vector<float> v;
  for (std::int64_t k = 0; row != nullptr && k < dim; ++k)
    v.push_back(packed_value(f, row, dim, k));
  return v;
}

void attend(const attention_args& a, std::int64_t r) {
  std::vector<head_state> states(static_cast<std::size_t>(a.heads));
  for (head_state& s : states)
    s.value.assign(static_cast<std::size_t>(a.dim), 0.0F);
  std::vector<float> q(static_cast<std::size_t>(a.dim));
  const auto load_q = [&](std::int64_t h) {
    for (std::int64_t d = 0; d < a.dim; ++d)
      q[static_cast<std::size_t>(d)] = bf16_to_f32(a.q[(r * a.heads + h) * a.dim + d]);
  };
  for (std::int64_t from = 0; from < a.total_count[r]; from += block_rows) {
    const std::int64_t to = std::min<std::int64_t>(from + block_rows, a.total_count[r]);
    std::vector<std::vector<float>> rows;
    for (std::int64_t j = from; j < to; ++j)
      rows.push_back(unpack(j < a.window_count[r] ? a.window_format : a.entry_format,
                            a.kv[r * a.kv_stride + j], a.dim));
    for (std::int64_t h = 0; h < a.heads; ++h) {
      load_q(h);
      take_block(q, rows, a.scale, states[static_cast<std::size_t>(h)]);
    }
  }
  for (std::int64_t h = 0; h < a.heads; ++h) {
    const head_state& s = states[static_cast<std::size_t>(h)];
    const bool seen = s.maximum != minus_infinity;
    const float denominator = seen ? s.denominator + exp(a.sink[h] - s.maximum) : 1.0F;
    for (std::int64_t d = 0; d < a.dim; ++d)
      a.out[(r * a.heads + h) * a.dim + d] =
          f32_to_bf16(s.value[static_cast<std::size_t>(d)] / denominator);
  }
}

} // namespace

status attention(stream&, const attention_args& a) {
  if (const status s = check_attention(a); s != status::ok)
    return s;
  const fp_control_guard fp;
  for (std::int64_t r = 0; r < a.rows; ++r)
    attend(a, r);
  return status::ok;
}

status index_scores(stream&, const index_score_args& a) {
  if (const status s = check_index_scores(a); s != status::ok)
    return s;
  const fp_control_guard fp;
  const std::int64_t row_size = row_bytes(row_format::fp4_32, a.dim);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t j = 0; j < a.score_stride; ++j) {
      float& score = a.scores[r * a.score_stride + j];
      if (j >= a.visible[r]) {
        score = minus_infinity;
        continue;
      }
      const std::byte* key = a.key_pages[j / a.page_entries] + (j % a.page_entries) * row_size;
      float sum = 0;
      for (std::int64_t h = 0; h < a.heads; ++h) {
        lanes dot;
        for (std::int64_t s = 0; s < a.dim; ++s) {
          // Even elements of each 32 first, as for fp4 weights.
          const std::int64_t i = s % 32;
          const std::int64_t d = s - i + (i < 16 ? 2 * i : 2 * (i - 16) + 1);
          dot.add_product(s, bf16_to_f32(a.q[(r * a.heads + h) * a.dim + d]),
                          packed_value(row_format::fp4_32, key, a.dim, d));
        }
        const float rounded = bf16_to_f32(f32_to_bf16(dot.sum()));
        const float rectified = rounded > 0 ? rounded : 0.0F;
        const float weighted = rectified * bf16_to_f32(a.weights[r * a.heads + h]);
        sum += bf16_to_f32(f32_to_bf16(weighted));
      }
      score = bf16_to_f32(f32_to_bf16(sum));
    }
  }
  return status::ok;
}

} // namespace di::kernels::ref
