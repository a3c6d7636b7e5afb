// SPDX-License-Identifier: Apache-2.0
// Requests of clients through the desk of an online GATEWAY, a real JOURNAL and real ranks: exactly
// once and the same tokens whatever of them dies, nothing left of clients that go away.
#include "tests/support/bus_pair.hpp"
#include "tests/support/online_cluster.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace di::test {
namespace {

using actors::stream_order;

const test_model& demo() {
  static const test_model loaded = test_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  return loaded;
}

stream_order order(std::uint32_t max_tokens, token_id first = 5, std::uint32_t n = 1) {
  stream_order o;
  o.spec.prompt = {first, 6, 7, 8};
  o.spec.sampling.max_tokens = max_tokens;
  o.spec.sampling.n = n;
  o.spec.sampling.seed = static_cast<std::uint64_t>(first);
  o.spec.sampling.ignore_eos = true;
  return o;
}

std::vector<token_id> undisturbed(std::uint32_t max_tokens, token_id first = 5) {
  online_cluster cluster{demo(), {}};
  auto desk = cluster.start_gateway(0);
  auto client = std::make_shared<recording_listener>();
  desk->submit(order(max_tokens, first), client);
  EXPECT_TRUE(client->wait_end());
  EXPECT_EQ(client->disorder(), 0U);
  EXPECT_EQ(client->tokens_of().size(), max_tokens);
  return client->tokens_of();
}

TEST(online, serves_many_threads_at_once) {
  cluster_options options;
  options.ranks = 2;
  online_cluster cluster{demo(), options};
  auto desk = cluster.start_gateway(0);
  constexpr int threads = 4, each = 6;
  std::vector<std::vector<std::shared_ptr<recording_listener>>> clients(threads);
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      for (int i = 0; i < each; ++i) {
        clients[t].push_back(std::make_shared<recording_listener>());
        desk->submit(order(12, 5 + i, 2), clients[t].back());
      }
    });
  for (std::thread& t : running)
    t.join();
  for (int t = 0; t < threads; ++t)
    for (int i = 0; i < each; ++i) {
      recording_listener& c = *clients[t][i];
      ASSERT_TRUE(c.wait_end(2)) << t << " " << i;
      EXPECT_EQ(c.disorder(), 0U);
      EXPECT_EQ(c.tokens_of(0).size(), 12U);
      EXPECT_EQ(c.tokens_of(0), clients[0][i]->tokens_of(0));
      EXPECT_EQ(c.tokens_of(1), clients[0][i]->tokens_of(1));
      EXPECT_EQ(c.end_of(1).reason, proto::finish_reason::length);
    }
  // The listeners are told first.
  EXPECT_TRUE(eventually([&] { return desk->open() == 0 && desk->counts().finished == 24; }))
      << desk->open() << " " << desk->counts().finished;
}

TEST(online, another_gateway_goes_on_where_a_dead_one_was) {
  const auto expected = undisturbed(300); // long enough that it is computed when the blow comes
  online_cluster cluster{demo(), {}};
  auto desk = cluster.start_gateway(0);
  auto other = cluster.start_gateway(1);
  auto first = std::make_shared<recording_listener>();
  stream_order o = order(300);
  o.note = "recipe";
  o.detached_ms = 60'000;
  const request_id id = desk->submit(o, first);
  ASSERT_TRUE(first->wait_tokens(5));
  cluster.kill_gateway(0);
  EXPECT_TRUE(first->wait_over());
  EXPECT_EQ(first->whole_end()->code, ec::unavailable);
  auto second = std::make_shared<recording_listener>();
  second->begin_at(3);
  std::promise<result<proto::request_attached>> attached;
  other->attach(id, {3}, second, [&](auto answer) { attached.set_value(std::move(answer)); });
  auto answer = attached.get_future().get();
  ASSERT_TRUE(answer.ok()) << answer.error().what;
  EXPECT_EQ(answer->note, "recipe");
  EXPECT_EQ(answer->spec.prompt, o.spec.prompt);
  ASSERT_TRUE(second->wait_end());
  EXPECT_EQ(second->disorder(), 0U);
  EXPECT_EQ(second->tokens_of(), std::vector<token_id>(expected.begin() + 3, expected.end()));
  const auto seen = first->tokens_of();
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin()));
}

TEST(online, the_next_life_of_a_gateway_gets_the_same_tokens_from_the_start) {
  const auto expected = undisturbed(40);
  online_cluster cluster{demo(), {}};
  auto first = std::make_shared<recording_listener>();
  stream_order o = order(40);
  o.keep_ms = 60'000;
  o.detached_ms = 60'000;
  const request_id id = cluster.start_gateway(0)->submit(o, first);
  ASSERT_TRUE(first->wait_tokens(5));
  cluster.kill_gateway(0);
  auto desk = cluster.start_gateway(0);
  auto second = std::make_shared<recording_listener>();
  desk->attach(id, {}, second, [](auto) {});
  ASSERT_TRUE(second->wait_end());
  EXPECT_EQ(second->tokens_of(), expected);
  // And once more after its end, as it is stored.
  auto third = std::make_shared<recording_listener>();
  desk->attach(id, {}, third, [](auto) {});
  ASSERT_TRUE(third->wait_end());
  EXPECT_EQ(third->tokens_of(), expected);
}

