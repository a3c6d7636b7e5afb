// SPDX-License-Identifier: Apache-2.0
// How soon a node process knows of a kill -9: the death certificate (robust mutex) against the
// pidfd and the end of a socket, all of the same death, with touched memory of several sizes in the
// process that dies. Prints JSON, times in milliseconds from kill() to the wake of the loop's
// thread.
//
//   death_bench [deaths] [GiB...]      default: 20 deaths each of 0, 1 and 4 GiB
#include "launch/life_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace di::launch {
namespace {

using clock = std::chrono::steady_clock;

/// [ms] of one death; what never came is negative.
struct death {
  double certificate = -1, pidfd = -1, socket = -1;
};

[[noreturn]] void live(const life_page& page, std::size_t bytes) {
  if (bytes > 0
      && ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                -1, 0)
             == MAP_FAILED)
    ::_exit(1);
  if (!hold_life(::fcntl(page.fd(), F_DUPFD_CLOEXEC, 0)).ok())
    ::_exit(1);
  while (true)
    ::pause();
}

death die(std::size_t bytes) {
  auto page = life_page::make("di-bench-life").value();
  auto watch = life_watch::start(page.words()).value();
  std::array<int, 2> link{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link.data()) != 0)
    std::abort();
  const pid_t pid = ::fork();
  if (pid == 0)
    live(page, bytes);
  ::close(link[1]);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  while (page.words().armed.load() == 0)
    ::poll(nullptr, 0, 1);
  death d;
  std::array<pollfd, 3> fds{{{watch->fd(), POLLIN, 0}, {pidfd, POLLIN, 0}, {link[0], POLLIN, 0}}};
  const std::array<double*, 3> into{&d.certificate, &d.pidfd, &d.socket};
  const auto began = clock::now();
  ::kill(pid, SIGKILL);
  for (int left = 3; left > 0;) {
    if (::poll(fds.data(), fds.size(), 60'000) <= 0)
      break;
    const double ms = std::chrono::duration<double, std::milli>(clock::now() - began).count();
    for (std::size_t i = 0; i < fds.size(); ++i)
      if (fds[i].revents != 0) {
        *into[i] = ms;
        fds[i].fd = -1;
        fds[i].revents = 0;
        --left;
      }
  }
  ::waitpid(pid, nullptr, 0);
  ::close(pidfd);
  ::close(link[0]);
  return d;
}

std::string figures(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double q) {
    return ms[std::min(ms.size() - 1,
                       static_cast<std::size_t>(q * static_cast<double>(ms.size())))];
  };
  return fmt::format(R"({{"p50": {:.3f}, "p99": {:.3f}, "max": {:.3f}}})", at(0.5), at(0.99),
                     ms.back());
}

int run(int argc, char** argv) {
  const int deaths = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  std::vector<double> sizes;
  for (int i = 2; i < argc; ++i)
    sizes.push_back(std::atof(argv[i]));
  if (sizes.empty())
    sizes = {0, 1, 4};
  std::printf("{\"bench\": \"death\", \"deaths\": %d, \"cores\": %ld, \"sizes\": [", deaths,
              ::sysconf(_SC_NPROCESSORS_ONLN));
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    std::vector<double> certificate, pidfd, socket;
    for (int i = 0; i < deaths; ++i) {
      const auto d = die(static_cast<std::size_t>(sizes[s] * (1 << 30)));
      certificate.push_back(d.certificate);
      pidfd.push_back(d.pidfd);
      socket.push_back(d.socket);
    }
    std::printf("%s\n  {\"touched_gib\": %g, \"certificate_ms\": %s, \"pidfd_ms\": %s, "
                "\"socket_ms\": %s}",
                s == 0 ? "" : ",", sizes[s], figures(certificate).c_str(), figures(pidfd).c_str(),
                figures(socket).c_str());
    std::fflush(stdout);
  }
  std::printf("\n]}\n");
  return 0;
}

} // namespace
} // namespace di::launch

int main(int argc, char** argv) {
  return di::launch::run(argc, argv);
}
