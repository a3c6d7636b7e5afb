// SPDX-License-Identifier: Apache-2.0
// signalfd on the loop.
#include "launch/signals.hpp"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace di::launch {
namespace {

sigset_t watched() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    ::sigaddset(&set, number);
  return set;
}

} // namespace

void block_signals() {
  const auto set = watched();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

signal_source::signal_source(poll_loop& loop, std::function<void(int number)> got) : loop_{loop} {
  const auto set = watched();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  fd_ = unique_fd{::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
  loop_.watch(fd_.get(), [this, got = std::move(got)] {
    signalfd_siginfo one{};
    while (::read(fd_.get(), &one, sizeof one) == sizeof one)
      got(static_cast<int>(one.ssi_signo));
  });
}

signal_source::~signal_source() {
  loop_.forget(fd_.get());
  const auto set = watched();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

} // namespace di::launch
