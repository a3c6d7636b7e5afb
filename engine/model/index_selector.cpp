// SPDX-License-Identifier: Apache-2.0
// Index scores, candidate blocks, selection.
#include "engine/model/index_selector.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace di::engine {

namespace {

/// Scores that are held at once: long contexts are scored a few rows at a time.
constexpr std::int64_t scores_max = std::int64_t{1} << 22;

bf16 to_bf16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<bf16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(bf16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

/// Entries that the query at `position` sees.
std::int64_t visible_entries(std::int64_t position, std::int64_t ratio) noexcept {
  return (position + 1) / ratio;
}

} // namespace

void index_selector::begin(step_context& step) {
  std::int64_t longest = 0;
  for (const segment_rows& segment : step.segments)
    longest = std::max(longest, segment.end_position());
  stride_ = std::min(step.spec.index_topk, longest);
  ids_.ensure(step.rows * stride_);
  counts_.ensure(step.rows);
  if (step.spec.candidate_source_layer_id >= 0)
    blocks_.ensure(step.rows * step.spec.candidate_topk_blocks);
}

void index_selector::compact(const row_cut& cut, const model_spec& spec) {
  cut.compact(ids_.data(), static_cast<std::size_t>(stride_) * sizeof(std::int32_t));
  cut.compact(counts_.data(), sizeof(std::int32_t));
  if (spec.candidate_source_layer_id >= 0)
    cut.compact(blocks_.data(),
                static_cast<std::size_t>(spec.candidate_topk_blocks) * sizeof(std::int32_t));
}

bool index_selector::scores_needed(const step_context& step, std::int64_t layer) const {
  if (step.probe != nullptr)
    return true;
  return std::any_of(step.segments.begin(), step.segments.end(), [&](const segment_rows& segment) {
    return visible_entries(segment.end_position() - 1, step.spec.ratio(layer))
           > step.spec.index_topk;
  });
}

void index_selector::add_weight_job(step_context& step, std::int64_t layer, const bf16* normed,
                                    std::vector<kernels::linear_job>& jobs) {
  const indexer_weights& w = *step.model.layers()[static_cast<std::size_t>(layer)].indexer;
  jobs.push_back(linear(w.weights_proj, normed, step.rows,
                        weights_.ensure(step.rows * step.spec.index_n_heads)));
}

void index_selector::add_query_job(step_context& step, std::int64_t layer,
                                   const quantised_rows& q_latent,
                                   std::vector<kernels::linear_job>& jobs) {
  const indexer_weights& w = *step.model.layers()[static_cast<std::size_t>(layer)].indexer;
  jobs.push_back(linear(w.wq_b, q_latent, query_.ensure(step.rows * step.spec.index_q_width())));
}

/// Rotates and quantises the queries to the fp4 grid, scales the head weights.
result<void> index_selector::prepare_queries(step_context& step, std::int64_t layer) {
  const model_spec& spec = step.spec;
  const std::int64_t dim = spec.index_head_dim;
  const std::int64_t count = step.rows * spec.index_n_heads;
  DI_TRY_VOID(check_op(step.ops.rope(step.stream, query_.data(), step.rows, spec.index_n_heads, dim,
                                     step.positions.data(), step.model.rope(layer), false),
                       "rope"));
  const std::int64_t row_bytes = kernels::row_bytes(kernels::row_format::fp4_32, dim);
  std::byte* packed = packed_.ensure(count * row_bytes);
  std::byte** at = packed_at_.ensure(count);
  for (std::int64_t i = 0; i < count; ++i)
    at[i] = packed + i * row_bytes;
  DI_TRY_VOID(check_op(step.ops.pack_rows(step.stream, kernels::row_format::fp4_32, query_.data(),
                                          dim, count, dim, at),
                       "pack_rows"));
  DI_TRY_VOID(check_op(
      step.ops.unpack_rows(step.stream, kernels::row_format::fp4_32, at, count, dim, query_.data()),
      "unpack_rows"));
  const auto scale =
      static_cast<float>((1.0 / std::sqrt(static_cast<double>(dim)))
                         * (1.0 / std::sqrt(static_cast<double>(spec.index_n_heads))));
  for (std::int64_t i = 0; i < count; ++i)
    weights_.data()[i] = to_bf16(from_bf16(weights_.data()[i]) * scale);
  return {};
}

/// Keeps the best blocks of a row; the newest, partial block always counts as best.
result<void> index_selector::pick_blocks(step_context& step, std::int64_t row, const float* scores,
                                         std::int64_t visible) {
  const std::int64_t size = step.spec.candidate_block_size;
  const std::int64_t keep = step.spec.candidate_topk_blocks;
  const std::int64_t blocks = (visible + size - 1) / size;
  std::int32_t* kept = blocks_.data() + row * keep;
  if (blocks <= keep) {
    for (std::int64_t b = 0; b < keep; ++b)
      kept[b] = b < blocks ? static_cast<std::int32_t>(b) : -1;
    return {};
  }
  float* best = block_scores_.ensure(blocks);
  for (std::int64_t b = 0; b < blocks; ++b)
    best[b] = *std::max_element(scores + b * size, scores + std::min(visible, (b + 1) * size));
  best[blocks - 1] = std::numeric_limits<float>::infinity();
  return check_op(step.ops.top_k(step.stream, best, blocks, nullptr, keep, kept), "top_k");
}

/// Byte mask of the entries in the row's candidate blocks; null if that is all of them.
const std::uint8_t* index_selector::candidate_mask(step_context& step, std::int64_t row,
                                                   std::int64_t visible) {
  const std::int64_t size = step.spec.candidate_block_size;
  const std::int64_t keep = step.spec.candidate_topk_blocks;
  if ((visible + size - 1) / size <= keep)
    return nullptr;
  std::uint8_t* mask = mask_.ensure(visible);
  std::memset(mask, 0, static_cast<std::size_t>(visible));
  for (std::int64_t b = 0; b < keep; ++b) {
    const std::int64_t block = blocks_.data()[row * keep + b];
    if (block < 0)
      break;
    const std::int64_t end = std::min(visible, (block + 1) * size);
    for (std::int64_t e = block * size; e < end; ++e)
      mask[e] = 1;
  }
  return mask;
}

result<void> index_selector::score_group(step_context& step, std::int64_t layer,
                                         const row_group& group) {
  const model_spec& spec = step.spec;
  const std::int64_t ratio = spec.ratio(layer);
  sequence_state& sequence = *group.segment->sequence;
  const std::size_t source = sequence.layout().source_index(*spec.kv_source_of(layer));
  std::int32_t* visible = visible_.ensure(group.rows);
  for (std::int64_t r = 0; r < group.rows; ++r)
    visible[r] =
        static_cast<std::int32_t>(visible_entries(step.positions.data()[group.first + r], ratio));

  kernels::index_score_args args;
  args.q = query_.data() + group.first * spec.index_q_width();
  args.weights = weights_.data() + group.first * spec.index_n_heads;
  args.rows = group.rows;
  args.heads = spec.index_n_heads;
  args.dim = spec.index_head_dim;
  args.key_pages = sequence.index_pages(source);
  args.page_entries = sequence.layout().sources[source].page_entries;
  args.visible = visible;
  args.score_stride = (group.visible_max + 15) / 16 * 16;
  args.scores = scores_.ensure(group.rows * args.score_stride);
  DI_TRY_VOID(check_op(step.ops.index_scores(step.stream, args), "index_scores"));

  for (std::int64_t r = 0; r < group.rows; ++r) {
    const std::int64_t row = group.first + r;
    const float* scores = args.scores + r * args.score_stride;
    if (spec.is_candidate_source(layer))
      DI_TRY_VOID(pick_blocks(step, row, scores, visible[r]));
    const std::uint8_t* allowed =
        spec.uses_candidates(layer) ? candidate_mask(step, row, visible[r]) : nullptr;
    const std::int64_t picks = std::min<std::int64_t>(spec.index_topk, visible[r]);
    std::int32_t* ids = ids_.data() + row * stride_;
    DI_TRY_VOID(
        check_op(step.ops.top_k(step.stream, scores, visible[r], allowed, picks, ids), "top_k"));
    counts_.data()[row] = static_cast<std::int32_t>(std::find(ids, ids + picks, -1) - ids);
  }
  return {};
}

result<void> index_selector::score_segment(step_context& step, std::int64_t layer,
                                           const segment_rows& segment) {
  const std::int64_t ratio = step.spec.ratio(layer);
  // Rows that see no more entries than are picked take them all; a probe wants to see the scoring.
  const std::int64_t unscored = step.probe == nullptr ? step.spec.index_topk : 0;
  std::int64_t row = 0;
  while (row < segment.rows && visible_entries(segment.first_position + row, ratio) <= unscored)
    ++row;
  for (std::int64_t r = 0; r < row; ++r) {
    const std::int64_t at = segment.first_row + r;
    const std::int64_t count = visible_entries(segment.first_position + r, ratio);
    counts_.data()[at] = static_cast<std::int32_t>(count);
    std::iota(ids_.data() + at * stride_, ids_.data() + at * stride_ + count, 0);
  }
  while (row < segment.rows) {
    const std::int64_t widest = visible_entries(segment.end_position() - 1, ratio);
    const std::int64_t room =
        std::max<std::int64_t>(1, scores_max / std::max<std::int64_t>(widest, 1));
    row_group group;
    group.segment = &segment;
    group.first = segment.first_row + row;
    group.rows = std::min(room, segment.rows - row);
    group.visible_max = visible_entries(segment.first_position + row + group.rows - 1, ratio);
    DI_TRY_VOID(score_group(step, layer, group));
    row += group.rows;
  }
  return {};
}

result<void> index_selector::run(step_context& step, std::int64_t layer) {
  if (scores_needed(step, layer))
    DI_TRY_VOID(prepare_queries(step, layer));
  for (const segment_rows& segment : step.segments)
    DI_TRY_VOID(score_segment(step, layer, segment));
  if (step.probe != nullptr)
    show(step, layer);
  return {};
}

void index_selector::show(step_context& step, std::int64_t layer) {
  const std::int64_t width = step.spec.index_topk;
  std::int32_t* shown = shown_.ensure(step.rows * width);
  for (std::int64_t row = 0; row < step.rows; ++row) {
    std::fill_n(shown + row * width, width, -1);
    std::copy_n(ids_.data() + row * stride_, counts_.data()[row], shown + row * width);
  }
  step.visit(layer, "sel", shown, width);
  if (step.spec.is_candidate_source(layer))
    step.visit(layer, "candidate_blocks", blocks_.data(), step.spec.candidate_topk_blocks);
}

} // namespace di::engine
