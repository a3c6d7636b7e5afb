// SPDX-License-Identifier: Apache-2.0
// The table of rare branches.
#include "chaos/sim_branches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace di::sim {

namespace {

using namespace std::string_view_literals;

constexpr std::array all{
    "calls.lost_holder"sv,
    "calls.parked"sv,
    "calls.sent_again"sv,
    "directory.takes_latecomer"sv,
    "directory.withdraws_unseen"sv,
    "gateway.follows_again"sv,
    "gateway.hears_of_control"sv,
    "gateway.repeated_tokens"sv,
    "gateway.submits_again"sv,
    "journal.detaches"sv,
    "journal.drops_unwritten"sv,
    "journal.opens_next_attempt"sv,
    "journal.owner_has_left"sv,
    "journal.recovers"sv,
    "journal.refuses_commit"sv,
    "journal.releases_again"sv,
    "journal.resumes_detached"sv,
    "keeper.ends_unheard_life"sv,
    "keeper.fences"sv,
    "membership.hears_of_hang"sv,
    "membership.loses_joiner"sv,
    "membership.resumes"sv,
    "rank.drops_refused_attempt"sv,
    "rank.preempts"sv,
    "rank.refuses_older_view"sv,
    "rebalancer.overtakes"sv,
    "rebalancer.publishes_again"sv,
    "scheduler.assigns_again"sv,
    "scheduler.meets_other_view"sv,
    "shard.keeps_open_expert"sv,
    "sim.frame_for_another_life"sv,
    "sim.frame_from_retired_life"sv,
    "sim.write_fails"sv,
    "sim.write_torn"sv,
};
static_assert(std::is_sorted(all.begin(), all.end()));

} // namespace

std::span<const std::string_view> branches() {
  return all;
}

branch_report tell_branches(const std::map<std::string, std::uint64_t>& visits) {
  branch_report report;
  for (const std::string_view name : all)
    if (const auto at = visits.find(std::string{name}); at != visits.end()) {
      report.words += fmt::format("  {:8}  {}\n", at->second, name);
    } else {
      ++report.never;
      report.words += fmt::format("     NEVER  {}\n", name);
    }
  for (const auto& [name, count] : visits)
    if (name != "shard.stuck" && // a fault point: its visits count, too
        !std::binary_search(all.begin(), all.end(), name)) {
      ++report.unknown;
      report.words += fmt::format("  {:8}  {} is not in the table\n", count, name);
    }
  return report;
}

} // namespace di::sim