TEST(online, control_that_begins_again_costs_nothing_but_time) {
  const auto expected = undisturbed(60);
  testing::temporary_directory folder{"online_control"};
  cluster_options options;
  options.journal = folder.path() + "/journal";
  online_cluster cluster{demo(), options};
  auto desk = cluster.start_gateway(0);
  auto client = std::make_shared<recording_listener>();
  desk->submit(order(60), client);
  ASSERT_TRUE(client->wait_tokens(5));
  cluster.restart_control();
  ASSERT_TRUE(client->wait_end());
  EXPECT_EQ(client->whole_end(), std::nullopt);
  EXPECT_EQ(client->disorder(), 0U);
  EXPECT_EQ(client->tokens_of(), expected);
}

TEST(online, the_same_key_is_the_same_request) {
  online_cluster cluster{demo(), {}};
  auto desk = cluster.start_gateway(0);
  auto other = cluster.start_gateway(1);
  stream_order o = order(20);
  o.dedup = "key";
  o.dedup_digest = "body";
  o.keep_ms = 60'000;
  auto first = std::make_shared<recording_listener>();
  const request_id id = desk->submit(o, first);
  ASSERT_TRUE(first->wait_end());
  auto again = std::make_shared<recording_listener>();
  other->submit(o, again);
  ASSERT_TRUE(again->wait_over());
  EXPECT_EQ(again->known_request(), id);
  EXPECT_TRUE(again->known_same());
  o.dedup_digest = "another body";
  auto wrong = std::make_shared<recording_listener>();
  other->submit(o, wrong);
  ASSERT_TRUE(wrong->wait_over());
  EXPECT_FALSE(wrong->known_same());
  std::promise<result<proto::recorded_request>> recorded;
  other->get(id, [&](auto r) { recorded.set_value(std::move(r)); });
  const auto answer = recorded.get_future().get();
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->closed);
  EXPECT_EQ(answer->choices.at(0).tokens, first->tokens_of());
  std::promise<bool> forgotten;
  other->forget(id, [&](auto r) { forgotten.set_value(r.ok() && r->existed); });
  EXPECT_TRUE(forgotten.get_future().get());
  std::promise<ec> missing;
  other->get(id, [&](auto r) { missing.set_value(r ? ec::ok : r.error().code); });
  EXPECT_EQ(missing.get_future().get(), ec::not_found);
}

/// Waits until a rank holds nothing: asked again and again, as its state is all there is to see.
bool rank_is_empty(online_cluster& cluster) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (std::chrono::steady_clock::now() < limit) {
    const auto rank = cluster.ask<proto::rank_state>("/rank/0/rank", proto::get_rank{});
    const auto plan = cluster.ask<proto::schedule>("/control/scheduler", proto::get_schedule{});
    const auto book = cluster.ask<proto::journal_state>("/control/journal", proto::get_journal{});
    if (rank && plan && book && rank->running + rank->waiting == 0 && plan->queued == 0
        && book->open == 0 && plan->ranks.size() == 1
        && plan->ranks[0].kv_tokens_free == plan->ranks[0].kv_tokens_total)
      return true;
    std::this_thread::yield();
  }
  return false;
}

TEST(online, a_cancelled_request_leaves_nothing_behind) {
  online_cluster cluster{demo(), {}};
  auto desk = cluster.start_gateway(0);
  auto client = std::make_shared<recording_listener>();
  const request_id id = desk->submit(order(200), client);
  ASSERT_TRUE(client->wait_tokens(3));
  desk->cancel(id);
  ASSERT_TRUE(client->wait_over());
  EXPECT_EQ(client->whole_end()->reason, proto::finish_reason::cancelled);
  EXPECT_TRUE(rank_is_empty(cluster));
  EXPECT_TRUE(eventually([&] { return desk->open() == 0; })); // the listener is told first
}

TEST(online, a_choice_that_its_client_ends_stops_on_its_rank) {
  online_cluster cluster{demo(), {}};
  auto desk = cluster.start_gateway(0);
  auto client = std::make_shared<recording_listener>();
  const request_id id = desk->submit(order(200), client);
  ASSERT_TRUE(client->wait_tokens(4));
  desk->end_choice(id, 0, 4, 1);
  ASSERT_TRUE(client->wait_end());
  EXPECT_EQ(client->end_of().reason, proto::finish_reason::stop);
  EXPECT_EQ(client->end_of().kept_tokens, 4U);
  EXPECT_EQ(client->end_of().stop_index, 1);
  EXPECT_LT(client->tokens_of().size(), 200U);
  EXPECT_TRUE(rank_is_empty(cluster));
}

TEST(online, a_drained_or_stopped_desk_answers_at_once) {
  online_cluster cluster{demo(), {}};
  auto desk = cluster.start_gateway(0);
  auto running = std::make_shared<recording_listener>();
  desk->submit(order(20), running);
  desk->drain();
  auto late = std::make_shared<recording_listener>();
  desk->submit(order(20), late);
  ASSERT_TRUE(late->wait_over());
  EXPECT_EQ(late->whole_end()->code, ec::unavailable);
  ASSERT_TRUE(running->wait_end());
  EXPECT_EQ(running->tokens_of().size(), 20U);
  cluster.kill_gateway(0);
  auto later = std::make_shared<recording_listener>();
  desk->submit(order(20), later);
  EXPECT_TRUE(later->wait_over());
  EXPECT_EQ(later->whole_end()->code, ec::unavailable);
}

} // namespace
} // namespace di::test
