// SPDX-License-Identifier: Apache-2.0
// What counts as a hang, and what does not.
#include "launch/progress_watch.hpp"
#include "launch/stuck_core.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace di::launch {
namespace {

constexpr std::int64_t ms = 1'000'000;

/// A process in virtual time, looked at every 25 ms.
struct world {
  stuck_core core{stuck_options{}};
  std::int64_t now = 1'000 * ms;
  cell_view cell;
  bool stopped = false, disk = false, ready = false;
  std::int64_t faults = 0, asking = 0; ///< [ns] that a question takes
  double delayed = 0, running = 0;     ///< share of time
  std::optional<std::int64_t> p99 = 2 * ms;
  std::int64_t cpu = 0, delay = 0;
  int asked = 0;

  void begin(std::uint32_t phase = 7) { cell = {cell.count + 1, phase, now}; }
  void end() { cell = {cell.count + 1, 0, 0}; }
  std::optional<stuck_report> look(std::int64_t step = 25 * ms) {
    now += step;
    cpu += static_cast<std::int64_t>(static_cast<double>(step) * running);
    delay += static_cast<std::int64_t>(static_cast<double>(step) * delayed);
    return core.look(
        now, std::span{&cell, 1}, stopped,
        [&] {
          ++asked;
          return process_view{{{1, {cpu, delay, faults, ready}}, {2, {}}}, disk, now, now + asking};
        },
        [&](std::size_t) { return p99; });
  }
  /// Until a report or the end of a span. @return [ms] until the report, or -1
  std::int64_t stuck_within(std::int64_t span_ms) {
    const auto began = now;
    while (now - began < span_ms * ms)
      if (look())
        return (now - began) / ms;
    return -1;
  }
};

} // namespace

