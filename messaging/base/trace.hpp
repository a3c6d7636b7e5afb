// SPDX-License-Identifier: Apache-2.0
// Spans of one process: what it did when, for which request. A ring of fixed size that overwrites
// the oldest; `dilaunch trace` turns the rings of a run into one picture.
//
// clang-format off
//   trace::span s{trace::kind::attention, {.rows = rows, .layer = layer}};
//                                          // from here until the end of the scope
//   trace::stopwatch waiting;              // begin and end in different handlers:
//   waiting.start();
//   waiting.stop(trace::kind::wait, {.rows = n});
//   trace::mark(trace::kind::take, request);    // a point in time
// clang-format on
//
// Off, each of them costs one relaxed load. On, a span costs two readings of the clock and one slot
// (tests/bench/trace_bench: under 100 ns). Every function here may be called on any thread; writers
// neither lock nor wait.
#pragma once

#include "messaging/base/ids.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::trace {

/// What a span is about. The first eleven are parts of a rank's step, the next ones stations in the
/// life of a request. Names (to_string) are those of the enumerators.
enum class kind : std::uint8_t {
  step,      ///< one step of a rank, from its launch until its tokens are drawn
  attention, ///< a layer's attention, and what stands around it on the rank itself
  dispatch,  ///< routing, and sending rows to expert shards
  wait,      ///< for the answers of expert shards
  experts,   ///< rows through the experts of one layer, on the shard
  combine,   ///< adding the answers up
  draft,     ///< draft layers and their heads
  verify,    ///< drawing the tokens of rows that carry drafts; value: accepted
  sample,    ///< drawing the tokens of other rows
  commit,    ///< end checks, commits, the rest of a step that overlaps the next one
  prefill,   ///< one chunk of a prompt within a step
  submit,    ///< GATEWAY sends a request
  record,    ///< JOURNAL makes it exist
  admit,     ///< SCHEDULER takes or refuses it
  assign,    ///< SCHEDULER gives it to a rank
  take,      ///< RANK takes it
  accept,    ///< JOURNAL accepts tokens of it
  release,   ///< GATEWAY gets tokens of it
  finish,    ///< GATEWAY has all of it
  balance,   ///< REBALANCER has looked at a window of loads; value: moe_lb
  plan,      ///< REBALANCER has a better placement; rows: experts that move, value: moe_lb with it
};
inline constexpr std::size_t kinds = static_cast<std::size_t>(kind::plan) + 1;

std::string_view to_string(kind k) noexcept;
std::optional<kind> kind_of(std::string_view name) noexcept;

/// Small numbers of a span; those left at their defaults are not shown.
struct numbers {
  std::uint32_t rows = 0; ///< [rows] or tokens it was about
  std::int32_t layer = -1;
  float value = 0; ///< verify: accepted drafts; assign: rank; balance, plan: moe_lb
};

/// A line of the picture, e.g. the path of an actor. 0: the process itself.
using track_id = std::uint16_t;

/// One span as it is read back.
struct event {
  kind what = kind::step;
  track_id track = 0;
  std::int64_t begin_ns = 0; ///< monotonic clock, common to the processes of one host
  std::int64_t end_ns = 0;   ///< equal to begin_ns: a mark
  request_id flow;           ///< 0: of no single request
  numbers args;
  friend bool operator==(const event&, const event&);
};

/// Two clocks read at one moment: lays processes of several hosts on one time line.
struct clock_pair {
  std::int64_t monotonic_ns = 0;
  std::int64_t wall_ns = 0; ///< since 1970
};

/// What is in the ring, oldest first.
struct part {
  std::vector<event> events;
  std::uint64_t first = 0;         ///< number of events[0] if none behind it is missing
  std::uint64_t next = 0;          ///< where to go on reading; events in all so far at the end
  std::uint64_t lost = 0;          ///< within [asked, next): overwritten, or being written
  bool more = false;               ///< there are events from `next` on
  std::vector<std::string> tracks; ///< name of each track id
  clock_pair clocks;               ///< now
};

