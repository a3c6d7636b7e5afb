// SPDX-License-Identifier: Apache-2.0
// Splits a step's rows at the floors of their sequences.
#include "engine/model/row_cut.hpp"

#include <algorithm>
#include <cstring>

namespace di::engine {

bool row_cut::find(const step_context& step, std::int64_t layer) {
  bool any = false;
  parts_.clear();
  for (const segment_rows& segment : step.segments) {
    const std::int64_t floor = segment.sequence->row_floor(layer);
    part p{segment, std::clamp<std::int64_t>(floor - segment.first_position, 0, segment.rows),
           false};
    p.publishes =
        p.gone > 0
        && (step.spec.is_kv_source(layer) || floor > segment.sequence->window_floor(layer));
    any = any || p.gone > 0;
    parts_.push_back(p);
  }
  return any;
}

/// Positions and rows of the step as its segments say.
void row_cut::enter(step_context& step) {
  step.rows = 0;
  for (segment_rows& segment : step.segments) {
    segment.first_row = step.rows;
    step.rows += segment.rows;
  }
  std::int32_t* positions = step.positions.ensure(step.rows);
  for (const segment_rows& segment : step.segments)
    for (std::int64_t r = 0; r < segment.rows; ++r)
      positions[segment.first_row + r] = static_cast<std::int32_t>(segment.first_position + r);
}

const bf16* row_cut::publish(step_context& step, const bf16* normed) {
  const std::int64_t hidden = step.spec.hidden_size;
  step.segments.clear();
  for (const part& p : parts_)
    if (p.publishes) {
      step.segments.push_back(p.before);
      step.segments.back().rows = p.gone;
    }
  enter(step);
  if (step.rows == 0)
    return nullptr;
  bf16* to = leaving_.ensure(step.rows * hidden);
  for (const part& p : parts_)
    if (p.publishes) {
      std::memcpy(to, normed + p.before.first_row * hidden,
                  static_cast<std::size_t>(p.gone * hidden) * sizeof(bf16));
      to += p.gone * hidden;
    }
  return leaving_.data();
}

void row_cut::keep(step_context& step) {
  step.segments.clear();
  for (const part& p : parts_) {
    step.segments.push_back(p.before);
    step.segments.back().first_position += p.gone;
    step.segments.back().rows -= p.gone;
  }
  enter(step);
}

void row_cut::compact(void* rows, std::size_t row_bytes) const {
  auto* to = static_cast<std::byte*>(rows);
  const std::byte* base = to;
  for (const part& p : parts_) {
    const std::size_t bytes = static_cast<std::size_t>(p.before.rows - p.gone) * row_bytes;
    if (bytes == 0)
      continue; // nothing stays, or the buffer is empty
    std::memmove(to, base + static_cast<std::size_t>(p.before.first_row + p.gone) * row_bytes,
                 bytes);
    to += bytes;
  }
}

} // namespace di::engine
