// SPDX-License-Identifier: Apache-2.0
// When a process hangs: it has begun something, could run, and does not come to an end of it for
// far longer than is usual. Pure: what is seen comes in, time too.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace di::launch {

struct stuck_options {
  using ms = std::chrono::milliseconds;
  ms after{250};           ///< no limit is shorter
  unsigned factor = 6;     ///< times the p99 of the phase
  ms unknown_after{2'000}; ///< limit of phases that were seen too seldom
  ms notice{60};           ///< what lasts less is not looked at
  ms look_every{25};       ///< the watcher's own period
  ms look_late{10};        ///< a look that comes later than this says that the host is busy
  ms ask_every{50};        ///< the kernel, about what was noticed
  ms disk_max{10'000};     ///< waiting for a disk is excused so long
  friend bool operator==(const stuck_options&, const stuck_options&) = default;
};

/// One actor of the process (messaging/base/progress.hpp).
struct cell_view {
  std::uint64_t count = 0;
  std::uint32_t phase = 0;   ///< 0: idle
  std::int64_t began_ns = 0; ///< [ns] of the phase, on the clock of `now_ns`
};

/// What the kernel says about one thread.
struct thread_view {
  std::int64_t cpu_ns = 0;   ///< [ns] it ran
  std::int64_t delay_ns = 0; ///< [ns] it could have run but another did, without a wait of now
  std::int64_t faults = 0;   ///< pages that it had to read from a disk
  bool ready = false;        ///< runs, or waits for a processor
};
struct process_view {
  std::map<std::int64_t, thread_view> threads; ///< by number
  bool disk = false;                           ///< one of them waits for a disk now
  std::int64_t began_ns = 0, ended_ns = 0;     ///< [ns] the question itself may take long
};

struct stuck_report {
  std::size_t cell = 0;
  std::uint32_t phase = 0; ///< 0: it was stopped while idle
  std::chrono::milliseconds stuck{};
  std::chrono::milliseconds limit{};
  bool stopped = false; ///< by a signal
};

/// One life of one process.
///
/// A slow host is no hang. Of the time after the first look that notices a phase (options.notice
/// old), split into the spans between two questions to the kernel, only that part counts in which
/// the whole process slept:
/// - waits of its threads for a processor do not count. The kernel tells them when they are over;
///   a thread that is ready now and did not run all the span may have waited for the rest of it;
/// - nor spans in which a thread waits for a disk or read a page from one (up to disk_max);
/// - nor looks that came late: a watcher that waits for a processor is not alone in that. They
///   count an eighth of a look, so that a deadlock on a host that is always busy is found at last;
/// - time in which a thread computes counts by itself: four limits of it are an endless loop.
/// Stopped (state T) counts in full.
class stuck_core {
public:
  using ask_fn = std::function<process_view()>;
  /// p99 of the phase of a cell [ns]; nothing if it is not known
  using usual_fn = std::function<std::optional<std::int64_t>(std::size_t cell)>;

  explicit stuck_core(stuck_options options) : options_{options} {}

  /// One look. `ask` is called only when something lasts long. A hang is reported once per phase,
  /// and again each second.
  std::optional<stuck_report> look(std::int64_t now_ns, std::span<const cell_view> cells,
                                   bool stopped, const ask_fn& ask, const usual_fn& usual);

private:
  struct state {
    std::uint64_t count = 0;
    bool noticed = false;
    std::int64_t slept_ns = 0; ///< what counts, as of the last question
    std::int64_t late_ns = 0;  ///< of looks since then
    std::int64_t disk_ns = 0;  ///< excused
    std::int64_t next_report_ns = 0;
    process_view first, last;
  };
  void count(state& s, std::int64_t now_ns, process_view there) const;
  std::optional<stuck_report> look_at(std::size_t cell, std::int64_t now_ns, const cell_view& c,
                                      std::int64_t late_ns, const ask_fn& ask,
                                      const usual_fn& usual);

  stuck_options options_;
  std::int64_t last_look_ns_ = 0;
  std::int64_t stopped_ns_ = 0; ///< for how long
  process_view stop_base_;      ///< when it was first seen stopped
  std::int64_t next_stop_report_ns_ = 0;
  std::vector<state> states_;
};

} // namespace di::launch
