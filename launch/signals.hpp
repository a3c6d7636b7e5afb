// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as events of the loop.
#pragma once

#include "launch/poll_loop.hpp"
#include "launch/process.hpp"

#include <functional>

namespace di::launch {

/// While it lives the three signals are blocked in the calling thread (the main thread, before any
/// other exists) and reported to `got`; SIGPIPE is ignored from then on.
class signal_source {
public:
  signal_source(poll_loop& loop, std::function<void(int number)> got);
  ~signal_source();
  signal_source(const signal_source&) = delete;
  signal_source& operator=(const signal_source&) = delete;

private:
  poll_loop& loop_;
  unique_fd fd_;
};

/// Blocks the three signals in the calling thread, and so in all that it starts later. For
/// processes that have threads before their signal_source.
void block_signals();

} // namespace di::launch