namespace detail {
inline std::atomic<bool> on{false};
inline thread_local track_id current = 0;
void put(kind what, track_id track, std::int64_t begin_ns, std::int64_t end_ns, request_id flow,
         const numbers& args) noexcept;
} // namespace detail

inline constexpr std::size_t spans_max = 1u << 22;
inline constexpr std::size_t tracks_max = 4'096;

/// Starts recording into a ring of at least `spans` slots (a power of two, 48 bytes each); a ring
/// of an earlier call is left behind with what it holds. @pre 0 < spans <= spans_max
void enable(std::size_t spans);
/// Stops recording; what is recorded can still be read.
void disable() noexcept;
inline bool enabled() noexcept {
  return detail::on.load(std::memory_order_relaxed);
}

/// The monotonic clock. [ns]
std::int64_t now_ns() noexcept;
clock_pair clocks() noexcept;
/// Names the machine of this boot: processes with equal ones share a monotonic clock.
std::string host_key();

/// Id of the track of that name; made when first asked for. Past tracks_max: 0.
track_id track(std::string_view name);

/// Spans of this thread belong to a track while this lives; nests.
class on_track {
public:
  explicit on_track(track_id id) noexcept : before_{detail::current} { detail::current = id; }
  ~on_track() { detail::current = before_; }
  on_track(const on_track&) = delete;
  on_track& operator=(const on_track&) = delete;

private:
  track_id before_;
};

/// A span with times of one's own choice, on this thread's track.
inline void record(kind what, std::int64_t begin_ns, std::int64_t end_ns, const numbers& args = {},
                   request_id flow = {}) noexcept {
  if (enabled())
    detail::put(what, detail::current, begin_ns, end_ns, flow, args);
}

/// A point in time.
inline void mark(kind what, request_id flow = {}, const numbers& args = {}) noexcept {
  if (enabled()) {
    const std::int64_t now = now_ns();
    detail::put(what, detail::current, now, now, flow, args);
  }
}

/// From its construction until its end, within one scope and thread.
class span {
public:
  explicit span(kind what, const numbers& args = {}, request_id flow = {}) noexcept
      : begin_ns_{enabled() ? now_ns() : 0}, flow_{flow}, args_{args}, what_{what} {}
  ~span() {
    if (begin_ns_ != 0)
      record(what_, begin_ns_, now_ns(), args_, flow_);
  }
  span(const span&) = delete;
  span& operator=(const span&) = delete;

  /// What became known meanwhile.
  numbers& args() noexcept { return args_; }
  /// Nothing worth a span has happened.
  void drop() noexcept { begin_ns_ = 0; }

private:
  std::int64_t begin_ns_; ///< 0: off when it began
  request_id flow_;
  numbers args_;
  kind what_;
};

/// A span whose begin and end lie in different handlers. Belongs to the track on which it stops.
class stopwatch {
public:
  void start() noexcept { begin_ns_ = enabled() ? now_ns() : 0; }
  /// Records the span since start(); nothing if it was not started. It may be started again.
  void stop(kind what, const numbers& args = {}, request_id flow = {}) noexcept {
    if (begin_ns_ != 0)
      record(what, begin_ns_, now_ns(), args, flow);
    begin_ns_ = 0;
  }
  /// The same, and it goes on.
  void lap(kind what, const numbers& args = {}, request_id flow = {}) const noexcept {
    if (begin_ns_ != 0)
      record(what, begin_ns_, now_ns(), args, flow);
  }
  bool running() const noexcept { return begin_ns_ != 0; }

private:
  std::int64_t begin_ns_ = 0;
};

/// Copies out what was recorded from number `first` on, at most `events_max`. While writers go on.
part read(std::uint64_t first = 0, std::size_t events_max = spans_max);

} // namespace di::trace