TEST(stuck_core, finds_a_deadlock_within_400_ms) {
  world w;
  w.look();
  w.begin();
  const auto took = w.stuck_within(1'000);
  EXPECT_GT(took, 250);
  EXPECT_LE(took, 400);
}

TEST(stuck_core, finds_a_stopped_process_within_400_ms_even_if_it_is_idle) {
  for (const bool busy : {false, true}) {
    world w;
    w.look();
    if (busy)
      w.begin();
    w.stopped = true;
    const auto took = w.stuck_within(1'000);
    EXPECT_GE(took, 250);
    EXPECT_LE(took, 400);
  }
}

TEST(stuck_core, lets_a_process_live_that_every_look_finds_stopped_and_that_runs_in_between) {
  world w;
  w.look();
  w.stopped = true;
  w.running = 0.1;
  EXPECT_EQ(w.stuck_within(10'000), -1);
  w.running = 0;
  EXPECT_LE(w.stuck_within(1'000), 600);
}

TEST(stuck_core, reports_an_endless_loop_on_busy_processors_too) {
  world w;
  w.begin();
  w.running = 0.25;
  w.delayed = 0.75;
  const auto took = w.stuck_within(10'000);
  EXPECT_GT(took, 4'000);
  EXPECT_LE(took, 4'400);
}

TEST(stuck_core, gives_a_thread_that_computes_four_limits) {
  world w;
  w.begin();
  w.running = 1;
  w.ready = true;
  const auto took = w.stuck_within(10'000);
  EXPECT_GT(took, 1'000);
  EXPECT_LE(took, 1'200);
}

TEST(stuck_core, excuses_a_wait_for_a_processor_that_the_kernel_has_not_told_yet) {
  world w;
  w.begin();
  w.ready = true; // and neither runs nor is told to have waited
  EXPECT_EQ(w.stuck_within(20'000), -1);
  w.ready = false; // it slept since: its wait is told now, all at once
  w.delay += 20'000 * ms;
  const auto took = w.stuck_within(1'000);
  EXPECT_GE(took, 250);
  EXPECT_LE(took, 400);
}

TEST(stuck_core, excuses_no_more_than_the_span_in_which_a_wait_was_told) {
  world w;
  w.begin();
  EXPECT_EQ(w.stuck_within(150), -1);
  w.delay += 500 * ms;
  EXPECT_LE(w.stuck_within(1'000), 300);
}

TEST(stuck_core, excuses_pages_that_are_read_from_a_disk) {
  world w;
  w.begin();
  for (int i = 0; i < 300; ++i) {
    ++w.faults; // asleep again whenever it is looked at
    EXPECT_FALSE(w.look());
  }
  EXPECT_GT(w.stuck_within(1'000), 200);
}

TEST(stuck_core, does_not_count_the_time_that_a_question_takes) {
  world w;
  w.begin();
  w.asking = 20 * ms;
  EXPECT_GT(w.stuck_within(5'000), 400);
}

TEST(stuck_core, hardly_counts_looks_that_are_late_but_finds_a_deadlock_on_a_busy_host_at_last) {
  world w;
  w.begin();
  const auto began = w.now;
  while (!w.look(45 * ms) && w.now - began < 60'000 * ms) {
  }
  EXPECT_GT(w.now - began, 2'000 * ms);
  EXPECT_LT(w.now - began, 6'000 * ms);
}

TEST(stuck_core, never_expels_a_process_that_the_processors_keep_waiting) {
  for (const std::int64_t pause_ms : {100, 200, 300, 400, 3'000}) {
    world w;
    for (int i = 0; i < 50; ++i) {
      w.begin();
      w.delayed = 0.98;
      w.running = 0.02;
      EXPECT_EQ(w.stuck_within(pause_ms), -1) << pause_ms;
      w.end();
      w.look();
    }
  }
}

TEST(stuck_core, never_expels_a_process_at_a_tenth_of_its_speed) {
  for (const std::int64_t usual_ms : {1, 5, 20, 24}) {
    world w;
    w.p99 = usual_ms * ms;
    w.running = 1;
    for (int i = 0; i < 100; ++i) {
      w.begin();
      EXPECT_EQ(w.stuck_within(10 * usual_ms), -1) << usual_ms;
    }
  }
}

TEST(stuck_core, knows_the_limits_of_phases) {
  world slow;
  slow.p99 = 200 * ms;
  slow.begin();
  const auto took = slow.stuck_within(5'000);
  EXPECT_GT(took, 1'200);
  EXPECT_LE(took, 1'400);
  world unknown;
  unknown.p99.reset();
  unknown.begin();
  EXPECT_GT(unknown.stuck_within(5'000), 2'000);
}

TEST(stuck_core, does_not_count_late_looks) {
  world w;
  w.begin();
  for (int i = 0; i < 4; ++i) // the watcher itself was not run
    EXPECT_FALSE(w.look(1'000 * ms));
  EXPECT_LE(w.stuck_within(400), 300);
  world stopped;
  stopped.look();
  stopped.stopped = true;
  EXPECT_FALSE(stopped.look(30'000 * ms)); // the host slept
}

TEST(stuck_core, excuses_disks_for_a_while) {
  world w;
  w.begin();
  w.disk = true;
  EXPECT_EQ(w.stuck_within(9'000), -1);
  EXPECT_GT(w.stuck_within(5'000), 0);
}

TEST(stuck_core, asks_the_kernel_seldom_and_repeats_itself_once_a_second) {
  world w;
  for (int i = 0; i < 1'000; ++i) {
    w.begin();
    w.look();
    w.end();
  }
  EXPECT_EQ(w.asked, 0);
  w.begin();
  int reports = 0;
  for (int i = 0; i < 40 * 5; ++i)
    reports += w.look() ? 1 : 0;
  EXPECT_GE(reports, 4);
  EXPECT_LE(reports, 5);
}

TEST(process_view, tells_who_runs_and_who_sleeps) {
  const auto busy = process_view_of(::getpid());
  ASSERT_TRUE(busy.threads.count(::getpid()));
  EXPECT_TRUE(busy.threads.at(::getpid()).ready);
  EXPECT_GT(busy.threads.at(::getpid()).cpu_ns, 0);
  EXPECT_GE(busy.ended_ns, busy.began_ns);
  const auto pid = ::fork();
  if (pid == 0)
    while (true)
      ::pause();
  bool slept = false;
  for (int i = 0; i < 20'000 && !slept; ++i) { // until it has come to its pause
    ::poll(nullptr, 0, 1);
    const auto there = process_view_of(pid);
    slept = there.threads.count(pid) && !there.threads.at(pid).ready;
  }
  EXPECT_TRUE(slept);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(process_view_of(pid).threads.empty());
}

TEST(stuck_core, lets_a_process_that_comes_on_begin_anew) {
  world w;
  w.begin();
  EXPECT_EQ(w.stuck_within(200), -1);
  w.begin();
  EXPECT_EQ(w.stuck_within(200), -1);
  w.end();
  EXPECT_EQ(w.stuck_within(2'000), -1);
}

} // namespace di::launch
