// SPDX-License-Identifier: Apache-2.0
// Log lines as events, and triggers that wait for them.
#include "chaos/run_log.hpp"
#include "chaos/triggers.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace di::chaos {
namespace {

TEST(run_log, reads_a_line_of_a_process) {
  const auto e =
      parse_log_line("[control] 2026-11-30T05:13:26.979821Z info /control view_committed "
                     "view=3 lives=0:a,1:b what=\"a \\\"b\\\" c\" mono_us=26042464805");
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->process, "/control");
  EXPECT_EQ(e->name, "view_committed");
  EXPECT_EQ(e->number("view"), 3);
  EXPECT_EQ(e->field("what"), "a \"b\" c");
  EXPECT_EQ(e->mono_us, 26042464805);
  EXPECT_EQ(e->wall_us, 1796015606979821);
  EXPECT_FALSE(e->number("lives").has_value());
  EXPECT_FALSE(e->number("none").has_value());
}

TEST(run_log, takes_no_other_text_for_an_event) {
  EXPECT_FALSE(parse_log_line("[dilaunch] all 5 processes are ready").has_value());
  EXPECT_FALSE(parse_log_line("[rank 3").has_value());
  EXPECT_FALSE(parse_log_line("").has_value());
  EXPECT_FALSE(parse_log_line("dilaunch: rank 3 (pid 1): killed by signal 9").has_value());
}

TEST(run_log, finds_the_counts_of_progress) {
  const auto e =
      parse_log_line("2026-11-30T05:13:27.100395Z info /control batch_progress text=\"3/20 "
                     "prompts, 17 open, 0 failed, 57 tokens, 472.4 tokens/s\" mono_us=1");
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(progress_tokens(*e), 57U);
  EXPECT_EQ(progress_finished(*e), 3U);
}

log_event event(std::string name, std::map<std::string, std::string, std::less<>> fields = {}) {
  return {1, "/control", "info", std::move(name), std::move(fields)};
}

struct trigger_fixture {
  explicit trigger_fixture(std::vector<fault> faults) {
    p.faults = std::move(faults);
    t = std::make_unique<triggers>(p, loop, [this](std::size_t n, bool) { struck.push_back(n); });
  }
  plan p;
  launch::poll_loop loop;
  std::vector<std::size_t> struck;
  std::unique_ptr<triggers> t;
};

fault when(trigger_kind kind, std::uint64_t count, std::string name = {}) {
  fault f;
  f.trigger = {kind, {}, count, std::move(name)};
  return f;
}

TEST(triggers, strike_once_when_their_count_is_passed) {
  trigger_fixture f{{when(trigger_kind::tokens, 50), when(trigger_kind::view, 2)}};
  const auto progress = [](int n) {
    return event("batch_progress",
                 {{"text", "0/2 prompts, 1 open, 0 failed, " + std::to_string(n) + " tokens, 1"}});
  };
  f.t->see(progress(50));
  EXPECT_TRUE(f.struck.empty());
  f.t->see(progress(51));
  f.t->see(progress(52));
  EXPECT_EQ(f.struck, std::vector<std::size_t>{0});
  f.t->see(event("view_committed", {{"view", "1"}}));
  EXPECT_EQ(f.t->waiting(), 1U);
  f.t->see(event("view_committed", {{"view", "2"}}));
  EXPECT_EQ(f.struck, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(f.t->waiting(), 0U);
}

TEST(triggers, of_events_wait_for_the_fault_before) {
  trigger_fixture f{{when(trigger_kind::view, 2), when(trigger_kind::event, 0, "member_lost")}};
  f.t->see(event("member_lost"));
  EXPECT_TRUE(f.struck.empty());
  f.t->see(event("view_committed", {{"view", "2"}}));
  f.t->see(event("member_lost"));
  EXPECT_EQ(f.struck, (std::vector<std::size_t>{0, 1}));
}

TEST(triggers, of_a_whole_group_come_again_with_every_return) {
  plan p;
  fault whole = when(trigger_kind::whole, 0);
  whole.times = 2;
  p.faults = {whole};
  launch::poll_loop loop;
  const auto view = [](const char* members) {
    return event("view_committed", {{"view", "1"}, {"members", members}});
  };
  std::size_t struck = 0;
  triggers* all = nullptr;
  triggers t{p, loop, [&](std::size_t, bool) {
               ++struck;
               all->see(view("7"));
               all->see(view("8"));
               if (struck == 2) // once more than planned would come before this
                 loop.at(launch::poll_loop::clock::now(), [&] { loop.stop(); });
             }};
  all = &t;
  t.see(view("8")); // the first one: nobody works yet
  t.see(event("batch_began"));
  loop.at(launch::poll_loop::clock::now() + std::chrono::seconds{20}, [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(struck, 2U);
  EXPECT_EQ(t.waiting(), 0U);
}

TEST(triggers, by_time_begin_with_the_batch_and_repeat) {
  plan p;
  fault timed;
  timed.trigger.at = std::chrono::milliseconds{1};
  timed.times = 3;
  timed.every = std::chrono::milliseconds{1};
  p.faults = {timed};
  launch::poll_loop loop;
  std::size_t struck = 0;
  triggers t{p, loop, [&](std::size_t, bool) {
               if (++struck == 3)
                 loop.stop();
             }};
  t.see(event("batch_began"));
  EXPECT_EQ(struck, 0U);
  loop.at(launch::poll_loop::clock::now() + std::chrono::seconds{20}, [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(struck, 3U);
  EXPECT_EQ(t.waiting(), 0U);
}

TEST(triggers, wait_until_a_fault_has_struck_as_often_as_it_should) {
  plan p;
  fault timed;
  timed.trigger.at = std::chrono::milliseconds{1};
  timed.times = 3;
  timed.every = std::chrono::milliseconds{1};
  p.faults = {timed};
  launch::poll_loop loop;
  std::size_t struck = 0;
  triggers* itself = nullptr;
  triggers t{p, loop, [&](std::size_t, bool) {
               if (++struck < 2)
                 return;
               itself->stop(); // the run ended before the third
               loop.at(launch::poll_loop::clock::now() + std::chrono::milliseconds{20},
                       [&] { loop.stop(); });
             }};
  itself = &t;
  t.see(event("batch_began"));
  loop.run();
  EXPECT_EQ(struck, 2U);
  EXPECT_EQ(t.waiting(), 1U);
}

} // namespace
} // namespace di::chaos
