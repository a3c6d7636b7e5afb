// SPDX-License-Identifier: Apache-2.0
// A deque and an eventfd.
#include "launch/mail_queue.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

namespace di::launch {

mail_queue::mail_queue() : event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  DI_CHECK(static_cast<bool>(event_));
}

void mail_queue::put(envelope mail) {
  const std::lock_guard lock{guard_};
  waiting_.push_back(std::move(mail));
  (void)::eventfd_write(event_.get(), 1);
}

std::deque<envelope> mail_queue::take() {
  const std::lock_guard lock{guard_};
  eventfd_t count = 0;
  (void)::eventfd_read(event_.get(), &count);
  return std::exchange(waiting_, {});
}

} // namespace di::launch
