// SPDX-License-Identifier: Apache-2.0
// The cost simulation: queues and processors of its world, tables, and a golden row.
#include "actors/kit.hpp"
#include "chaos/cost_run.hpp"
#include "chaos/cost_world.hpp"
#include "messaging/proto/gateway.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace di::chaos {
namespace {

/// Charges a time for each mail and remembers when it began.
class worker_core {
public:
  worker_core(cost_world& world, std::vector<std::int64_t>& began) : world_{world}, began_{began} {}
  result<void> on(const proto::start_batch&, instant now, outbox&) {
    began_.push_back(now.ns / 1000);
    world_.meter().charge(100);
    return {};
  }

private:
  cost_world& world_;
  std::vector<std::int64_t>& began_;
};
struct worker {
  static constexpr auto kind = "worker";
  using core = worker_core;
  using protocol = di::protocol<reacts_to<proto::start_batch>>;
};

std::vector<std::int64_t> begins_of(std::uint32_t cores, int workers, int mails) {
  cost_world world{{10, 10, 0, 5}};
  const auto host = world.add_host(cores);
  std::vector<std::int64_t> began;
  for (int w = 0; w < workers; ++w)
    world.add(host, "p", "/w/" + std::to_string(w), wrap_core<worker>(world, began));
  for (int m = 0; m < mails; ++m)
    for (int w = 0; w < workers; ++w)
      world.inject("/w/" + std::to_string(w), parcel::of(proto::start_batch{}));
  EXPECT_TRUE(
      world.run([&] { return began.size() == static_cast<std::size_t>(workers * mails); }, 1000));
  return began;
}

TEST(cost_world, one_actor_takes_its_mail_one_after_the_other) {
  EXPECT_EQ(begins_of(4, 1, 3), (std::vector<std::int64_t>{0, 100, 200}));
}

TEST(cost_world, actors_share_the_processors_of_their_host) {
  EXPECT_EQ(begins_of(2, 4, 1), (std::vector<std::int64_t>{0, 0, 100, 100}));
  EXPECT_EQ(begins_of(4, 4, 1), (std::vector<std::int64_t>{0, 0, 0, 0}));
}

cost_table a_table() {
  cost_table t;
  t.layers = 4;
  t.experts = 64;
  t.experts_per_token = 4;
  t.attention = {10, 7, 0.003};
  t.dispatch = {1, 0.1, 0};
  t.experts_call = {5, 1, 0};
  t.combine = {0.1, 0.05, 0};
  t.head = {6, 5, 0};
  t.sample = {1, 1, 0};
  return t;
}

cost_options a_load(std::uint32_t ranks) {
  cost_options o;
  o.load = {ranks, 4, 32, 24};
  o.skew = 0.8;
  return o;
}

std::vector<double> numbers_of(const std::string& row) {
  std::vector<double> all;
  std::istringstream fields{row};
  for (std::string field; std::getline(fields, field, ',');)
    all.push_back(field == "off" ? 0 : std::stod(field));
  return all;
}

TEST(cost_simulation, repeats_a_golden_row) {
  const auto o = a_load(64);
  const auto first = simulate_load(a_table(), o);
  ASSERT_TRUE(first) << first.error().render();
  const auto again = simulate_load(a_table(), o);
  ASSERT_TRUE(again);
  EXPECT_EQ(csv_row(o, *first), csv_row(o, *again));
  // A message more or less in the protocols moves it a little; another model of time moves it a
  // lot.
  const auto got = numbers_of(csv_row(o, *first));
  const auto golden = numbers_of(
      "64,4,32,24,1,2,0.8,0,off,48781.4,762.21,198.39,20.55,36.73,2.457,7.549,0.286,0.540,197285");
  ASSERT_EQ(got.size(), golden.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], golden[i], 0.1 * golden[i]) << "column " << i << ": " << csv_row(o, *first);
}

TEST(cost_simulation, gets_faster_with_cheaper_mail_and_slower_with_less_processors) {
  auto table = a_table();
  const auto usual = simulate_load(table, a_load(16));
  table.mail_us /= 4;
  const auto cheap = simulate_load(table, a_load(16));
  auto crowded = a_load(16);
  crowded.ranks_per_host = 8;
  const auto few = simulate_load(a_table(), crowded);
  ASSERT_TRUE(usual && cheap && few);
  EXPECT_GT(cheap->tokens_per_s, 1.5 * usual->tokens_per_s);
  EXPECT_LT(few->tokens_per_s, 0.7 * usual->tokens_per_s);
  EXPECT_LT(usual->first_token_ms, few->first_token_ms);
}

TEST(cost_simulation, moves_experts_when_it_may) {
  auto o = a_load(16);
  o.skew = 1.2;
  o.load.output_tokens = 200;
  o.redundant = 16;
  const auto still = simulate_load(a_table(), o);
  o.rebalance = true;
  const auto moved = simulate_load(a_table(), o);
  ASSERT_TRUE(still && moved);
  EXPECT_GT(still->moe_lb, 1.5);
  EXPECT_LT(moved->moe_lb, still->moe_lb - 0.2);
}

TEST(cost_simulation, finds_the_cost_of_mail_that_made_a_run) {
  auto truth = a_table();
  truth.cores = 2;
  truth.mail_us = 35;
  for (const std::uint32_t each : {2U, 8U}) {
    cost_options o;
    o.load = {4, each, 32, 24};
    o.ranks_per_host = 0;
    const auto run = simulate_load(truth, o);
    ASSERT_TRUE(run);
    truth.runs.push_back({o.load, run->tokens_per_s, run->first_token_ms});
  }
  auto guess = truth;
  guess.mail_us = 10;
  const auto fitted = calibrate(guess);
  ASSERT_TRUE(fitted) << fitted.error().render();
  const auto compared = compare(*fitted);
  ASSERT_TRUE(compared);
  for (const cost_comparison& c : *compared)
    EXPECT_NEAR(c.rate_error, 0, 0.05) << fitted->mail_us << " us";
}

TEST(cost_table, names_what_is_wrong) {
  EXPECT_NE(parse_cost_table("[", "t").error().what.find("t: no JSON object"), std::string::npos);
  EXPECT_NE(parse_cost_table("{}", "t").error().what.find("t: model is missing"),
            std::string::npos);
  const auto bad =
      parse_cost_table(R"({"model":{"layers":0,"experts":4,"experts_per_token":2}})", "t");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().what.find("layers must be a number from 1"), std::string::npos)
      << bad.error().what;
  EXPECT_FALSE(read_cost_table("/nowhere/table.json"));
}

TEST(cost_simulation, draws_every_size) {
  const cost_options o[] = {a_load(8), a_load(16)};
  const cost_outcome r[] = {{.tokens_per_s = 10, .rank_tokens_per_s = 4}, {.tokens_per_s = 20}};
  const auto svg = plot_svg(o, r);
  EXPECT_NE(svg.find(">8<"), std::string::npos);
  EXPECT_NE(svg.find(">16<"), std::string::npos);
  EXPECT_NE(svg.find("tokens/s per user"), std::string::npos);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
}

} // namespace
} // namespace di::chaos
