// SPDX-License-Identifier: Apache-2.0
// Wakes one sleeping thread: an eventfd that is written only while the thread sleeps.
#pragma once

#include <atomic>

namespace di::bus {

class wake_event {
public:
  wake_event();
  ~wake_event();
  wake_event(const wake_event&) = delete;
  wake_event& operator=(const wake_event&) = delete;

  int descriptor() const noexcept { return descriptor_; }

  /// Any thread: the sleeper looks at its queue again.
  void notify() noexcept {
    if (asleep_.exchange(false))
      write_event();
  }
  /// The sleeper, before it looks at its queue for the last time and polls.
  void arm() noexcept { asleep_.store(true); }
  /// The sleeper, after it polled; `readable`: the descriptor was.
  void disarm(bool readable) noexcept;

private:
  void write_event() noexcept;

  int descriptor_ = -1;
  std::atomic<bool> asleep_{false};
};

} // namespace di::bus
