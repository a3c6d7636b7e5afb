// SPDX-License-Identifier: Apache-2.0
// From the bus thread to a poll loop: envelopes in a queue, and a descriptor that is readable while
// there are some.
#pragma once

#include "launch/process.hpp"
#include "messaging/proto/parcel.hpp"

#include <deque>
#include <memory>
#include <mutex>

namespace di::launch {

/// Filled by any thread, emptied by the loop's. Bounded by the bus's credits.
class mail_queue {
public:
  mail_queue();
  void put(envelope mail);
  std::deque<envelope> take();
  int fd() const noexcept { return event_.get(); }

private:
  unique_fd event_;
  std::mutex guard_;
  std::deque<envelope> waiting_;
};

} // namespace di::launch
