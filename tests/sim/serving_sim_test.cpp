// SPDX-License-Identifier: Apache-2.0
// All cores of serving over a network that loses, repeats and reorders: every request ends, with
// the tokens that one machine alone would give, each exactly once.
#include "actors/serving.hpp"
#include "chaos/sim_client.hpp"
#include "chaos/sim_toy_actors.hpp"
#include "messaging/proto/membership.hpp"
#include "tests/sim/sim_network.hpp"

#include <gtest/gtest.h>

#include <set>

namespace di::test {
namespace {

namespace toy = sim::toy;
using sim::toy_expert_loader;
using sim::toy_expert_runner;
using sim::toy_rank;
using sim::toy_rank_core;

std::vector<proto::request_spec> some_requests(std::mt19937_64& random) {
  std::vector<proto::request_spec> all(1 + random() % 8);
  std::uint64_t number = 0;
  for (proto::request_spec& spec : all) {
    spec.request = request_id{++number};
    spec.gateway = "/gateway/0";
    spec.prompt.resize(1 + random() % 20);
    for (token_id& t : spec.prompt)
      t = static_cast<token_id>(random() % toy::vocab);
    spec.sampling.n = 1 + random() % 2;
    spec.sampling.max_tokens = 1 + static_cast<std::uint32_t>(random() % 12);
    spec.sampling.seed = random();
    spec.sampling.logprobs = random() % 2 ? 0 : -1;
    spec.priority = static_cast<std::int32_t>(random() % 5) - 2;
    spec.tenant = random() % 2 ? "a" : "b";
    if (random() % 8 == 0)
      spec.deadline_ms = 1 + random() % 600;
  }
  return all;
}

struct totals {
  std::uint64_t lost = 0, repeated = 0, tokens = 0, cancelled = 0, preempted = 0, loads = 0,
                late = 0;
};

void run_seed(std::uint64_t seed, totals& sum) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random{seed};
  network_habits habits;
  if (seed % 4 != 0) {
    habits.loss = static_cast<double>(random() % 20) / 100;
    habits.repeat = static_cast<double>(random() % 20) / 100;
    habits.delay_us_max = 1 + static_cast<std::int64_t>(random() % 20'000);
  }
  const auto requests = some_requests(random);
  engine::gateway_options front;
  front.window = 1 + random() % 8;
  front.resend_after = std::chrono::milliseconds{50};
  engine::gateway_core gateway{front, requests};
  std::uint64_t stale_states = 0;
  std::vector<const toy_rank_core*> ranks_seen;

  sim_network net{seed, habits};
  engine::rebalancer_options placing;
  placing.groups = {{0, toy::layers, toy::experts}};
  placing.redundant = static_cast<std::uint32_t>(random() % 4);
  placing.resend_after = std::chrono::milliseconds{30};
  if (seed % 4 < 2) { // experts move while it runs: at random, or by load whatever the gain
    placing.policy.mode =
        seed % 4 == 0 ? engine::rebalance_mode::forced : engine::rebalance_mode::automatic;
    placing.policy.bins = 1;
    placing.policy.interval_steps = static_cast<std::uint32_t>(1 + random() % 6);
    placing.policy.epoch_moves = static_cast<std::uint32_t>(random() % 5);
    placing.policy.begin_above = placing.policy.end_below = 1;
    placing.policy.gain_min = 0.001;
    placing.policy.seed = seed;
  }
  engine::journal_options book;
  book.resend_after = std::chrono::milliseconds{50};
  net.add("/control/rebalancer", actors::make_rebalancer(placing));
  net.add("/control/scheduler", actors::make_scheduler({}));
  net.add("/control/journal", actors::make_journal(book));
  net.add("/gateway/0", wrap_core<sim::client_type>(&gateway));
  proto::view_committed view;
  view.view = epoch{1};
  const auto ranks = static_cast<std::uint32_t>(1 + random() % 4);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    engine::rank_options o;
    o.rank = rank_id{r};
    o.life = incarnation{50 + r};
    o.vocab = toy::vocab;
    o.context_tokens = 64;
    o.step_rows = static_cast<std::uint32_t>(2 + random() % 15);
    o.prefill_rows_min = static_cast<std::uint32_t>(1 + random() % 4);
    o.running_max = static_cast<std::uint32_t>(1 + random() % 5);
    o.unacknowledged_max = static_cast<std::uint32_t>(1 + random() % 6);
    o.page_tokens = static_cast<std::uint32_t>(1 + random() % 8);
    o.kv_tokens = 40 + random() % (seed % 2 ? 20 : 100);
    o.resend_after = std::chrono::milliseconds{50};
    o.steps_in_flight = static_cast<std::uint32_t>(1 + random() % 2);
    auto toy = std::make_unique<typed_core<toy_rank_core, toy_rank::protocol>>(std::in_place, o,
                                                                               &stale_states);
    ranks_seen.push_back(&toy->core());
    net.add(engine::rank_path(o.rank), std::move(toy));
    actors::shard_parts shard;
    shard.options.rank = o.rank;
    shard.options.life = o.life;
    shard.options.hidden = toy::hidden;
    shard.options.slice_rows = static_cast<std::uint32_t>(1 + random() % 9);
    auto loader = std::make_shared<toy_expert_loader>(&sum.loads);
    shard.runner = std::make_shared<toy_expert_runner>(loader);
    shard.loader = loader;
    net.add(engine::shard_path(o.rank), actors::make_expert_shard(std::move(shard)));
    view.members.push_back({o.rank, {}, o.life, "/rank/" + std::to_string(r)});
  }
  net.inject("/control/rebalancer", parcel::of(std::move(view)));
  net.inject("/gateway/0", parcel::of(proto::start_batch{}));
  std::set<request_id> cancelled;
  if (seed % 3 == 0)
    for (const proto::request_spec& spec : requests)
      if (random() % 2) {
        cancelled.insert(spec.request);
        net.inject("/control/journal", parcel::of(proto::cancel_request{spec.request}),
                   std::chrono::milliseconds{random() % 600});
      }
  const bool done = net.run([&] { return gateway.done(); }, 400'000, std::chrono::seconds{600});
  ASSERT_EQ(net.failure(), "");
  ASSERT_TRUE(done) << "stuck at " << net.now().ns / 1'000'000 << " ms";
  // Ranks let go of everything in the end, also of what was withdrawn.
  const auto idle = [&] {
    return std::all_of(ranks_seen.begin(), ranks_seen.end(),
                       [](const auto* r) { return r->idle(); });
  };
  ASSERT_TRUE(net.run(idle, 400'000, std::chrono::seconds{120})) << "a rank keeps a request";
  EXPECT_EQ(stale_states, 0U);
  sum.lost += net.lost();
  sum.repeated += net.repeated();
  for (const toy_rank_core* rank : ranks_seen)
    sum.preempted += rank->core().preemptions();
  sum.tokens += gateway.state().output_tokens;
  for (const proto::request_spec& spec : requests) {
    const auto choices = gateway.take_finished();
    ASSERT_TRUE(choices);
    ASSERT_EQ(choices->size(), spec.sampling.n);
    for (std::uint32_t c = 0; c < spec.sampling.n; ++c) {
      const engine::collected_choice& got = (*choices)[c];
      auto wanted = toy::generate(spec, c);
      const bool late = got.end.code == ec::deadline_exceeded;
      if (late || got.end.reason == proto::finish_reason::cancelled) {
        // What was shown before the client left is right as far as it goes.
        ASSERT_TRUE(late || cancelled.contains(spec.request));
        if (late) {
          ASSERT_GT(spec.deadline_ms, 0U);
          ASSERT_LE(got.total_us, 1'000 * (spec.deadline_ms + 500)); // and GATEWAY's grace
          ++sum.late;
        }
        ASSERT_LE(got.tokens.size(), wanted.size());
        wanted.resize(got.tokens.size());
        ASSERT_EQ(got.tokens, wanted);
        sum.cancelled += !late;
        continue;
      }
      ASSERT_EQ(got.tokens, wanted)
          << "request " << spec.request.v << " choice " << c << ": " << got.end.what;
      ASSERT_EQ(got.end.reason,
                wanted.back() == 0 ? proto::finish_reason::stop : proto::finish_reason::length);
      ASSERT_EQ(got.logprobs.size(), spec.sampling.logprobs < 0 ? 0 : wanted.size());
    }
  }
}

TEST(serving_sim, every_request_gets_its_tokens_exactly_once) {
  totals sum;
  for (std::uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed)
    run_seed(seed, sum);
  // The network was as bad as it should be, and there was work.
  EXPECT_GT(sum.lost, 10'000U);
  EXPECT_GT(sum.repeated, 10'000U);
  EXPECT_GT(sum.tokens, 20'000U);
  EXPECT_GT(sum.cancelled, 100U);
  EXPECT_GT(sum.loads, 5'000U);  // experts moved
  EXPECT_GT(sum.preempted, 20U); // SCHEDULER leaves little to preempt
  EXPECT_GT(sum.late, 100U);
  RecordProperty("lost", std::to_string(sum.lost));
  std::cout << sum.lost << " lost, " << sum.repeated << " repeated, " << sum.tokens << " tokens, "
            << sum.cancelled << " choices cancelled, " << sum.preempted << " preempted, "
            << sum.loads << " experts moved, " << sum.late << " past their deadlines\n";
}

} // namespace
} // namespace di::test
