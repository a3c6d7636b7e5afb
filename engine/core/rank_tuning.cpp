// SPDX-License-Identifier: Apache-2.0
// What a rank has learned, for those who ask.
#include "engine/core/rank_tuning.hpp"

namespace di::engine {

void describe(const rank_tuning& tuning, std::uint32_t draft_block, proto::rank_state& state) {
  state.cost = tuning.cost.to_string();
  state.drafting = tuning.planner.to_string();
  for (std::size_t k = 0; k < draft_block && k < drafts_max; ++k) {
    proto::draft_quality& q = state.drafts.emplace_back();
    q.verified = tuning.verified[k];
    q.accepted = tuning.accepted[k];
    for (const calibration& c : tuning.confidences) { // means over temperatures, by outcomes
      const position_quality one = c.quality(k);
      const auto n = static_cast<double>(one.reached);
      q.outcomes += one.reached;
      q.said += n * one.confidence;
      q.was += n * one.rate;
      q.ece_raw += n * one.ece_raw;
      q.ece += n * one.ece;
      q.brier += n * one.brier;
      q.auc += n * one.auc;
    }
    const auto outcomes = static_cast<double>(q.outcomes);
    for (double* mean : {&q.said, &q.was, &q.ece_raw, &q.ece, &q.brier, &q.auc})
      *mean = outcomes > 0 ? *mean / outcomes : 0;
  }
}

} // namespace di::engine
