// SPDX-License-Identifier: Apache-2.0
#include "chaos/verdict.hpp"

#include "chaos/pauses.hpp"
#include "chaos/view_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

namespace di::chaos {
namespace {

constexpr std::size_t failures_shown = 8;

void expect(verdict& v, bool held, std::string what) {
  if (held)
    return;
  v.held = false;
  v.broken.push_back(std::move(what));
}

/// Sorts the difference of two token lists into kinds; what is neither lost, doubled nor moved is
/// changed.
void compare_tokens(const stream& want, const stream& have, verdict& v) {
  if (want.ids == have.ids)
    return;
  if (have.ids.size() < want.ids.size()
      && std::equal(have.ids.begin(), have.ids.end(), want.ids.begin())) {
    v.tokens_lost += want.ids.size() - have.ids.size();
    return;
  }
  auto a = want.ids, b = have.ids;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::size_t differing = 0;
  for (std::size_t i = 0; i < std::min(want.ids.size(), have.ids.size()); ++i)
    differing += want.ids[i] != have.ids[i] ? 1 : 0;
  if (a == b)
    v.tokens_reordered += differing;
  else if (have.ids.size() > want.ids.size()
           && std::includes(b.begin(), b.end(), a.begin(), a.end()))
    v.tokens_doubled += have.ids.size() - want.ids.size();
  else if (have.ids.size() < want.ids.size()
           && std::includes(a.begin(), a.end(), b.begin(), b.end()))
    v.tokens_lost += want.ids.size() - have.ids.size();
  else
    v.tokens_changed += std::max<std::size_t>(differing, 1);
}

void compare_answers(const std::vector<answer>& reference, const std::vector<answer>& have,
                     verdict& v) {
  std::map<std::uint64_t, const answer*> want;
  for (const answer& a : reference)
    want[a.id] = &a;
  for (const answer& a : have) {
    const auto at = want.find(a.id);
    v.resumed += std::any_of(a.streams.begin(), a.streams.end(),
                             [](const stream& s) { return s.attempts > 1; });
    if (!a.error.empty()) {
      ++v.failed;
      if (v.failures.size() < failures_shown)
        v.failures.push_back(fmt::format("request {}: {}", a.id, a.error));
      continue;
    }
    if (at == want.end())
      continue;
    if (at->second->canonical == a.canonical)
      ++v.identical;
    else if (v.failures.size() < failures_shown)
      v.failures.push_back(fmt::format("request {}: other bytes", a.id));
    const auto& streams = at->second->streams;
    for (std::size_t i = 0; i < std::min(streams.size(), a.streams.size()); ++i)
      compare_tokens(streams[i], a.streams[i], v);
  }
}

/// Descriptors of those who were there before and after, and grew by more than the sockets to a few
/// newcomers need whose predecessors are not yet gone. However many came: what left takes its own
/// along. Links open when they are first used, so a rank that was idle may come to as many as the
/// busiest had.
void compare_descriptors(const run_record& run, verdict& v) {
  constexpr std::size_t per_newcomer = 12, newcomers_max = 3;
  constexpr std::size_t allowed = per_newcomer * newcomers_max;
  const auto is_rank = [](const std::string& name) { return name.starts_with("rank "); };
  std::size_t busiest = 0;
  for (const auto& [name, before] : run.before)
    if (is_rank(name))
      busiest = std::max(busiest, before.descriptors);
  for (const auto& [name, before] : run.before) {
    const auto at = run.after.find(name);
    if (at == run.after.end() || at->second.pid != before.pid)
      continue;
    const auto usual = is_rank(name) ? busiest : before.descriptors;
    if (at->second.descriptors > usual + allowed)
      v.descriptor_growth.push_back(
          fmt::format("{}: {} -> {}", name, before.descriptors, at->second.descriptors));
  }
}

std::string shown(const range& r) {
  return r.low == r.high ? std::to_string(r.low) : fmt::format("{} to {}", r.low, r.high);
}

void check_counts(const plan& p, verdict& v) {
  const auto within = [&](const std::optional<range>& want, std::size_t have,
                          std::string_view what) {
    if (want)
      expect(v, have >= want->low && have <= want->high,
             fmt::format("{} {}, expected {}", have, what, shown(*want)));
  };
  within(p.expect.views, v.views, "views after the first");
  within(p.expect.expelled, v.expelled, "lives expelled");
  within(p.expect.joined, v.joined, "lives joined");
  if (p.expect.members)
    expect(v, v.members == *p.expect.members,
           fmt::format("{} members at the end, expected {}", v.members, *p.expect.members));
}

void check_smallest(const plan& p, const view_history& views, verdict& v) {
  if (p.expect.members_min)
    expect(v, views.members_min() >= *p.expect.members_min,
           fmt::format("a view of {} members, expected at least {}", views.members_min(),
                       *p.expect.members_min));
}

void check_events(const plan& p, const run_record& run, verdict& v) {
  std::set<std::string> seen;
  for (const log_event& e : run.events)
    seen.insert(e.name);
  for (const std::string& name : p.expect.events)
    expect(v, seen.contains(name), fmt::format("no event {}", name));
  for (const std::string& name : p.expect.no_events)
    expect(v, !seen.contains(name), fmt::format("event {}", name));
  for (const std::string& name : p.expect.counters)
    expect(v, counted(run.events, name) > 0, fmt::format("nobody counted {}", name));
}

/// Of a wall clock that was to jump: some process must have had another time than before.
void check_clock(const run_record& run, const injected& f, verdict& v) {
  constexpr std::int64_t jump_us_min = 60'000'000; // more than any clock is set right by
  std::int64_t before_us = 0;
  bool jumped = false;
  for (const log_event& e : run.events) {
    if (e.mono_us == 0 || e.wall_us == 0)
      continue;
    const std::int64_t offset_us = e.wall_us - e.mono_us;
    if (e.mono_us < f.begin_us)
      before_us = offset_us;
    else if (before_us != 0)
      jumped = jumped || std::abs(offset_us - before_us) > jump_us_min;
  }
  expect(v, jumped, fmt::format("{}: no process saw the wall clock jump", f.what));
}

void check_plan(const plan& p, const run_record& run, bool compared, std::size_t answered,
                verdict& v) {
  expect(v, !run.timed_out, "the run had not ended at the plan's limit");
  expect(v, run.exit_code == static_cast<int>(p.expect.exit.value_or(0)),
         fmt::format("exit code {}, expected {}: {}", run.exit_code, p.expect.exit.value_or(0),
                     run.last_line));
  expect(
      v, run.faults_missing == 0 || p.expect.late_faults,
      fmt::format("{} faults never struck, or not as often as they should: the run was too short",
                  run.faults_missing));
  for (const injected& f : run.faults) {
    expect(v, f.trouble.empty() || (p.expect.late_faults && f.trouble == nobody_there),
           fmt::format("{}: {}", f.what, f.trouble));
    if (f.kind == fault_kind::clock_jump)
      check_clock(run, f, v);
  }
  expect(v, answered == v.requests,
         fmt::format("{} of {} requests answered", answered, v.requests));
  expect(v, v.failed <= p.expect.failed_max,
         fmt::format("{} requests failed, at most {} may", v.failed, p.expect.failed_max));
  if (p.expect.identical && compared) {
    expect(
        v, v.identical + v.failed == v.requests,
        fmt::format("{} of {} answers byte-equal to the undisturbed run", v.identical, v.requests));
    const std::size_t wrong =
        v.tokens_doubled + v.tokens_reordered + v.tokens_changed + v.tokens_lost;
    expect(v, wrong == 0,
           fmt::format("tokens: {} lost, {} doubled, {} reordered, {} changed", v.tokens_lost,
                       v.tokens_doubled, v.tokens_reordered, v.tokens_changed));
  }
  expect(v, v.false_expulsions == 0 || p.expect.others_leave,
         fmt::format("{} ranks were expelled that nothing had happened to", v.false_expulsions));
  check_counts(p, v);
  check_events(p, run, v);
  expect(v, v.leaks.empty(), fmt::format("left behind: {}", fmt::join(v.leaks, ", ")));
  expect(v, v.descriptor_growth.empty(),
         fmt::format("descriptors pile up: {}", fmt::join(v.descriptor_growth, ", ")));
}

/// A view that both loses and gains ends an outage: its gap is the fault's, not the return's.
void follow_return(aftermath& a, std::int64_t until_us, const token_times& times) {
  constexpr std::int64_t around_us = 1'000'000;
  if (!a.rejoin_ms || !a.commit_ms || *a.rejoin_ms <= *a.commit_ms)
    return;
  const auto at_us = [&](double ms) {
    return a.fault.begin_us + static_cast<std::int64_t>(ms * 1000.0);
  };
  const std::int64_t back_us = at_us(*a.rejoin_ms);
  a.rejoin_pause_ms =
      times.pauses_around(back_us, at_us(*a.commit_ms), std::min(until_us, back_us + around_us));
  a.rejoin_pause = quantiles_of(a.rejoin_pause_ms);
}

} // namespace

verdict judge(const plan& p, const std::vector<answer>& reference, const run_record& run,
              std::uint32_t ranks) {
  verdict v;
  v.requests = p.work.requests + p.work.after;
  std::vector<answer> have;
  if (auto read = read_answers(run.answers); read.ok())
    have = std::move(*read);
  else
    expect(v, false, read.error().what);
  std::set<std::uint64_t> ids;
  for (const answer& a : have)
    ids.insert(a.id);
  expect(v, ids.size() == have.size(), "a request is answered twice");
  compare_answers(reference, have, v);
  const view_history views{run.events, ranks};
  v.views = views.committed_after_first();
  v.expelled = views.expelled();
  v.joined = views.joined();
  v.members = views.members();
  v.leaks = run.leaks;
  compare_descriptors(run, v);
  const token_times times{have, run.events};
  v.gap_p50_ms = times.median_gap_ms(run.faults.empty() ? INT64_MAX : run.faults.front().begin_us);
  v.run_tokens_per_s = times.tokens_per_s();
  for (std::size_t i = 0; i < run.faults.size(); ++i) {
    const std::int64_t until = i + 1 < run.faults.size() ? run.faults[i + 1].begin_us : INT64_MAX;
    aftermath a;
    a.fault = run.faults[i];
    if (a.fault.armed)
      a.fault.begin_us = views.struck_us(a.fault, run.events);
    views.follow(a, until, run.events);
    a.pause = times.pauses_of(a.fault, until, run.faults);
    follow_return(a, until, times);
    v.faults.push_back(std::move(a));
  }
  v.false_expulsions = views.expelled_without(run.faults, run.events);
  check_plan(p, run, !reference.empty(), have.size(), v);
  check_smallest(p, views, v);
  return v;
}

} // namespace di::chaos
