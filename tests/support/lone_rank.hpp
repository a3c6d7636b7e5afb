// SPDX-License-Identifier: Apache-2.0
// Test-only: one RANK and its EXPERT_SHARD with a real model on one thread, and a front that plays
// JOURNAL and SCHEDULER. All mail is in one order, so a front's answer comes in the middle of a
// step.
#pragma once

#include "actors/expert_shard.hpp"
#include "actors/rank.hpp"
#include "engine/core/text_sampler.hpp"
#include "engine/model/runners.hpp"
#include "tests/sim/sim_network.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace di::test {

/// The embedded demo model, loaded when first asked for.
inline const std::shared_ptr<const engine::loaded_model>& demo() {
  static const std::shared_ptr<const engine::loaded_model> model =
      engine::loaded_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  return model;
}

struct lone_rank_setting {
  std::uint32_t pages = 64;
  std::uint32_t steps_in_flight = 2;
  std::uint32_t step_rows = 256;
  std::string speculation = "off";
  std::size_t snapshot_bytes = 8U << 20;
};

/// What the front saw.
struct front_log {
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<token_id>> tokens; ///< id, choice
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<proto::position_logprobs>> logprobs;
  std::map<std::uint64_t, std::uint32_t> bounded; ///< H by request, as told with the tokens
  std::map<std::uint64_t, ec> failed;
  std::map<std::uint64_t, std::size_t> cancel_at; ///< [tokens] of choice 0: withdrawn then
  std::size_t open = 0;                           ///< choices that have not ended
  std::size_t rounds = 0, drawn = 0;              ///< steps that drew tokens, and these
  bool told = true;                               ///< the step of the last tokens was counted
};

/// One rank holds all experts.
inline proto::placement_published alone(const engine::model_spec& spec) {
  const std::vector<engine::expert_layers> groups{
      {0, static_cast<std::uint32_t>(spec.num_hidden_layers),
       static_cast<std::uint32_t>(spec.n_routed_experts)},
      {static_cast<std::uint32_t>(spec.num_hidden_layers),
       static_cast<std::uint32_t>(spec.draft_layers()),
       static_cast<std::uint32_t>(spec.dspark_n_routed_experts)}};
  const std::vector<engine::placed_rank> who{{rank_id{0}, {}}};
  return engine::placement::contiguous(groups, who, 0, epoch{1}, epoch{0}).value().published();
}

class front_core {
public:
  explicit front_core(front_log* log) : log_{log} {}

  result<void> on(const proto::tokens_committed& m, instant, outbox& out) {
    if (withdrawn_.contains(m.request.v))
      return {};
    auto& tokens = log_->tokens[{m.request.v, m.choice}];
    if (m.first_index <= tokens.size()) {
      tokens.resize(m.first_index);
      tokens.insert(tokens.end(), m.tokens.begin(), m.tokens.end());
      auto& logprobs = log_->logprobs[{m.request.v, m.choice}];
      logprobs.resize(m.first_index);
      logprobs.insert(logprobs.end(), m.logprobs.begin(), m.logprobs.end());
    }
    log_->told = false;
    log_->bounded[m.request.v] = m.prefix_tokens;
    if (m.end.reason == proto::finish_reason::error)
      log_->failed[m.request.v] = m.end.code;
    const bool ended = m.end.reason != proto::finish_reason::none;
    const auto cancel = log_->cancel_at.find(m.request.v);
    if (!ended && cancel != log_->cancel_at.end() && tokens.size() >= cancel->second) {
      withdrawn_[m.request.v] = true;
      --log_->open;
      out.send("/rank/0/rank", proto::withdraw_request{m.request, m.attempt});
      return {};
    }
    log_->open -= ended;
    out.send("/rank/0/rank",
             proto::commit_accepted{m.request, m.choice, m.attempt,
                                    static_cast<std::uint32_t>(tokens.size()), ended});
    return {};
  }
  result<void> on(const proto::step_finished& m, instant, outbox&) {
    log_->rounds += !m.tokens.empty();
    log_->drawn += m.tokens.size();
    log_->told = true;
    return {};
  }
  result<void> on(const proto::assignment_refused& m, instant, outbox&) {
    log_->failed[m.request.v] = m.code;
    --log_->open; // one choice
    return {};
  }
  result<void> on(const proto::request_taken&, instant, outbox&) { return {}; }
  result<void> on(const proto::request_settled&, instant, outbox&) { return {}; }
  result<void> on(const proto::rank_load&, instant, outbox&) { return {}; }

private:
  front_log* log_;
  std::map<std::uint64_t, bool> withdrawn_;
};
struct front {
  static constexpr auto kind = "front";
  using core = front_core;
  using protocol =
      di::protocol<reacts_to<proto::tokens_committed>, reacts_to<proto::step_finished>,
                   reacts_to<proto::assignment_refused>, reacts_to<proto::request_taken>,
                   reacts_to<proto::request_settled>, reacts_to<proto::rank_load>>;
};

