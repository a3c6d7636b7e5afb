// SPDX-License-Identifier: Apache-2.0
// Looks at the children of this host several times a second: who has stopped making progress.
#pragma once

#include "launch/child_set.hpp"
#include "launch/poll_loop.hpp"
#include "launch/stuck_core.hpp"

#include <functional>
#include <map>
#include <string>

namespace di::launch {

/// Used on the loop's thread.
class progress_watch {
public:
  /// A child hangs: what it does ("expert_batch", "idle"), for how long, in words why.
  using stuck_fn = std::function<void(const std::string& child, const std::string& phase,
                                      std::uint32_t stuck_ms, const std::string& what)>;

  /// @param children  outlives it
  progress_watch(poll_loop& loop, const child_set& children, stuck_fn stuck);
  ~progress_watch();
  progress_watch(const progress_watch&) = delete;
  progress_watch& operator=(const progress_watch&) = delete;

  /// Of a child without a life page only that it is stopped is seen.
  void add(const std::string& child, const stuck_options& options);
  void remove(const std::string& child);

private:
  struct watched {
    stuck_core core;
    bool stopped = false;
  };
  void arm();
  void look();
  void look_at(const std::string& child, watched& w);

  poll_loop& loop_;
  const child_set& children_;
  stuck_fn stuck_;
  std::map<std::string, watched> watched_;
  std::uint64_t timer_ = 0;
};

/// What the kernel says about a process's threads now. Nothing is said of one that has gone.
process_view process_view_of(pid_t pid);
/// The name of a phase in a progress_cell.
std::string phase_name(std::uint32_t phase);

} // namespace di::launch
