// SPDX-License-Identifier: Apache-2.0
// The ranks of one host as its node process keeps them: processes with life pages, send segments
// that neighbours share, and what neighbours are told when one starts or ends.
#pragma once

#include "launch/boot.hpp"
#include "launch/child_set.hpp"
#include "launch/poll_loop.hpp"
#include "launch/progress_watch.hpp"
#include "launch/segment_set.hpp"
#include "messaging/base/result.hpp"

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace di::launch {

/// Used on the loop's thread, which must be the main thread: children are forked from it.
class rank_host {
public:
  rank_host(poll_loop& loop, child_events events, progress_watch::stuck_fn stuck);

  /// Starts a life of a rank. Neighbours that run get the reader of its segment first.
  /// @param boot  gets its life page; `segment_lives` name the neighbours that run or will
  /// @errors those of child_set::start and of segments
  result<void> start_rank(child_spec spec, boot_config boot);
  /// Starts a child that is no rank. It is stuck once a signal has stopped it for so long; 0:
  /// never.
  result<void> start_other(const child_spec& spec, std::chrono::milliseconds stopped_max);

  child_set& children() noexcept { return children_; }
  const child_set& children() const noexcept { return children_; }
  /// Segments that are held for lives that run or have not started yet.
  std::size_t segments() const noexcept { return segments_.size(); }

private:
  child_events events_with(child_events events);
  void tell_gone(incarnation life);

  segment_set segments_;
  std::map<std::string, incarnation> lives_; ///< of ranks that run
  child_set children_;
  progress_watch watch_;
};

} // namespace di::launch
