// SPDX-License-Identifier: Apache-2.0
// Admission: order, quotas, room, deadlines, balance; and the deadline in JOURNAL.
#include "engine/core/admission.hpp"
#include "engine/core/journal_core.hpp"
#include "engine/core/scheduler_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;
using test::only, test::sent;

constexpr timer resend{1, 0};

proto::request_spec request(std::uint64_t id, std::size_t prompt = 3, std::uint32_t n = 1) {
  proto::request_spec spec;
  spec.request = request_id{id};
  spec.gateway = "/gateway/0";
  spec.prompt.assign(prompt, 1);
  spec.sampling.max_tokens = 4;
  spec.sampling.n = n;
  return spec;
}

/// A scheduler with its mail.
struct bench {
  explicit bench(scheduler_options o = {}, std::uint32_t ranks = 2) : core{o} {
    std::vector<placed_rank> all;
    for (std::uint32_t r = 0; r < ranks; ++r)
      all.push_back({rank_id{r}, incarnation{10 + r}});
    core.install_view(epoch{1}, all, now, out);
  }

  void admit(proto::request_spec spec, std::uint32_t attempt = 1) {
    proto::admit_request m;
    m.attempt = attempt;
    m.spec = std::move(spec);
    EXPECT_TRUE(core.on(m, now, out));
    core.check();
  }
  void load(std::uint32_t rank, std::uint32_t running, std::uint32_t waiting, std::uint64_t rows,
            std::uint64_t kv_total = 0, std::uint64_t done = 0) {
    proto::rank_load m;
    m.rank = rank_id{rank};
    m.life = incarnation{10 + rank};
    m.report = ++report;
    m.running = running;
    m.waiting = waiting;
    m.rows_pending = rows;
    m.kv_tokens_total = kv_total;
    m.rows_done = done;
    EXPECT_TRUE(core.on(m, now, out));
    core.check();
  }
  void take(std::uint64_t id, std::uint32_t rank) {
    EXPECT_TRUE(core.on(
        proto::request_taken{request_id{id}, 1, rank_id{rank}, incarnation{10 + rank}}, now, out));
    core.check();
  }
  void settle(std::uint64_t id, std::uint32_t rank, std::uint32_t attempt = 1) {
    EXPECT_TRUE(core.on(
        proto::request_settled{request_id{id}, attempt, rank_id{rank}, incarnation{10 + rank}}, now,
        out));
    core.check();
  }
  /// Requests that were assigned since the last call, as "id@rank".
  std::vector<std::string> assigned() {
    std::vector<std::string> found;
    for (const auto& [to, m] : sent<proto::assign_request>(out))
      found.push_back(std::to_string(m.spec.request.v) + "@" + to.substr(6, to.find('/', 6) - 6));
    out.take();
    return found;
  }

  scheduler_core core;
  outbox out;
  instant now;
  std::uint64_t report = 0;
};

using ids = std::vector<std::string>;

