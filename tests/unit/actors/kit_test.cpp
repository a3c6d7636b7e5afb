// SPDX-License-Identifier: Apache-2.0
// Every handler form that kit.hpp promises, through real shells on fake time.
#include "actors/kit.hpp"
#include "tests/support/deterministic_system.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <stdexcept>

namespace {

using namespace std::chrono_literals;
using di::test::answer_as;
using di::test::deterministic_system;
using di::test::refusal;

struct add {
  static constexpr di::wire_id wire{0x8101};
  std::uint64_t n = 0;
  DI_FIELDS(add, m.n)
};
struct get_sum {
  static constexpr di::wire_id wire{0x8102};
  DI_FIELDS(get_sum)
};
struct sum {
  static constexpr di::wire_id wire{0x8103};
  std::uint64_t n = 0;
  DI_FIELDS(sum, m.n)
};
struct get_sum_later {
  static constexpr di::wire_id wire{0x8104};
  std::uint64_t after_ms = 0;
  DI_FIELDS(get_sum_later, m.after_ms)
};
struct relay_sum {
  static constexpr di::wire_id wire{0x8105};
  di::address of;
  DI_FIELDS(relay_sum, m.of)
};
struct explode {
  static constexpr di::wire_id wire{0x8106};
  DI_FIELDS(explode)
};

/// Uses all forms but the catch-all.
class adder_core {
public:
  explicit adder_core(const di::actor_config& cfg) : max_{cfg.u64("max", 100)} {}

  void start(di::instant, di::outbox& out) { out.count("di_adder_starts_total"); }

  di::result<void> on(const add& m) {
    if (sum_ + m.n > max_)
      return di::fail(di::ec::limit_exceeded, "max={}", max_);
    sum_ += m.n;
    return {};
  }
  di::result<sum> on(const get_sum&, const di::origin& from, di::instant, di::outbox& out) const {
    out.count("di_adder_questions_total");
    if (from.from == "/stranger")
      return di::fail(di::ec::refused, "not to {}", from.from);
    return sum{sum_};
  }
  di::result<void> on(const get_sum_later& m, const di::reply_to& ticket, di::instant,
                      di::outbox& out) {
    if (m.after_ms == 0)
      return di::fail(di::ec::bad_argument, "after_ms=0");
    waiting_[++tickets_] = ticket;
    out.arm({1, tickets_}, std::chrono::milliseconds{m.after_ms});
    return {};
  }
  void on_due(di::timer t, di::instant, di::outbox& out) {
    out.reply(waiting_.at(t.key), sum{sum_});
  }

  di::result<void> on(const relay_sum& m, const di::reply_to& ticket, di::instant,
                      di::outbox& out) {
    waiting_[++tickets_] = ticket;
    out.request(m.of, get_sum_later{50}, tickets_, 100ms);
    return {};
  }
  void on_answer(std::uint64_t tag, di::result<di::parcel> answer, di::instant, di::outbox& out) {
    if (!answer)
      out.refuse(waiting_.at(tag), answer.error());
    else
      out.reply(waiting_.at(tag), *answer->as<sum>());
  }
  void on(const explode&) { throw std::runtime_error{"boom 7"}; }

private:
  std::uint64_t max_, sum_ = 0, tickets_ = 0;
  std::map<std::uint64_t, di::reply_to> waiting_;
};

struct adder {
  static constexpr auto kind = "adder";
  using core = adder_core;
  using protocol = di::protocol<di::reacts_to<add>, di::replies_to<get_sum>::with<sum>,
                                di::replies_to<get_sum_later>::with<sum>,
                                di::replies_to<relay_sum>::with<sum>, di::reacts_to<explode>>;
};

class sponge_core {
public:
  void on_any(const di::parcel& p, const di::origin&, di::instant, di::outbox& out) {
    out.send("/test", add{p.id().v});
  }
};
struct sponge {
  static constexpr auto kind = "sponge";
  using core = sponge_core;
  using protocol = di::protocol<>;
};

struct kit : ::testing::Test {
  kit() {
    types.add(di::actor_type_of<adder>()).value();
    types.add(di::actor_type_of<sponge>()).value();
    di::actors::spawn_options options;
    options.ended = [this](const di::error& e) { ended = e; };
    world.system.spawn(types, "adder", "/a", {{"max", "10", ""}}, options).value();
    world.run();
  }
  double counted(const char* metric) { return world.system.counters().total(metric); }

  di::actors::registry types;
  std::optional<di::error> ended;
  deterministic_system world; // ends first
};

TEST_F(kit, handles_commands_and_questions) {
  world.tell("/a", add{3}).value();
  world.tell("/a", add{4}).value();
  const auto mail = world.ask("/a", get_sum{});
  ASSERT_NE(answer_as<sum>(mail), nullptr);
  EXPECT_EQ(answer_as<sum>(mail)->n, 7U);
  EXPECT_EQ(counted("di_adder_starts_total"), 1);
  EXPECT_EQ(counted("di_adder_questions_total"), 1);
}

TEST_F(kit, ends_with_the_error_of_a_command_and_frees_the_path) {
  world.office.watch("/a", "/test").value();
  world.tell("/a", add{11}).value();
  world.run();
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->render(), "limit_exceeded: max=10");
  EXPECT_EQ(world.tell("/a", add{1}).error().code, di::ec::not_found);
  EXPECT_TRUE(world.system.paths().empty());
  EXPECT_TRUE(world.system.spawn(types, "adder", "/a", {}).ok());
}

