// SPDX-License-Identifier: Apache-2.0
// Test-only: a step runner that counts the rows that each layer's MoE is asked for.
#pragma once

#include "engine/model/step.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace di::testing {

class counting_runner final : public engine::step_runner {
public:
  explicit counting_runner(engine::step_runner& inner) : inner_{inner} {}

  result<engine::step_state> start(std::span<const engine::step_segment> segments) override {
    return counted(inner_.start(segments));
  }
  const engine::expert_demand& demand() const override { return inner_.demand(); }
  result<void> work_while_waiting() override { return inner_.work_while_waiting(); }
  result<engine::step_state> resume() override { return counted(inner_.resume()); }
  std::span<const float> logits(std::size_t segment) const override {
    return inner_.logits(segment);
  }
  void want_taps(bool wanted) override { inner_.want_taps(wanted); }
  std::span<const engine::bf16> taps(std::size_t segment) const override {
    return inner_.taps(segment);
  }

  std::int64_t rows(std::int64_t layer) const {
    const auto at = static_cast<std::size_t>(layer);
    return at < rows_.size() ? rows_[at] : 0;
  }
  void reset() { rows_.clear(); }

private:
  result<engine::step_state> counted(result<engine::step_state> state) {
    if (state.ok() && *state == engine::step_state::needs_experts) {
      const std::size_t layer = inner_.demand().layer.v;
      rows_.resize(std::max(rows_.size(), layer + 1));
      rows_[layer] += inner_.demand().rows;
    }
    return state;
  }

  engine::step_runner& inner_;
  std::vector<std::int64_t> rows_; ///< [layers]
};

} // namespace di::testing
