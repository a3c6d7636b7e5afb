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
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (auto found = look_at(i, now_ns, cells[i], since - counted, ask, usual))
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
    s.since_ns = s.asked_ns = now_ns;
    s.base = ask();
    return std::nullopt;
  }
  s.excused_ns += late_ns;
  const auto p99 = usual(cell);
  const auto limit = std::max(ns(options_.after), p99 ? std::int64_t{options_.factor} * *p99
                                                      : ns(options_.unknown_after));
  const auto so_far = [&] { return now_ns - s.since_ns - s.excused_ns - s.delayed_ns; };
  // A hang that the processors' load hides shows by its own use of them, asked for now and then.
  if (so_far() < limit && now_ns - s.asked_ns < cpu_limits * limit)
    return std::nullopt;
  const auto there = ask();
  std::int64_t most_cpu = 0;
  s.delayed_ns = 0;
  for (const auto& [thread, v] : there.threads) {
    const auto before = s.base.threads.find(thread);
    const auto b = before == s.base.threads.end() ? thread_view{} : before->second;
    s.delayed_ns += v.delay_ns - b.delay_ns;
    most_cpu = std::max(most_cpu, v.cpu_ns - b.cpu_ns);
  }
  if (there.disk) { // since the last question, as far as anyone can say
    const auto more = std::min(now_ns - s.asked_ns, ns(options_.disk_max) - s.disk_ns);
    s.disk_ns += more;
    s.excused_ns += more;
  }
  s.asked_ns = now_ns;
  if ((so_far() < limit && most_cpu < cpu_limits * limit) || now_ns < s.next_report_ns)
    return std::nullopt;
  s.next_report_ns = now_ns + report_every_ns;
  return stuck_report{cell, c.phase, ms(std::max(so_far(), most_cpu)), ms(limit), false};
}

} // namespace di::launch
