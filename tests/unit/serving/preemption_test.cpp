// SPDX-License-Identifier: Apache-2.0
// RANK with the demo model and too few pages: what is preempted and computed again ends with the
// same bytes, in every prefill and prefix mode, with and without drafts. No page is lost: the cores
// are checked after every message.
#include "actors/expert_shard.hpp"
#include "actors/rank.hpp"
#include "engine/core/text_sampler.hpp"
#include "engine/model/runners.hpp"
#include "tests/sim/sim_network.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

using answers = std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<token_id>>;

struct outcome {
  answers tokens;
  std::size_t open = 0;                           ///< choices that have not ended
  std::map<std::uint64_t, std::uint32_t> bounded; ///< H by request, as told with the tokens
};

/// Plays JOURNAL, SCHEDULER and REBALANCER.
class accepting_core {
public:
  explicit accepting_core(outcome* got) : got_{got} {}
  result<void> on(const proto::tokens_committed& m, instant, outbox& out) {
    EXPECT_NE(m.end.reason, proto::finish_reason::error) << m.end.what;
    auto& tokens = got_->tokens[{m.request.v, m.choice}];
    if (m.first_index == tokens.size())
      tokens.insert(tokens.end(), m.tokens.begin(), m.tokens.end());
    got_->bounded[m.request.v] = m.prefix_tokens;
    const bool ended = m.end.reason != proto::finish_reason::none;
    got_->open -= ended;
    out.send("/rank/0/rank",
             proto::commit_accepted{m.request, m.choice, m.attempt,
                                    static_cast<std::uint32_t>(tokens.size()), ended});
    return {};
  }

private:
  outcome* got_;
};
struct accepting {
  static constexpr auto kind = "accepting";
  using core = accepting_core;
  using protocol = di::protocol<reacts_to<proto::tokens_committed>>;
};

struct setting {
  std::uint32_t pages = 64;
  std::uint32_t steps_in_flight = 2;
  std::string speculation = "off";
  proto::prefix_mode prefix = proto::prefix_mode::off;
  proto::prefill_mode prefill = proto::prefill_mode::full;
  std::uint32_t recorded = 0; ///< H of all requests; 0: none
};

const std::shared_ptr<const engine::loaded_model>& demo() {
  static const std::shared_ptr<const engine::loaded_model> model =
      engine::loaded_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  return model;
}

actors::rank_parts parts_of(const setting& s) {
  const engine::model_spec& spec = demo()->spec();
  actors::rank_parts parts;
  parts.layout = engine::make_kv_layout(spec);
  parts.options.rank = rank_id{0};
  parts.options.vocab = static_cast<std::uint32_t>(spec.vocab_size);
  parts.options.context_tokens = 2048;
  parts.options.steps_in_flight = s.steps_in_flight;
  parts.options.speculation = engine::parse_speculation(s.speculation).value();
  engine::rank_runners runners = engine::own_rank_runners(demo(), 1);
  parts.runner = runners.steps;
  parts.drafts = runners.drafts;
  parts.options.draft_block = static_cast<std::uint32_t>(parts.drafts->block());
  parts.taps_width =
      spec.dspark_target_layer_ids.size() * static_cast<std::size_t>(spec.hidden_size);
  parts.rules = engine::make_prefill_rules(spec);
  parts.prefixes.page_tokens = engine::page_tokens;
  parts.prefixes.snapshot_bytes = 8U << 20;
  parts.samplers = engine::make_text_samplers(nullptr, static_cast<std::size_t>(spec.vocab_size),
                                              {spec.eos_token_id});
  parts.pool = engine::page_pool::create(parts.layout.page_bytes, s.pages).value();
  return parts;
}

proto::placement_published alone(const engine::model_spec& spec) {
  const std::vector<engine::expert_layers> groups{
      {0, static_cast<std::uint32_t>(spec.num_hidden_layers),
       static_cast<std::uint32_t>(spec.n_routed_experts)},
      {static_cast<std::uint32_t>(spec.num_hidden_layers),
       static_cast<std::uint32_t>(spec.draft_layers()),
       static_cast<std::uint32_t>(spec.dspark_n_routed_experts)}};
  const std::vector<engine::placed_rank> who{{rank_id{0}, {}}};
  return engine::placement::contiguous(groups, who, 0, epoch{1}, epoch{0}).value().published();
}

