// SPDX-License-Identifier: Apache-2.0
// Planted bugs.
#include "chaos/sim_mutants.hpp"

#include "messaging/base/planted.hpp"

#include <array>

namespace di::sim {

namespace {

constexpr fault_mask kill = mask_of(fault_kind::kill), stop = mask_of(fault_kind::stop),
                     slow = mask_of(fault_kind::slow), loss = mask_of(fault_kind::loss),
                     delay = mask_of(fault_kind::delay), repeat = mask_of(fault_kind::repeat),
                     reorder = mask_of(fault_kind::reorder), one_way = mask_of(fault_kind::one_way),
                     partition = mask_of(fault_kind::partition), disk = mask_of(fault_kind::disk),
                     control = mask_of(fault_kind::control);

constexpr std::array all{
    mutant{"no_epoch_check", 45, "RANK takes assignments of an older view", all_faults, 0},
    mutant{"refusal_ignored", 250, "RANK goes on with an attempt that JOURNAL has refused", control,
           0},
    mutant{"commits_not_resent", 70, "RANK says tokens once, whatever becomes of the message", loss,
           0},
    mutant{"no_attempt_fence", 390, "JOURNAL accepts tokens of attempts that are over",
           control | delay | reorder, 0},
    mutant{"victims_forgotten", 25, "JOURNAL opens no next attempt when a rank is lost", kill, 0},
    mutant{"releases_not_resent", 20, "JOURNAL shows tokens once, whatever becomes of the message",
           loss, 0},
    mutant{"told_before_written", 5, "JOURNAL tells what is not on disk yet", disk, 0},
    mutant{"unfenced_restart", 250, "JOURNAL gives an attempt away again after a restart", control,
           0},
    mutant{"snapshot_skips_tokens", 10, "a new file begins without the tokens so far", control, 0},
    mutant{"recovery_skips_open", 10, "JOURNAL forgets open requests when it is started again",
           control, 0},
    mutant{"forgotten_resend", 20, "calls to a lost rank are not asked of another", kill, 0},
    mutant{"unordered_rows", 105, "rows that are asked again come in the order of their calls",
           kill, 3},
    mutant{"releases_what_is_asked", 5, "a shard lets go of experts that open calls need",
           slow | delay | reorder, 0},
    mutant{"placement_not_resent", 75, "REBALANCER publishes once", loss | kill | partition, 0},
    mutant{"shown_twice", 15, "GATEWAY shows repeated tokens again", repeat | loss | delay, 0},
    mutant{"opening_not_resent", 115, "GATEWAY submits a request once", control | loss, 0},
    mutant{"assignment_not_resent", 175, "SCHEDULER assigns once", control | loss | partition, 0},
    mutant{"unbounded_retry", 10, "JOURNAL tells an end again that was acknowledged", 0, 0},
    mutant{"forgotten_rollback", 150, "RANK goes on at the row where it lost a sequence's KV",
           all_faults, 0},
    mutant{"leaked_room", 3, "SCHEDULER keeps the room of what has ended", 0, 4},
    mutant{"views_start_anew", 20, "MEMBERSHIP counts views from 1 after a restart", all_faults, 0},
    mutant{"no_fence", 30, "KEEPER leaves expelled processes alone", partition | one_way | stop, 0},
    mutant{"joiner_forgotten", 20, "DIRECTORY never says that a late process is there", kill, 0},
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
