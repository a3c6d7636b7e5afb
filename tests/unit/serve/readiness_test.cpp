// SPDX-License-Identifier: Apache-2.0
// When a gateway says that it is ready, and why it is not.
#include "launch/serve/readiness.hpp"
#include "messaging/proto/keeper.hpp"
#include "tests/support/sent_mail.hpp"
#include "tests/support/serve_world.hpp"

#include <gtest/gtest.h>

namespace di::serve {
namespace {

using test::fake_desk;

const instant now{1'000'000'000};

struct gateway {
  std::shared_ptr<readiness> state;
  std::shared_ptr<fake_desk> desk = std::make_shared<fake_desk>();
  probe_core probe;
  int told = 0;
  std::uint64_t asked = 0;

  explicit gateway(bool recovering = false)
      : state{std::make_shared<readiness>(2, recovering)}, probe{options()} {
    state->on_ready([this] { ++told; });
    outbox out;
    probe.start(now, out);
    ++asked;
  }
  probe_options options() const {
    probe_options o;
    o.state = state;
    o.desk = desk;
    o.token = 7;
    return o;
  }
  /// One question and its answer; ranks below 0: there is none.
  void look(int ranks) { look(ranks, ranks); }
  /// @param alive  ranks that KEEPER calls members
  void look(int ranks, int alive) {
    outbox out;
    probe.on_due({1, 0}, now, out);
    ++asked;
    if (ranks < 0)
      return probe.on_answer(asked, fail(ec::peer_lost, "gone"), now, out);
    proto::schedule s;
    s.ranks.resize(static_cast<std::size_t>(ranks));
    probe.on_answer(asked, parcel::of(std::move(s)), now, out);
    proto::keeper_state k;
    k.ranks.resize(static_cast<std::size_t>(ranks));
    for (int i = 0; i < ranks; ++i)
      k.ranks[static_cast<std::size_t>(i)].state = i < alive ? "member" : "waiting";
    probe.on_answer(asked | std::uint64_t{1} << 63, parcel::of(std::move(k)), now, out);
  }
  void answer(proto::finish_reason reason) {
    proto::tokens_released m;
    m.tokens = {1};
    m.end.reason = reason;
    m.end.what = "no room";
    desk->orders.back().ear->tokens(m);
  }
};

} // namespace

TEST(readiness, comes_with_ranks_and_one_token) {
  gateway g;
  EXPECT_FALSE(g.state->health().why.empty());
  EXPECT_EQ(g.state->health().phase, "loading");
  g.state->processes(2, 4, "rank 0, rank 1");
  EXPECT_EQ(g.state->health().progress, 0.5);
  EXPECT_EQ(g.state->health().why, "2 of 4 processes are ready; missing: rank 0, rank 1");
  g.look(0);
  EXPECT_TRUE(g.desk->orders.empty()) << "a request before there are ranks";
  g.state->processes(4, 4, "");
  g.look(2);
  ASSERT_EQ(g.desk->orders.size(), 1U);
  EXPECT_EQ(g.desk->orders[0].what.spec.sampling.max_tokens, 1U);
  g.look(2);
  EXPECT_EQ(g.desk->orders.size(), 1U) << "one at a time";
  EXPECT_EQ(g.state->health().phase, "proving");
  EXPECT_EQ(g.told, 0);
  g.answer(proto::finish_reason::length);
  EXPECT_TRUE(g.state->health().ready);
  EXPECT_TRUE(g.state->health().why.empty());
  EXPECT_EQ(g.told, 1);
}

TEST(readiness, tries_again_when_its_token_does_not_come) {
  gateway g;
  g.look(2);
  g.answer(proto::finish_reason::error);
  EXPECT_EQ(g.state->health().why, "the first token did not come: no room");
  g.look(2);
  ASSERT_EQ(g.desk->orders.size(), 2U);
  g.desk->orders[1].ear->ended({proto::finish_reason::error, -1, 0, ec::unavailable, "full"}, 0);
  EXPECT_EQ(g.state->health().why, "the first token did not come: full");
  g.look(2);
  g.answer(proto::finish_reason::stop);
  EXPECT_TRUE(g.state->health().ready);
}

TEST(readiness, goes_while_control_or_ranks_are_away) {
  gateway g;
  g.look(2);
  g.answer(proto::finish_reason::length);
  g.look(-1);
  EXPECT_FALSE(g.state->health().ready);
  EXPECT_TRUE(g.state->health().started);
  EXPECT_EQ(g.state->health().phase, "recovering");
  EXPECT_EQ(g.state->health().why, "the control process does not answer: gone");
  g.look(0);
  EXPECT_EQ(g.state->health().why, "no rank may be used now");
  g.look(1);
  EXPECT_TRUE(g.state->health().ready);
  EXPECT_EQ(g.state->health().ranks_ready, 1U);
  EXPECT_EQ(g.told, 1) << "told once";
}

TEST(readiness, takes_no_late_failure_for_silence) {
  gateway g;
  g.look(2);
  g.answer(proto::finish_reason::length);
  outbox out;
  g.probe.on_answer(1, fail(ec::deadline_exceeded, "late"), now, out);
  EXPECT_TRUE(g.state->health().ready);
}

TEST(readiness, of_a_later_life_needs_no_proof) {
  gateway g{true};
  g.look(2);
  EXPECT_TRUE(g.desk->orders.empty());
  EXPECT_TRUE(g.state->health().ready);
  EXPECT_EQ(g.told, 1);
}

TEST(readiness, goes_while_either_of_its_sources_is_silent) {
  gateway g{true};
  g.look(2);
  ASSERT_TRUE(g.state->health().ready);
  proto::keeper_state k;
  k.ranks.resize(2);
  k.ranks[0].state = k.ranks[1].state = "member";
  const std::uint64_t of_keeper = std::uint64_t{1} << 63;
  outbox out;
  g.probe.on_due({1, 0}, now, out);
  ++g.asked;
  g.probe.on_answer(g.asked | of_keeper, parcel::of(k), now, out);
  g.probe.on_answer(g.asked, fail(ec::deadline_exceeded, "SCHEDULER hangs"), now, out);
  EXPECT_FALSE(g.state->health().ready);
  g.probe.on_due({1, 0}, now, out);
  ++g.asked;
  g.probe.on_answer(g.asked | of_keeper, parcel::of(k), now, out);
  EXPECT_FALSE(g.state->health().ready) << "KEEPER alone is not enough";
  g.look(2);
  EXPECT_TRUE(g.state->health().ready);
}

TEST(readiness, goes_while_the_ranks_of_the_view_are_dead) {
  gateway g{true};
  g.look(2);
  EXPECT_TRUE(g.state->health().ready);
  g.look(2, 0);
  EXPECT_FALSE(g.state->health().ready);
  EXPECT_EQ(g.state->health().why, "no rank may be used now");
  g.look(2, 1);
  EXPECT_TRUE(g.state->health().ready);
}

TEST(readiness, ends_with_a_drain) {
  gateway g{true};
  g.look(2);
  g.state->drain();
  EXPECT_FALSE(g.state->health().ready);
  EXPECT_TRUE(g.state->health().draining);
  g.look(2);
  EXPECT_EQ(g.state->health().phase, "draining");
}

} // namespace di::serve
