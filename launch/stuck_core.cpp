// SPDX-License-Identifier: Apache-2.0
// Counting the time in which a process could have come on.
#include "launch/stuck_core.hpp"

#include <algorithm>

namespace di::launch {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::int64_t report_every_ns = 1'000'000'000;
constexpr std::int64_t cpu_limits = 4; ///< processor time of one thread that is a hang anyway

std::int64_t ns(milliseconds t) {
  return duration_cast<nanoseconds>(t).count();
}

milliseconds ms(std::int64_t t) {
  return duration_cast<milliseconds>(nanoseconds{t});
}

/// Of all threads.
std::int64_t cpu_ns(const process_view& p) {
  std::int64_t sum = 0;
  for (const auto& [thread, v] : p.threads)
    sum += v.cpu_ns;
  return sum;
}

/// Of one thread that was there before, or that came since.
thread_view before(const process_view& p, std::int64_t thread) {
  const auto found = p.threads.find(thread);
  return found == p.threads.end() ? thread_view{} : found->second;
}

/// Processor time of the busiest thread.
std::int64_t most_cpu_ns(const process_view& from, const process_view& to) {
  std::int64_t most = 0;
  for (const auto& [thread, v] : to.threads)
    most = std::max(most, v.cpu_ns - before(from, thread).cpu_ns);
  return most;
}

} // namespace

std::optional<stuck_report> stuck_core::look(std::int64_t now_ns, std::span<const cell_view> cells,
                                             bool stopped, const ask_fn& ask,
                                             const usual_fn& usual) {
  states_.resize(cells.size());
  const auto since = last_look_ns_ == 0 ? 0 : now_ns - last_look_ns_;
  const auto counted = std::min(since, 2 * ns(options_.look_every));
  last_look_ns_ = now_ns;
  if (stopped) {
    if (stopped_ns_ == 0)
      stop_base_ = ask();
    stopped_ns_ += counted;
    if (stopped_ns_ < ns(options_.after) || now_ns < next_stop_report_ns_)
      return std::nullopt;
    // Between two looks it may have been let go and stopped again: slow is not stuck.
    if (auto there = ask(); cpu_ns(there) != cpu_ns(stop_base_)) {
      stop_base_ = std::move(there);
      stopped_ns_ = counted;
      return std::nullopt;
    }
    next_stop_report_ns_ = now_ns + report_every_ns;
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (cells[i].phase != 0)
        return stuck_report{i, cells[i].phase, ms(stopped_ns_), options_.after, true};
    return stuck_report{0, 0, ms(stopped_ns_), options_.after, true};
  }
  stopped_ns_ = 0;
  const auto every = ns(options_.look_every);
  const auto late = since > every + ns(options_.look_late) ? since - every / 8 : 0;
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (auto found = look_at(i, now_ns, cells[i], late, ask, usual))
      return found;
  return std::nullopt;
}

std::optional<stuck_report> stuck_core::look_at(std::size_t cell, std::int64_t now_ns,
                                                const cell_view& c, std::int64_t late_ns,
                                                const ask_fn& ask, const usual_fn& usual) {
  auto& s = states_[cell];
  if (c.phase == 0 || c.count != s.count) {
    s = {};
    s.count = c.count;
  }
  if (c.phase == 0 || now_ns - c.began_ns < ns(options_.notice))
    return std::nullopt;
  if (!s.noticed) {
    s.noticed = true;
    s.first = s.last = ask();
    return std::nullopt;
  }
  s.late_ns += late_ns;
  const auto p99 = usual(cell);
  const auto limit = std::max(ns(options_.after), p99 ? std::int64_t{options_.factor} * *p99
                                                      : ns(options_.unknown_after));
  const auto since = now_ns - s.last.ended_ns;
  if (since < ns(options_.ask_every) && s.slept_ns + since - s.late_ns < limit)
    return std::nullopt;
  count(s, now_ns, ask());
  const auto computed = most_cpu_ns(s.first, s.last) - s.disk_ns;
  const bool loops = computed >= cpu_limits * limit;
  if ((s.slept_ns < limit && !loops) || now_ns < s.next_report_ns)
    return std::nullopt;
  s.next_report_ns = now_ns + report_every_ns;
  return stuck_report{cell, c.phase, ms(loops ? computed : s.slept_ns), ms(limit), false};
}

void stuck_core::count(state& s, std::int64_t now_ns, process_view there) const {
  // What went by between the look and its question shows as a late look only at the next one.
  const auto span = std::max<std::int64_t>(std::min(now_ns, there.began_ns) - s.last.ended_ns, 0);
  std::int64_t waited = 0;
  bool disk = there.disk;
  for (const auto& [thread, v] : there.threads) {
    const auto b = before(s.last, thread);
    const auto told = v.delay_ns - b.delay_ns;
    waited += v.ready ? std::max(told, span - (v.cpu_ns - b.cpu_ns)) : told;
    disk = disk || v.faults > b.faults;
  }
  const auto excused = s.late_ns + waited + most_cpu_ns(s.last, there);
  auto counts = std::max<std::int64_t>(span - excused, 0);
  if (disk) {
    const auto more = std::min(span, ns(options_.disk_max) - s.disk_ns);
    s.disk_ns += more;
    counts = std::max<std::int64_t>(counts - more, 0);
  }
  s.slept_ns += counts;
  s.late_ns = 0;
  s.last = std::move(there);
}

} // namespace di::launch