TEST(admission_queue, sets_priorities_ahead_by_a_bounded_time) {
  admission_queue q{seconds{2}};
  const auto order = [&] {
    std::vector<std::uint64_t> found;
    for (const queue_place& p : q.places())
      found.push_back(p.request.v);
    return found;
  };
  const auto at = [](int ms) { return instant{} + milliseconds{ms}; };
  q.add(request_id{1}, 0, at(0));
  q.add(request_id{2}, 1, at(1'000)); // 2 s ahead: before 1
  q.add(request_id{3}, 1, at(2'500)); // 500 ms too late to pass 1
  q.add(request_id{4}, -1, at(0));
  q.add(request_id{5}, 99, at(3'000)); // kept at 10: 20 s ahead
  q.add(request_id{6}, 10, at(3'000)); // the same, later
  EXPECT_EQ(order(), (std::vector<std::uint64_t>{5, 6, 2, 1, 3, 4}));
}

TEST(open_quota, counts_by_name_and_forgets_names_without_any) {
  open_quota q{4};
  EXPECT_TRUE(q.fits("a", 4));
  EXPECT_FALSE(q.fits("a", 5));
  q.take("a", 3);
  EXPECT_FALSE(q.fits("a", 2));
  EXPECT_TRUE(q.fits("b", 4));
  q.give_back("a", 3);
  EXPECT_EQ(q.names(), 0U);
  EXPECT_TRUE(open_quota{0}.fits("a", 1'000'000));
}

TEST(outstanding_work, grows_with_rows_their_context_and_sequences) {
  const work_weights k;
  EXPECT_EQ(outstanding_work({}, k), 0);
  EXPECT_EQ(outstanding_work({100, 0, 0}, k), 100);
  EXPECT_EQ(outstanding_work({100, 4'096, 0}, k), 200); // attention of a long prompt costs as much
  EXPECT_EQ(outstanding_work({100, 0, 2}, k), 100 + 2 * 64);
}

TEST(scheduler_core, prefers_the_rank_with_less_prefill_left) {
  bench b;
  b.load(0, 1, 0, 3'000);
  b.load(1, 20, 0, 0); // 20 sequences are worth 1,280 rows
  b.admit(request(1));
  EXPECT_EQ(b.assigned(), ids{"1@1"});
  b.load(0, 1, 0, 500); // most of the prompt is done
  b.admit(request(2));
  EXPECT_EQ(b.assigned(), ids{"2@0"});
}

TEST(scheduler_core, counts_what_it_gave_a_rank_until_a_report_does) {
  bench b;
  b.load(0, 0, 0, 0);
  b.load(1, 0, 0, 0);
  b.admit(request(1, 1'000));
  b.admit(request(2, 10));
  b.admit(request(3, 10)); // rank 0 still has its 1,000 rows, though no report says so
  EXPECT_EQ(b.assigned(), (ids{"1@0", "2@1", "3@1"}));
  b.load(0, 0, 0, 0); // sent before the rank had request 1
  b.admit(request(4, 10));
  EXPECT_EQ(b.assigned(), ids{"4@1"});
  b.take(1, 0);
  b.load(0, 1, 0, 0); // its prompt is done: one running sequence
  b.admit(request(5, 10));
  EXPECT_EQ(b.assigned(), ids{"5@0"});
}

TEST(scheduler_core, keeps_kv_room_and_lets_an_idle_rank_take_anything) {
  scheduler_options o;
  o.kv_percent = 100;
  o.expected_output_tokens = 100;
  bench b{o, 1};
  b.load(0, 0, 0, 0, 1'000);
  b.admit(request(1, 500)); // and 4 tokens of output
  b.admit(request(2, 400));
  b.admit(request(3, 100)); // 504 + 404 + 104 are too many
  EXPECT_EQ(b.assigned(), (ids{"1@0", "2@0"}));
  EXPECT_EQ(b.core.on(proto::get_schedule{}).value().queued, 1U);
  b.settle(2, 0);
  EXPECT_EQ(b.assigned(), ids{"3@0"});
  b.settle(1, 0);
  b.admit(request(4, 5'000)); // never fits beside another
  EXPECT_EQ(b.assigned(), ids{});
  b.settle(3, 0);
  EXPECT_EQ(b.assigned(), ids{"4@0"}); // the rank decides whether it can
}

TEST(scheduler_core, keeps_requests_back_while_many_wait_on_a_rank) {
  scheduler_options o;
  o.backlog_per_rank_max = 2;
  bench b{o, 1};
  for (std::uint64_t id = 1; id <= 4; ++id)
    b.admit(request(id));
  EXPECT_EQ(b.assigned(), (ids{"1@0", "2@0"}));
  b.take(1, 0);
  b.take(2, 0);
  b.load(0, 2, 0, 0); // both run
  EXPECT_EQ(b.assigned(), (ids{"3@0", "4@0"}));
  b.admit(request(5));
  b.take(3, 0);
  b.take(4, 0);
  b.load(0, 2, 2, 0);
  EXPECT_EQ(b.assigned(), ids{});
  b.load(0, 3, 1, 0);
  EXPECT_EQ(b.assigned(), ids{"5@0"});
}

TEST(scheduler_core, serves_higher_priorities_first) {
  scheduler_options o;
  o.assigned_per_rank_max = 1;
  bench b{o, 1};
  b.admit(request(1));
  EXPECT_EQ(b.assigned(), ids{"1@0"});
  auto low = request(2), high = request(3);
  low.priority = -3;
  high.priority = 2;
  b.admit(low);
  b.admit(high);
  b.admit(request(4));
  for (const char* next : {"3@0", "4@0", "2@0"}) {
    b.settle(next == std::string{"3@0"} ? 1 : next == std::string{"4@0"} ? 3 : 4, 0);
    EXPECT_EQ(b.assigned(), ids{next});
  }
}

TEST(scheduler_core, lets_no_more_than_a_bound_pass_a_request_without_room) {
  scheduler_options o;
  o.kv_percent = 100;
  o.overtakes_max = 3;
  bench b{o, 1};
  b.load(0, 0, 0, 0, 1'000);
  b.admit(request(1, 100));
  b.admit(request(2, 990)); // has no room beside any other
  for (std::uint64_t id = 3; id <= 8; ++id)
    b.admit(request(id, 10));
  EXPECT_EQ(b.assigned(), (ids{"1@0", "3@0", "4@0", "5@0"}));
  for (const std::uint64_t id : {1, 3, 4})
    b.settle(id, 0);
  EXPECT_EQ(b.assigned(), ids{});
  b.settle(5, 0);
  EXPECT_EQ(b.assigned(), ids{"2@0"}); // and it goes first once there is room
}

TEST(scheduler_core, refuses_what_passes_a_quota) {
  scheduler_options o;
  o.tenant_choices_max = 3;
  o.gateway_choices_max = 5;
  bench b{o, 1};
  auto a = request(1, 3, 2), more = request(2, 3, 2), other = request(3, 3, 3);
  a.tenant = more.tenant = "acme";
  other.tenant = "zeta";
  b.admit(a);
  b.out.take();
  b.admit(more);
  auto refused = only<proto::admission_refused>(b.out);
  EXPECT_EQ(refused.code, ec::limit_exceeded);
  EXPECT_EQ(refused.what, "tenant 'acme': 2 choices open and 2 more pass its quota of 3");
  b.out.take();
  b.admit(other);
  EXPECT_EQ(b.assigned(), ids{"3@0"});
  b.admit(request(4)); // of a third tenant, but its gateway has 5 already
  refused = only<proto::admission_refused>(b.out);
  EXPECT_EQ(refused.what, "gateway '/gateway/0': 5 choices open and 1 more pass its quota of 5");
  b.out.take();
  b.admit(request(5), 2); // was admitted before its rank died: never refused
  EXPECT_EQ(b.assigned(), ids{"5@0"});
  b.settle(1, 0);
  b.admit(more); // 3 and 1 are left at the gateway, and 2 are too many
  EXPECT_EQ(only<proto::admission_refused>(b.out).code, ec::limit_exceeded);
  b.settle(5, 0, 2);
  b.out.take();
  b.admit(more);
  EXPECT_EQ(b.assigned(), ids{"2@0"});
}

TEST(scheduler_core, ends_a_request_at_its_deadline_queued_or_assigned) {
  scheduler_options o;
  o.assigned_per_rank_max = 1;
  bench b{o, 1};
  auto first = request(1), second = request(2);
  first.deadline_ms = 100;
  second.deadline_ms = 80;
  b.admit(first);
  b.admit(second);
  b.admit(request(3));
  b.out.take();
  b.now = b.now + milliseconds{79};
  ASSERT_TRUE(b.core.on_due({2, 2}, b.now, b.out)); // too early: nothing
  EXPECT_TRUE(b.out.empty());
  b.now = b.now + milliseconds{1};
  ASSERT_TRUE(b.core.on_due({2, 2}, b.now, b.out));
  auto refused = only<proto::admission_refused>(b.out);
  EXPECT_EQ(refused.request, request_id{2});
  EXPECT_EQ(refused.code, ec::deadline_exceeded);
  EXPECT_EQ(refused.what, "request 2 was not done within 80 ms");
  EXPECT_TRUE(sent<proto::withdraw_request>(b.out).empty());
  b.out.take();
  b.now = b.now + milliseconds{20};
  ASSERT_TRUE(b.core.on_due({2, 1}, b.now, b.out));
  EXPECT_EQ(only<proto::withdraw_request>(b.out).request, request_id{1});
  EXPECT_EQ(only<proto::admission_refused>(b.out).request, request_id{1});
  EXPECT_EQ(b.assigned(), ids{"3@0"}); // its room is free
  b.core.check();
}

TEST(scheduler_core, asks_a_rank_again_once_its_state_has_changed) {
  bench b{{}, 1};
  b.load(0, 3, 3, 0);
  b.admit(request(1));
  b.admit(request(2));
  b.admit(request(3));
  EXPECT_EQ(b.assigned(), (ids{"1@0", "2@0", "3@0"}));
  const auto refuse = [&](std::uint64_t id, ec code) {
    ASSERT_TRUE(b.core.on(
        proto::assignment_refused{request_id{id}, 1, rank_id{0}, incarnation{10}, code, "no"},
        b.now, b.out));
    b.core.check();
  };
  refuse(1, ec::kv_exhausted); // the only rank, and it never will
  EXPECT_EQ(only<proto::admission_refused>(b.out).code, ec::kv_exhausted);
  b.out.take();
  refuse(2, ec::unavailable); // it cannot now, and nothing has changed since
  EXPECT_TRUE(sent<proto::admission_refused>(b.out).empty());
  EXPECT_EQ(b.assigned(), ids{});
  b.load(0, 0, 0, 0);
  EXPECT_EQ(b.assigned(), ids{"2@0"});
}

TEST(scheduler_core, asks_a_rank_again_after_a_while_in_case_its_report_was_lost) {
  bench b{{}, 1};
  b.load(0, 3, 3, 0);
  b.admit(request(1));
  EXPECT_EQ(b.assigned(), ids{"1@0"});
  for (int round = 0; round < 100; ++round) { // draining for long is no reason to fail a request
    ASSERT_TRUE(b.core.on(proto::assignment_refused{request_id{1}, 1, rank_id{0}, incarnation{10},
                                                    ec::unavailable, "rank 0 is draining"},
                          b.now, b.out));
    EXPECT_EQ(b.assigned(), ids{});
    b.now = b.now + milliseconds{500};
    ASSERT_TRUE(b.core.on_due({1, 0}, b.now, b.out));
    EXPECT_EQ(b.assigned(), ids{});
    b.now = b.now + milliseconds{500};
    ASSERT_TRUE(b.core.on_due({1, 0}, b.now, b.out));
    EXPECT_EQ(b.assigned(), ids{"1@0"});
    b.core.check();
  }
}

TEST(scheduler_core, waits_for_a_rank_that_refused_while_another_is_full) {
  scheduler_options o;
  o.assigned_per_rank_max = 1;
  bench b{o, 2};
  b.admit(request(1));
  b.admit(request(2));
  EXPECT_EQ(b.assigned(), (ids{"1@0", "2@1"}));
  ASSERT_TRUE(b.core.on(proto::assignment_refused{request_id{1}, 1, rank_id{0}, incarnation{10},
                                                  ec::unavailable, "no"},
                        b.now, b.out));
  EXPECT_EQ(b.assigned(), ids{}); // rank 1 is full, rank 0 has not changed
  b.load(0, 0, 0, 0);
  EXPECT_EQ(b.assigned(), ids{"1@0"});
}

TEST(scheduler_core, asks_a_rank_in_its_next_life_whatever_the_last_one_refused) {
  for (const ec code : {ec::kv_exhausted, ec::unavailable}) {
    scheduler_options o;
    o.assigned_per_rank_max = 1;
    bench b{o, 2};
    b.load(0, 0, 0, 0);
    b.admit(request(1));
    b.admit(request(2));
    EXPECT_EQ(b.assigned(), (ids{"1@0", "2@1"}));
    ASSERT_TRUE(b.core.on(
        proto::assignment_refused{request_id{1}, 1, rank_id{0}, incarnation{10}, code, "no"}, b.now,
        b.out));
    EXPECT_EQ(b.assigned(), ids{});
    const std::vector<placed_rank> again{{rank_id{0}, incarnation{99}},
                                         {rank_id{1}, incarnation{11}}};
    b.core.install_view(epoch{2}, again, b.now, b.out);
    EXPECT_EQ(b.assigned(), ids{"1@0"});
    b.core.check();
  }
}

TEST(scheduler_core, measures_the_balance_of_work) {
  bench b;
  EXPECT_EQ(b.core.on(proto::get_schedule{}).value().balance, 0);
  b.load(0, 0, 0, 0, 0, 300);
  b.load(1, 0, 0, 0, 0, 100);
  EXPECT_EQ(b.core.on(proto::get_schedule{}).value().balance, 1.5);
  double all = 0, busiest = 0;
  for (const any_effect& e : b.out.effects())
    if (const auto* c = std::get_if<effect::count>(&e)) {
      all += c->metric == "di_scheduler_rows_total" ? c->n : 0;
      busiest += c->metric == "di_scheduler_rows_of_busiest_rank" ? c->n : 0;
    }
  EXPECT_EQ(all, 400);
  EXPECT_EQ(busiest, 300);
}

TEST(journal_core, closes_a_request_by_a_timer_of_its_own) {
  journal_core core{{}};
  outbox out;
  auto spec = request(1);
  spec.deadline_ms = 30;
  ASSERT_TRUE(core.on(proto::open_request{spec}, {}, out));
  EXPECT_EQ(only<proto::admit_request>(out).deadline_left_ms, 30U);
  bool armed = false;
  for (const any_effect& e : out.effects())
    if (const auto* a = std::get_if<effect::arm>(&e))
      armed = armed || (a->which == timer{2, 1} && a->after == milliseconds{30});
  EXPECT_TRUE(armed);
  out.take();
  ASSERT_TRUE(core.on_due({2, 1}, instant{} + milliseconds{30}, out));
  EXPECT_EQ(only<proto::tokens_released>(out).end.code, ec::deadline_exceeded);
  EXPECT_EQ(only<proto::tokens_released>(out).end.what, "request 1 was not done within 30 ms");
  EXPECT_TRUE(only<proto::release_request>(out).withdraw);
  out.take();
  ASSERT_TRUE(core.on_due({2, 1}, instant{} + seconds{1}, out)); // once
  EXPECT_TRUE(out.empty());
  core.check();
}

TEST(journal_core, tells_the_scheduler_how_much_time_is_left) {
  journal_core core{{}};
  outbox out;
  auto spec = request(1);
  spec.deadline_ms = 1'000;
  ASSERT_TRUE(core.on(proto::open_request{spec}, {}, out));
  out.take();
  ASSERT_TRUE(core.on_due(resend, instant{} + milliseconds{400}, out));
  EXPECT_EQ(only<proto::admit_request>(out).deadline_left_ms, 600U);
}

} // namespace
} // namespace di::engine
