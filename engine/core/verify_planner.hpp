// SPDX-License-Identifier: Apache-2.0
// Chooses how many drafts of which sequence a step verifies, and whether drafting pays at all.
// Pure; one per rank, which plans its own steps.
//
// A sequence offers survivals a_1 >= a_2 >= ...: a_j = chance that its first j drafts are all
// accepted. A step that verifies l drafts of it yields 1 + a_1 + ... + a_l tokens. The plan is the
// one with the most tokens per millisecond (length_search.hpp) by the tables of measured steps.
// Under sample-then-match the emitted tokens do not depend on the plan, so fresh confidences may be
// used for both the number and the choice of drafts. @source decode.md A.3, A.3.4
//
// Uniform plans (every sequence k drafts: 0, all, and between) need no trimming. The best of them
// is taken unless a trimmed plan gains at least `gain_min`: by the model the result is never worse
// than any fixed length or none, and at small loads, where trimming gains nothing, the sort is
// skipped ("verify all" when even the cheapest possible step would not be faster by gain_min).
//
// A confidence head that has not been corrected may say anything, and what is never verified is
// never corrected. So the first blocks are verified in full, and one plan in 128 after them; and as
// what a step without drafts takes must be known too, some steps have none.
//
// Order of one step in RANK:
//   wants_drafts()  before the draft pass; false: skip it, the step is plain
//   choose()        after it, with the fresh survivals
//   observe_step(), observe_draft()  measured times
#pragma once

#include "engine/core/length_search.hpp"
#include "engine/core/speculation_choice.hpp"
#include "engine/core/step_table.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace di::engine {

/// What one sequence could have verified.
struct verify_offer {
  speculation_choice wanted; ///< of its request; off: none, fixed: always min(drafts, limit)
  std::uint32_t limit = 0;   ///< [drafts] by tokens left, pages, context; and survivals.size()
  double context = 0;        ///< [positions] before the step
  std::span<const float> survivals; ///< [drafts] fresh ones; NaN and all behind it is not used
};

struct verify_planner_options {
  length_rules lengths{};
  double gain_on = 0.02;           ///< what drafting must gain to be switched on again
  std::uint32_t rows_max = 0;      ///< [rows] of a step at most, drafts included; 0: no bound
  std::uint32_t probe_first = 256; ///< [steps] without drafts before one tries again; doubles
  std::uint32_t probe_max = 2048;  ///< [steps] up to here
  std::uint32_t probe_blocks =
      8; ///< sequences, over as many steps as it takes, that such a try has
  std::uint32_t warmup_blocks = 64; ///< sequences that verify all before anything is weighed: until
                                    ///< then confidences are not corrected by outcomes
  std::uint32_t explore_every = 128; ///< [plans] one verifies all, so that no position goes without
                                     ///< outcomes, and one step in as many has no drafts, so
                                     ///< that its time is known; 0: never
  double forget = 0.98;              ///< per step, of what survivals look like
  step_table_options step{}, draft{};
};

/// Owned by RANK, used on its thread only.
class verify_planner {
public:
  explicit verify_planner(verify_planner_options options = {});

  /// Medians of timed dummy steps at start. Optional: without it the first steps fill the tables,
  /// and until two sizes are known everything offered is verified.
  void profile_step(std::uint32_t rows, double ms) noexcept { step_.profile(rows, ms); }
  void profile_draft(std::uint32_t sequences, double ms) noexcept { draft_.profile(sequences, ms); }
  /// A measured step without its draft pass. @param context_ms  part due to attention over the
  /// context (step_cost c * work); the table holds the rest
  void observe_step(std::uint32_t rows, double ms, double context_ms = 0) noexcept;
  void observe_draft(std::uint32_t sequences, double ms) noexcept;
  /// [ms] of one row at one position of context (step_cost::c_ms()).
  void set_context_cost(double ms_per_position) noexcept { context_cost_ = ms_per_position; }

  /// Whether to draft for the next step.
  /// @param sequences   [varlen] that would be drafted, fed or not; 0: false
  /// @param drafted_anyway  [sequences] that draft whatever this says (fixed)
  /// @param other_rows  prompt rows, rows of sequences without drafts
  bool wants_drafts(std::uint32_t sequences, std::uint32_t drafted_anyway,
                    std::uint32_t other_rows);

  /// @param other_rows  [rows] of the step beyond one per offer
  /// @param drafted     sequences of the draft pass that these offers came from
  const verify_plan& choose(std::span<const verify_offer> offers, std::uint32_t other_rows,
                            std::uint32_t drafted);

  const step_table& step() const noexcept { return step_; }
  const step_table& draft() const noexcept { return draft_; }
  bool drafting() const noexcept { return drafting_; }
  std::uint64_t plans() const noexcept { return plans_; }
  /// Plans by verify_plan::kind.
  std::uint64_t plans(verify_plan::kind how) const noexcept {
    return by_kind_[static_cast<std::size_t>(how)];
  }
  std::uint64_t skipped() const noexcept { return skipped_; } ///< steps told not to draft
  std::string to_string() const;

private:
  static constexpr std::size_t bins = 64;
  void remember();
  bool explores() const noexcept;
  void note_blocks() noexcept;
  std::uint32_t sort_out(std::span<const verify_offer> offers, std::uint32_t room, double& tokens);
  double drafting_rate(std::uint32_t sequences, std::uint32_t drafted_anyway,
                       std::uint32_t other_rows) const;

  verify_planner_options options_;
  step_table step_, draft_;
  double context_cost_ = 0;
  verify_plan plan_;
  length_search search_;
  std::vector<double> ms_, flat_;
  std::vector<std::span<const float>> survivals_;
  std::vector<std::uint32_t> counts_, fixed_;
  std::array<double, bins> seen_{}; ///< decayed number of survivals by value
  double seen_offers_ = 0;          ///< decayed number of offers
  bool drafting_ = true;
  std::uint32_t since_draft_ = 0, probe_after_ = 0;
  std::uint32_t probe_left_ = 0; // [sequences] that the try going on still has
  std::uint64_t blocks_ = 0;     // sequences that had drafts verified
  std::uint64_t turns_ = 0, plans_ = 0, skipped_ = 0;
  std::array<std::uint64_t, 4> by_kind_{};
};

} // namespace di::engine