/// A RANK of its own with a real model; its front plays JOURNAL and SCHEDULER.
inline actors::rank_parts rank_parts_of(const std::shared_ptr<const engine::loaded_model>& model,
                                        const lone_rank_setting& s) {
  const engine::model_spec& spec = model->spec();
  actors::rank_parts parts;
  parts.layout = engine::make_kv_layout(spec);
  parts.options.rank = rank_id{0};
  parts.options.journal = parts.options.scheduler = "/rank/0/front";
  parts.options.vocab = static_cast<std::uint32_t>(spec.vocab_size);
  parts.options.context_tokens = 2048;
  parts.options.step_rows = s.step_rows;
  parts.options.steps_in_flight = s.steps_in_flight;
  parts.options.speculation = engine::parse_speculation(s.speculation).value();
  parts.listeners = "/rank/0/front";
  engine::rank_runners runners = engine::own_rank_runners(model, 1);
  parts.runner = runners.steps;
  parts.drafts = runners.drafts;
  parts.options.draft_block = static_cast<std::uint32_t>(parts.drafts->block());
  parts.taps_width = static_cast<std::size_t>(spec.taps_width());
  parts.rules = engine::make_prefill_rules(spec);
  parts.prefixes.page_tokens = engine::page_tokens;
  parts.prefixes.snapshot_bytes = s.snapshot_bytes;
  parts.samplers = engine::make_text_samplers(nullptr, static_cast<std::size_t>(spec.vocab_size),
                                              {spec.eos_token_id});
  parts.pool = engine::page_pool::create(parts.layout.page_bytes, s.pages).value();
  return parts;
}

class lone_rank {
public:
  lone_rank(std::shared_ptr<const engine::loaded_model> model, const lone_rank_setting& setting) {
    const engine::model_spec& spec = model->spec();
    auto rank = std::make_unique<typed_core<actors::rank_actor, actors::rank::protocol>>(
        std::in_place, rank_parts_of(model, setting));
    actor_ = &rank->core();
    actors::shard_parts shard;
    shard.options.rank = rank_id{0};
    shard.options.hidden = static_cast<std::uint32_t>(spec.hidden_size);
    shard.runner = engine::own_expert_runner(model, 1);
    net_.add("/rank/0/front", wrap_core<front>(&log));
    net_.add("/rank/0/rank", std::move(rank));
    net_.add("/rank/0/expert_shard", actors::make_expert_shard(std::move(shard)));
    const proto::placement_published placed = alone(spec);
    net_.inject("/rank/0/rank", parcel::of(placed));
    net_.inject("/rank/0/expert_shard", parcel::of(placed));
  }

  void assign(proto::assign_request m) {
    log.open += m.spec.sampling.n;
    net_.inject("/rank/0/rank", parcel::of(std::move(m)));
  }
  /// Until all choices have ended or are withdrawn.
  void run() {
    const auto ended = [&] { return log.open == 0 && log.told; };
    EXPECT_TRUE(net_.run(ended, 20'000'000, std::chrono::seconds{600})) << log.open << " open";
    EXPECT_EQ(net_.failure(), "");
  }
  const actors::rank_actor& actor() const { return *actor_; }

  front_log log;

private:
  sim_network net_{1, {}};
  const actors::rank_actor* actor_ = nullptr;
};

} // namespace di::test
