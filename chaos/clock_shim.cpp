// SPDX-License-Identifier: Apache-2.0
// A wall clock that jumps: preloaded into the processes of a run, it adds what dichaos writes to
// <DI_FAULTS>/clock to every reading of real time. Monotonic clocks are left alone.
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr std::int64_t second_ns = 1'000'000'000;

const volatile std::int64_t* map_offset() {
  static constexpr std::int64_t none = 0;
  const char* folder = std::getenv("DI_FAULTS");
  if (folder == nullptr)
    return &none;
  const int fd = ::open((std::string{folder} + "/clock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return &none;
  void* at = ::mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? &none : static_cast<const volatile std::int64_t*>(at);
}

std::int64_t offset_ns() {
  static const volatile std::int64_t* offset = map_offset();
  return *offset;
}

} // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* t) noexcept {
  const long failed = ::syscall(SYS_clock_gettime, clock, t);
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    const std::int64_t ns = t->tv_nsec + offset_ns();
    const std::int64_t carry = ns >= 0 ? ns / second_ns : -((-ns + second_ns - 1) / second_ns);
    t->tv_sec += carry;
    t->tv_nsec = ns - carry * second_ns;
  }
  return static_cast<int>(failed);
}

extern "C" int gettimeofday(timeval* t, void*) noexcept {
  timespec now{};
  const int failed = clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return failed;
}

extern "C" time_t time(time_t* t) noexcept {
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  if (t != nullptr)
    *t = now.tv_sec;
  return now.tv_sec;
}
