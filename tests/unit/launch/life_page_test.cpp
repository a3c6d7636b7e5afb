// SPDX-License-Identifier: Apache-2.0
// Death certificates, between real processes that are forked here.
#include "launch/life_page.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace di::launch {
namespace {

using clock = std::chrono::steady_clock;

bool readable(int fd, int wait_ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, wait_ms) == 1;
}

/// A child that holds its life page, with so much touched memory.
pid_t holder(const life_page& page, std::size_t ballast_bytes = 0) {
  const pid_t pid = ::fork();
  if (pid != 0)
    return pid;
  if (ballast_bytes > 0) {
    auto* at = static_cast<char*>(::mmap(nullptr, ballast_bytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    if (at == MAP_FAILED)
      ::_exit(1);
  }
  if (!hold_life(::fcntl(page.fd(), F_DUPFD_CLOEXEC, 0)).ok())
    ::_exit(1);
  while (true)
    ::pause();
}

void await_armed(const life_page& page) {
  const auto until = clock::now() + std::chrono::seconds{20};
  while (page.words().armed.load() == 0 && clock::now() < until)
    ::poll(nullptr, 0, 1);
  ASSERT_EQ(page.words().armed.load(), 1U);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

} // namespace

TEST(life_page, certifies_a_death_before_it_is_reaped) {
  std::vector<double> took_ms;
  for (int i = 0; i < 20; ++i) {
    auto page = life_page::make("di-test-life");
    ASSERT_TRUE(page.ok()) << page.error().what;
    auto watch = life_watch::start(page->words());
    ASSERT_TRUE(watch.ok()) << watch.error().what;
    const pid_t pid = holder(*page);
    await_armed(*page);
    EXPECT_FALSE((*watch)->dead());
    EXPECT_FALSE(readable((*watch)->fd(), 0));
    const auto began = clock::now();
    ::kill(pid, SIGKILL);
    ASSERT_TRUE(readable((*watch)->fd(), 20'000));
    took_ms.push_back(std::chrono::duration<double, std::milli>(clock::now() - began).count());
    EXPECT_TRUE((*watch)->dead());
    ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  }
  std::sort(took_ms.begin(), took_ms.end());
  std::printf("certificate after kill -9: p50 %.3f ms, max %.3f ms\n", took_ms[10], took_ms.back());
}

TEST(life_page, certifies_deaths_of_stopped_processes_and_orderly_ends) {
  for (const bool stopped : {false, true}) {
    auto page = life_page::make("di-test-life");
    auto watch = life_watch::start(page->words());
    const pid_t pid = holder(*page);
    await_armed(*page);
    if (stopped)
      ::kill(pid, SIGSTOP);
    ::kill(pid, stopped ? SIGKILL : SIGTERM);
    EXPECT_TRUE(readable((*watch)->fd(), 20'000));
    EXPECT_TRUE((*watch)->dead());
    ::waitpid(pid, nullptr, 0);
  }
}

TEST(life_page, says_nothing_about_a_process_that_never_armed_it) {
  auto page = life_page::make("di-test-life");
  auto watch = life_watch::start(page->words());
  const pid_t pid = ::fork();
  if (pid == 0)
    ::_exit(0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_FALSE(readable((*watch)->fd(), 0));
  watch->reset(); // ends although nobody will take the mutex
  EXPECT_EQ(page->words().armed.load(), 2U);
}

TEST(life_page, leaves_no_descriptor_behind) {
  const auto before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    auto page = life_page::make("di-test-life");
    auto watch = life_watch::start(page->words());
    ASSERT_TRUE(watch.ok());
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(progress_cell, counts_what_begins_and_ends_and_how_long_it_took) {
  progress_cell cell;
  {
    const progress_mark at{&cell, 0x0203};
    EXPECT_EQ(cell.phase.load(), 0x0203U);
    EXPECT_EQ(cell.count.load(), 1U);
    EXPECT_GT(cell.began_ns.load(), 0);
  }
  EXPECT_EQ(cell.phase.load(), 0U);
  EXPECT_EQ(cell.count.load(), 2U);
  std::uint32_t kept = 0;
  for (const auto& n : cell.took[progress_cell::slot_of(0x0203)])
    kept += n.load();
  EXPECT_EQ(kept, 1U);
  for (std::uint32_t i = 0; i < 3 * progress_cell::kept_max; ++i)
    const progress_mark at{&cell, 7};
  kept = 0;
  for (const auto& n : cell.took[progress_cell::slot_of(7)])
    kept += n.load();
  EXPECT_LT(kept, 2 * progress_cell::kept_max);
  const progress_mark nobody{nullptr, 7};
}

} // namespace di::launch