TEST_F(kit, answers_an_erring_question_with_its_error_and_lives) {
  const auto mail = world.ask("/a", get_sum_later{0});
  EXPECT_EQ(refusal(mail).render(), "bad_argument: after_ms=0");
  EXPECT_FALSE(ended.has_value());
}

TEST_F(kit, answers_later_when_a_timer_is_due) {
  EXPECT_FALSE(world.ask("/a", get_sum_later{40}).has_value());
  int answers = 0;
  world.office.unbind("/test", {});
  world.office.bind("/test", [&](const di::envelope& m) { answers += m.body.as<sum>() != nullptr; })
      .value();
  world.advance(39ms);
  EXPECT_EQ(answers, 0);
  world.advance(1ms);
  EXPECT_EQ(answers, 1);
}

TEST_F(kit, relays_through_requests_of_its_own) {
  world.system.spawn(types, "adder", "/b", {}).value();
  world.tell("/b", add{5}).value();
  di::envelope got;
  world.office.unbind("/test", {});
  world.office.bind("/test", [&](const di::envelope& m) { got = m; }).value();
  di::envelope question;
  question.to = "/a";
  question.from = "/test";
  question.kind = di::mail_kind::request;
  question.request = world.office.number();
  question.body = di::parcel::of(relay_sum{"/b"});
  world.office.post(question).value();
  world.run();
  world.advance(50ms);
  ASSERT_NE(got.body.as<sum>(), nullptr);
  EXPECT_EQ(got.body.as<sum>()->n, 5U);
  EXPECT_EQ(got.request, question.request);
}

TEST_F(kit, tells_a_request_that_it_cannot_be_sent) {
  EXPECT_FALSE(world.ask("/a", relay_sum{"/nobody"}).has_value()); // told at the next wake
  world.advance(0ms);
  EXPECT_FALSE(ended.has_value());
  EXPECT_EQ(counted("di_shell_mails_sent_total"), 2); // the request and its refusal
}

TEST_F(kit, ends_a_request_at_its_deadline_and_drops_the_late_answer) {
  std::optional<di::envelope> got;
  world.office.bind("/mute", [](const di::envelope&) {}).value();
  world.ask("/a", relay_sum{"/mute"});
  world.office.unbind("/test", {});
  world.office.bind("/test", [&](const di::envelope& m) { got = m; }).value();
  world.advance(99ms);
  EXPECT_FALSE(got.has_value());
  world.advance(1ms);
  EXPECT_EQ(refusal(got).render(), "deadline_exceeded: no answer from /mute");
  di::envelope late;
  late.to = "/a";
  late.kind = di::mail_kind::reply;
  late.request = 2; // the number that the relay's request got
  late.body = di::parcel::of(sum{1});
  world.office.post(late).value();
  world.run();
  EXPECT_EQ(counted("di_shell_stale_answers_total"), 1);
}

TEST_F(kit, keeps_the_text_of_an_exception) {
  world.tell("/a", explode{}).value();
  world.run();
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->render(), "internal: exception: boom 7");
}

TEST_F(kit, refuses_what_the_protocol_does_not_have) {
  EXPECT_EQ(refusal(world.ask("/a", sum{1})).render(), "unknown_message: /a takes no sum (0x8103)");
  EXPECT_EQ(refusal(world.ask("/a", add{1})).render(), "bad_argument: add is no question to /a");
  EXPECT_EQ(counted("di_shell_unknown_messages_total"), 1);
  EXPECT_FALSE(ended.has_value());
}

TEST_F(kit, gives_all_mail_to_a_catch_all) {
  world.system.spawn(types, "sponge", "/s", {}).value();
  world.run();
  std::uint64_t seen = 0;
  world.office.unbind("/test", {});
  world.office.bind("/test", [&](const di::envelope& m) { seen = m.body.as<add>()->n; }).value();
  world.tell("/s", sum{1}).value();
  world.run();
  EXPECT_EQ(seen, sum::wire.v);
}

TEST_F(kit, refuses_a_taken_path) {
  EXPECT_EQ(world.system.spawn(types, "adder", "/a", {}).error().code, di::ec::duplicate);
  world.run();
  EXPECT_TRUE(world.tell("/a", add{1}).ok()); // the first one lives on
}

TEST_F(kit, stops_after_the_mail_at_hand) {
  world.tell("/a", add{2}).value();
  world.system.stop("/a", {di::ec::cancelled, "test"});
  world.run();
  EXPECT_EQ(ended->render(), "cancelled: test");
  EXPECT_EQ(counted("di_shell_mails_total"), 1);
}

TEST(kit_threads, runs_actors_on_real_threads_and_ends_them_all) {
  di::test::local_office office;
  std::promise<std::uint64_t> answer;
  office.bind("/test", [&](const di::envelope& m) { answer.set_value(m.body.as<sum>()->n); })
      .value();
  di::actors::registry types;
  types.add(di::actor_type_of<adder>()).value();
  di::actors::system system{{}, office};
  std::atomic<int> ended{0};
  for (const bool detached : {false, true}) {
    di::actors::spawn_options options;
    options.detached = detached;
    options.ended = [&](const di::error& e) { ended += e.code == di::ec::ok; };
    system.spawn(types, "adder", detached ? "/d" : "/p", {}, options).value();
  }
  di::envelope mail;
  mail.from = "/test";
  mail.to = "/d";
  mail.kind = di::mail_kind::request;
  mail.request = 1;
  mail.body = di::parcel::of(relay_sum{"/p"});
  office.post(mail).value();
  auto got = answer.get_future();
  ASSERT_EQ(got.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(got.get(), 0U);
  EXPECT_TRUE(system.stop_all(10s));
  EXPECT_EQ(ended.load(), 2);
}

} // namespace