/// Six requests that begin alike and grow by two pages.
std::vector<proto::assign_request> requests(const setting& s) {
  std::vector<proto::assign_request> all;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    proto::assign_request m;
    m.spec.request = request_id{id};
    for (std::size_t i = 0; i < 230 + 9 * id; ++i)
      m.spec.prompt.push_back(static_cast<token_id>(5 + (i * i + (i > 200 ? id : 0)) % 90));
    m.spec.sampling.max_tokens = 180;
    m.spec.sampling.temperature = id % 2 ? 0 : 1;
    m.spec.sampling.seed = id;
    m.spec.sampling.ignore_eos = true;
    m.spec.sampling.n = id == 3 ? 2 : 1;
    m.spec.prefix = s.prefix;
    m.spec.prefill = s.prefill;
    m.spec.prefix_recorded = s.prefix == proto::prefix_mode::bounded;
    m.spec.prefix_tokens = s.recorded;
    m.attempt = 1;
    all.push_back(std::move(m));
  }
  return all;
}

outcome run(const setting& s, std::uint64_t* preempted) {
  outcome got;
  sim_network net{1, {}};
  auto rank = std::make_unique<typed_core<actors::rank_actor, actors::rank::protocol>>(
      std::in_place, parts_of(s));
  actors::rank_actor& seen = rank->core();
  actors::shard_parts shard;
  shard.options.rank = rank_id{0};
  shard.options.hidden = static_cast<std::uint32_t>(demo()->spec().hidden_size);
  shard.runner = engine::own_expert_runner(demo(), 1);
  net.add("/control/journal", wrap_core<accepting>(&got));
  net.add("/rank/0/rank", std::move(rank));
  net.add("/rank/0/expert_shard", actors::make_expert_shard(std::move(shard)));
  const proto::placement_published placed = alone(demo()->spec());
  net.inject("/rank/0/rank", parcel::of(placed));
  net.inject("/rank/0/expert_shard", parcel::of(placed));
  for (proto::assign_request& m : requests(s)) {
    got.open += m.spec.sampling.n;
    net.inject("/rank/0/rank", parcel::of(std::move(m)));
  }
  EXPECT_TRUE(net.run([&] { return got.open == 0; }, 10'000'000, std::chrono::seconds{600}));
  EXPECT_EQ(net.failure(), "");
  *preempted = seen.core().preemptions();
  return got;
}

void compare(setting s) {
  std::uint64_t preempted = 0;
  s.speculation = "off";
  s.steps_in_flight = 1;
  s.pages = 64;
  const outcome roomy = run(s, &preempted);
  EXPECT_EQ(preempted, 0U);
  ASSERT_EQ(roomy.tokens.size(), 7U);
  for (const char* speculation : {"off", "varlen"}) {
    SCOPED_TRACE(speculation);
    s.speculation = speculation;
    s.steps_in_flight = 2;
    s.pages = 9;
    const outcome tight = run(s, &preempted);
    EXPECT_GT(preempted, 0U);
    EXPECT_EQ(tight.tokens, roomy.tokens);
    std::cout << preempted << " preempted\n";
  }
}

TEST(preemption, leaves_the_bytes_of_cold_runs) {
  setting s;
  compare(s);
}

TEST(preemption, leaves_the_bytes_of_exact_hits_and_compact_prefill) {
  setting s;
  s.prefix = proto::prefix_mode::exact;
  s.prefill = proto::prefill_mode::compact;
  compare(s);
}

TEST(preemption, leaves_the_bytes_behind_a_recorded_bounded_hit) {
  setting s;
  s.prefix = proto::prefix_mode::bounded;
  s.recorded = 128;
  compare(s);
}

} // namespace
} // namespace di::test
