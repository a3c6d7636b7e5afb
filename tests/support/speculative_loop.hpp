// SPDX-License-Identifier: Apache-2.0
// Test-only: generation of several choices on one rank in one process, with and without drafts, as
// RANK does it but without actors.
#pragma once

#include "engine/core/calibration.hpp"
#include "engine/core/choice_sampler.hpp"
#include "engine/core/verify_planner.hpp"
#include "engine/model/draft_runner.hpp"
#include "tests/support/test_models.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace di::testing {

enum class draft_source : std::uint8_t {
  none,  ///< plain decoding; draft rings stay empty
  fed,   ///< plain decoding, but draft rings are fed
  model, ///< the draft layers
  noise, ///< random tokens, seeded
};

/// What the loop learns of its own steps, over any number of runs.
struct loop_tuning {
  engine::verify_planner planner;
  engine::calibration confidences;
};

struct loop_options {
  draft_source source = draft_source::none;
  std::uint32_t length = 5; ///< drafts of a sequence that a step verifies at most
  bool varied = false;      ///< each sequence and step its own length in [0, length], seeded
  std::uint64_t seed = 1;
  bool planned = false;          ///< as the planner of `tuning` chooses, none included
  loop_tuning* tuning = nullptr; ///< learns from every run that names it
};

/// One choice of one request.
struct loop_choice {
  proto::request_spec spec;
  std::uint32_t choice = 0;
};

struct loop_answer {
  std::vector<token_id> tokens; ///< output
  std::vector<proto::position_logprobs> logprobs;
  proto::choice_end end;
  std::uint64_t state = 0, draft_state = 0; ///< hashes at the end
};

struct loop_counts {
  std::uint64_t steps = 0;  ///< without prefill
  std::uint64_t tokens = 0; ///< by those steps
  std::uint64_t rounds = 0; ///< steps of a sequence that verified drafts
  std::uint64_t verified = 0, accepted = 0;
  double prefill_s = 0, target_s = 0, sample_s = 0, feed_s = 0, draft_s = 0; ///< [s] CPU time
  double decode_s() const noexcept { return target_s + sample_s + feed_s + draft_s; }
};

/// Runs choices side by side: one prefill step with all prompts, then steps of all that go on.
/// Throws std::runtime_error on any error.
class speculative_loop {
public:
  speculative_loop(const engine::loaded_model& model, engine::sampler_factory samplers,
                   unsigned threads = 1, std::uint32_t pages = 256);

  std::vector<loop_answer> run(std::span<const loop_choice> choices, const loop_options& options);
  /// Of the last run.
  const loop_counts& counts() const noexcept { return counts_; }

private:
  struct running;

  void prefill(std::vector<running>& all);
  void step(std::span<running*> live, const loop_options& options);
  void take(running& r, std::size_t segment, loop_tuning* tuning);
  void draft(std::span<running*> live, const loop_options& options);
  void run_draft_pass(std::span<running*> wanted);
  void plan_lengths(std::span<running*> live, std::size_t drafted, loop_tuning& tuning);

  test_engine engine_;
  std::unique_ptr<engine::draft_runner> drafts_;
  engine::sampler_factory samplers_;
  loop_counts counts_;
  std::uint64_t random_ = 0;
  bool feeds_ = false;
};

} // namespace di::testing
