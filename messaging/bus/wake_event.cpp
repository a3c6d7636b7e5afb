// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/wake_event.hpp"

#include <cstdint>
#include <sys/eventfd.h>
#include <unistd.h>

namespace di::bus {

wake_event::wake_event() : descriptor_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
}

wake_event::~wake_event() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

void wake_event::write_event() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(descriptor_, &one, sizeof one);
}

void wake_event::disarm(bool readable) noexcept {
  asleep_.store(false);
  if (!readable)
    return;
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(descriptor_, &count, sizeof count);
}

} // namespace di::bus
