// SPDX-License-Identifier: Apache-2.0
// Planted bugs.
#include "chaos/sim_mutants.hpp"

#include "messaging/base/planted.hpp"

#include <array>

namespace di::sim {

namespace {

constexpr std::array all{
    mutant{"no_epoch_check", 300, "RANK takes assignments of an older view"},
    mutant{"refusal_ignored", 60, "RANK goes on with an attempt that JOURNAL has refused"},
    mutant{"forgotten_rollback", 60, "a preempted sequence keeps its count of computed rows"},
    mutant{"commits_not_resent", 60, "RANK says tokens once, whatever becomes of the message"},
    mutant{"no_attempt_fence", 100, "JOURNAL accepts tokens of attempts that are over"},
    mutant{"victims_forgotten", 20, "JOURNAL opens no next attempt when a rank is lost"},
    mutant{"releases_not_resent", 60, "JOURNAL shows tokens once, whatever becomes of the message"},
    mutant{"told_before_written", 10, "JOURNAL tells what is not on disk yet"},
    mutant{"unfenced_restart", 100, "JOURNAL gives an attempt away again after a restart"},
    mutant{"snapshot_skips_tokens", 100, "a new file begins without the tokens so far"},
    mutant{"recovery_skips_open", 60, "JOURNAL forgets open requests when it is started again"},
    mutant{"forgotten_resend", 60, "calls to a lost rank are not asked of another"},
    mutant{"unordered_rows", 200, "rows that are asked again come in the order of their calls"},
    mutant{"releases_what_is_asked", 200, "a shard lets go of experts that open calls need"},
    mutant{"settles_too_early", 200, "experts are let go of before all ranks have switched"},
    mutant{"placement_not_resent", 60, "REBALANCER publishes once"},
    mutant{"shown_twice", 60, "GATEWAY shows repeated tokens again"},
    mutant{"opening_not_resent", 60, "GATEWAY submits a request once"},
    mutant{"double_owner", 300, "SCHEDULER gives an attempt away that a rank may still take"},
    mutant{"settled_kept", 20, "SCHEDULER never forgets a finished request"},
    mutant{"assignment_not_resent", 100, "SCHEDULER assigns once"},
    mutant{"leaked_room", 20, "SCHEDULER keeps the room of what has ended"},
    mutant{"views_start_anew", 60, "MEMBERSHIP counts views from 1 after a restart"},
    mutant{"lost_view_record", 300, "MEMBERSHIP forgets who was in before a restart"},
    mutant{"no_fence", 60, "KEEPER leaves expelled processes alone"},
    mutant{"joiner_forgotten", 20, "DIRECTORY never says that a late process is there"},
};

} // namespace

std::span<const mutant> mutants() {
  return all;
}

void plant(std::string_view name) {
  planted_bugs::active = name;
}

mutant_outcome hunt(const mutant& m) {
  plant(m.name);
  mutant_outcome out;
  for (std::uint64_t seed = 1; seed <= m.seeds && out.seed == 0; ++seed) {
    seed_setting s;
    s.seed = seed;
    s.ranks = m.ranks;
    s.twice = false;
    s.kinds = m.faults;
    const seed_report report = run_seed(s);
    if (!report.outcome.failure.empty())
      out = {seed, report.outcome.failure};
  }
  plant({});
  return out;
}

} // namespace di::sim
