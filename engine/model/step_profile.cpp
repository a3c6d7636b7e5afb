// SPDX-License-Identifier: Apache-2.0
// One sequence, run again and again.
#include "engine/model/step_profile.hpp"

#include <algorithm>

namespace di::engine {

namespace {

class profiler {
public:
  profiler(const profile_options& options, step_runner& steps, draft_runner* drafts,
           expert_runner& experts, const kv_layout& layout, page_pool& pool, const env& clock)
      : options_{options},
        steps_{steps},
        drafts_{drafts},
        loop_{steps, experts},
        sequence_{layout, pool},
        clock_{clock},
        began_{clock.now()} {
    for (std::uint32_t i = 0; i < options.rows_max; ++i) // different rows ask different experts
      tokens_.push_back(static_cast<token_id>((std::int64_t{i} * 7919 + 13) % options.vocab));
  }

  result<step_profile> run() {
    steps_.want_taps(drafts_ != nullptr);
    duration step{}, pass{}; // of the last size
    bool more_steps = options_.rows_max > 0;
    bool more_passes = drafts_ != nullptr && options_.sequences_max > 0 && more_steps;
    if (more_steps)
      DI_TRY_VOID(run_step(1));
    for (std::uint64_t size = 1; more_steps || more_passes; size *= 2) {
      if (more_steps) {
        const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(size, rows_max()));
        DI_TRY(more_steps, measure(rows, size == 1 ? duration{1} : 2 * step, out_.steps, step,
                                   [&] { return run_step(rows); }));
        more_steps = more_steps && rows < rows_max();
      }
      if (more_passes) {
        const auto sequences =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(size, options_.sequences_max));
        DI_TRY(more_passes, begin_passes(sequences, size == 1 ? duration{1} : 2 * pass, pass));
        more_passes = more_passes && sequences < options_.sequences_max;
      }
    }
    level(out_.steps);
    level(out_.drafts);
    return std::move(out_);
  }

private:
  std::uint32_t rows_max() const noexcept { return options_.rows_max; }

  template <class F>
  result<duration> timed(F&& work) {
    const instant before = clock_.now();
    DI_TRY_VOID(work());
    return clock_.now() - before;
  }

  duration left() const { return options_.budget - (clock_.now() - began_); }

  /// Replays one size. @param expected  time of one replay @param last  gets the median
  /// @return false: there was no time
  template <class F>
  result<bool> measure(std::uint32_t size, duration expected, std::vector<sized_time>& table,
                       duration& last, F&& work) {
    const duration share = left() / 4; // larger sizes shall have a turn
    if (expected > left())
      return false;
    std::vector<duration> took;
    duration sum{};
    do {
      DI_TRY(const duration one, timed(work));
      took.push_back(one);
      sum += one;
      std::sort(took.begin(), took.end());
      last = took[(took.size() - 1) / 2];
    } while (took.size() < options_.replays && sum + last <= share);
    table.push_back({size, std::chrono::duration<double, std::milli>(last).count()});
    return true;
  }

  /// A step from position 0, its rows fed to the draft layers.
  result<void> run_step(std::uint32_t rows) {
    DI_TRY_VOID(sequence_.truncate(0));
    const step_segment segment{&sequence_, 0, std::span{tokens_}.first(rows), logits_wanted::all};
    DI_TRY_VOID(loop_.run({&segment, 1}));
    if (drafts_ == nullptr)
      return {};
    const draft_feed fed{&sequence_, 0, steps_.taps(0)};
    return drafts_->feed({&fed, 1});
  }

  /// A pass changes no sequence: the same one stands for all.
  result<bool> begin_passes(std::uint32_t sequences, duration expected, duration& pass) {
    const std::vector<draft_segment> segments(sequences, {&sequence_, tokens_[0]});
    return measure(sequences, expected, out_.drafts, pass, [&] { return run_pass(segments); });
  }

  result<void> run_pass(std::span<const draft_segment> segments) {
    DI_TRY(step_state state, drafts_->start(segments));
    while (state == step_state::needs_experts) {
      DI_TRY_VOID(loop_.answer(drafts_->demand()));
      DI_TRY(state, drafts_->resume());
    }
    return drafts_->draw([](std::size_t, std::size_t,
                            std::span<const float> logits) -> result<token_id> {
      return static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    });
  }

  static void level(std::vector<sized_time>& table) {
    for (std::size_t i = table.size(); i-- > 1;)
      table[i - 1].ms = std::min(table[i - 1].ms, table[i].ms);
  }

  const profile_options& options_;
  step_runner& steps_;
  draft_runner* drafts_;
  local_expert_loop loop_;
  sequence_state sequence_;
  const env& clock_;
  instant began_;
  std::vector<token_id> tokens_;
  step_profile out_;
};

} // namespace

result<step_profile> profile_steps(const profile_options& options, step_runner& steps,
                                   draft_runner* drafts, expert_runner& experts,
                                   const kv_layout& layout, page_pool& pool, const env& clock) {
  if (options.budget <= duration{})
    return step_profile{};
  if (options.vocab <= 0)
    return fail(ec::bad_argument, "a profile of steps needs a vocabulary, not {}", options.vocab);
  return profiler{options, steps, drafts, experts, layout, pool, clock}.run();
}

} // namespace di::engine
