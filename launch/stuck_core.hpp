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
  ms look_every{25};       ///< looks that come later than twice this excuse the rest
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
  std::int64_t delay_ns = 0; ///< [ns] it could have run but another did
};
struct process_view {
  std::map<std::int64_t, thread_view> threads; ///< by number
  bool disk = false;                           ///< one of them waits for a disk now
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
/// Time counts from the first look that notices a phase (options.notice old), less what the kernel
/// or this watcher took away: the threads' waits for a processor, waits for a disk, late looks.
/// Stopped (state T) counts in full. A thread that alone used four limits of processor time counts
/// as well, however busy the processors are.
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
    std::int64_t since_ns = 0;   ///< when it was noticed
    std::int64_t excused_ns = 0; ///< by late looks and disks
    std::int64_t delayed_ns = 0; ///< by other processes, as of the last question
    std::int64_t asked_ns = 0;   ///< when
    std::int64_t disk_ns = 0;
    std::int64_t next_report_ns = 0;
    process_view base;
  };
  std::optional<stuck_report> look_at(std::size_t cell, std::int64_t now_ns, const cell_view& c,
                                      std::int64_t late_ns, const ask_fn& ask,
                                      const usual_fn& usual);

  stuck_options options_;
  std::int64_t last_look_ns_ = 0;
  std::int64_t stopped_ns_ = 0; ///< for how long
  process_view stop_base_; ///< when it was first seen stopped
  std::int64_t next_stop_report_ns_ = 0;
  std::vector<state> states_;
};

} // namespace di::launch
