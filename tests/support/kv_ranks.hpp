// SPDX-License-Identifier: Apache-2.0
// Test-only: several RANKs with the demo model, each with its EXPERT_SHARD and KV_AGENT, on one
// thread and a virtual clock, and a front that plays JOURNAL and SCHEDULER. Each rank holds all
// experts, so only KV travels between them.
#pragma once

#include "actors/kv_agent.hpp"
#include "tests/support/lone_rank.hpp"

namespace di::test {

struct kv_ranks_setting {
  std::uint32_t ranks = 3;
  std::uint32_t replicas = 1; ///< 0: nothing is kept, nothing restored
  std::uint32_t pages = 64;
  std::uint32_t context_tokens = 2048;
  std::uint32_t step_rows = 256;
  std::uint32_t steps_in_flight = 2;
  std::string speculation = "off";
  double token_us = 1000; ///< what a token is said to cost; 0: as measured
  std::size_t snapshot_bytes = 0;
  bool unlimited = false; ///< copies go at once, whatever the bandwidth
  network_habits habits;
};

/// JOURNAL and SCHEDULER of all ranks: takes each token once, of the attempt that counts.
class kv_front_core {
public:
  struct choice {
    std::vector<token_id> tokens;
    std::vector<proto::position_logprobs> logprobs;
    bool ended = false;
  };
  struct request {
    proto::request_spec spec;
    std::uint32_t attempt = 0;
    std::map<std::uint32_t, choice> choices;
    bool settled = false;
    ec failed = ec::ok;
  };
  using book = std::map<std::uint64_t, request>;

  explicit kv_front_core(book* b) : book_{b} {}

  result<void> on(const proto::tokens_committed& m, instant, outbox& out) {
    request& r = (*book_)[m.request.v];
    const address to = "/rank/" + std::to_string(m.rank.v) + "/rank";
    if (m.attempt != r.attempt) {
      out.send(to, proto::commit_refused{m.request, m.attempt, r.attempt});
      return {};
    }
    choice& c = r.choices[m.choice];
    for (std::size_t i = 0; i < m.tokens.size(); ++i)
      if (m.first_index + i == c.tokens.size()) {
        c.tokens.push_back(m.tokens[i]);
        if (i < m.logprobs.size())
          c.logprobs.push_back(m.logprobs[i]);
      }
    if (r.spec.prefix == proto::prefix_mode::bounded && !r.spec.prefix_recorded) {
      r.spec.prefix_recorded = true;
      r.spec.prefix_tokens = m.prefix_tokens;
    }
    if (m.end.reason == proto::finish_reason::error)
      r.failed = m.end.code;
    const bool whole = m.first_index + m.tokens.size() == c.tokens.size();
    c.ended = c.ended || (whole && m.end.reason != proto::finish_reason::none);
    out.send(to, proto::commit_accepted{m.request, m.choice, m.attempt,
                                        static_cast<std::uint32_t>(c.tokens.size()), c.ended});
    return {};
  }
  result<void> on(const proto::assignment_refused& m, instant, outbox&) {
    (*book_)[m.request.v].failed = m.code;
    return {};
  }
  result<void> on(const proto::request_settled& m, instant, outbox&) {
    request& r = (*book_)[m.request.v];
    r.settled = r.settled || m.attempt == r.attempt;
    return {};
  }
  result<void> on(const proto::request_taken&, instant, outbox&) { return {}; }
  result<void> on(const proto::rank_load&, instant, outbox&) { return {}; }

private:
  book* book_;
};
struct kv_front {
  static constexpr auto kind = "front";
  using core = kv_front_core;
  using protocol =
      di::protocol<reacts_to<proto::tokens_committed>, reacts_to<proto::assignment_refused>,
                   reacts_to<proto::request_settled>, reacts_to<proto::request_taken>,
                   reacts_to<proto::rank_load>>;
};

class kv_ranks {
public:
  explicit kv_ranks(const kv_ranks_setting& setting, std::uint64_t seed = 1,
                    std::shared_ptr<const engine::loaded_model> model = demo())
      : setting_{setting}, model_{std::move(model)}, net_{seed, setting.habits} {
    net_.begin_at(real_env().now()); // RANK stamps some of its commits with the real clock
    net_.add("/control/front", wrap_core<kv_front>(&book_));
    for (std::uint32_t r = 0; r < setting.ranks; ++r)
      add(rank_id{r});
    commit();
  }

  void assign(rank_id rank, const proto::request_spec& spec) {
    kv_front_core::request& r = book_[spec.request.v];
    r.spec = spec;
    assign(rank, r);
  }
  /// The next attempt of a request, elsewhere.
  void resume(rank_id rank, std::uint64_t id) { assign(rank, book_.at(id)); }
  void kill(rank_id rank) {
    for (const char* part : {"rank", "expert_shard", "kv_agent"})
      net_.remove(path(rank, part));
    ranks_.erase(rank);
    agents_.erase(rank);
    commit();
  }
  void release(const proto::kv_lease& lease) {
    net_.inject(engine::kv_agent_path(lease.owner), parcel::of(proto::release_pages{lease}));
  }

  /// @return whether it came to that
  bool run_until(const std::function<bool()>& done, duration within = std::chrono::seconds{600}) {
    const bool came = net_.run(done, 50'000'000, within);
    EXPECT_EQ(net_.failure(), "");
    return came;
  }
  /// Until all requests have ended and are settled.
  void finish() {
    EXPECT_TRUE(run_until([this] {
      return std::all_of(book_.begin(), book_.end(), [](const auto& entry) {
        const kv_front_core::request& r = entry.second; // its request_settled may be lost
        return r.settled || r.failed != ec::ok
               || (r.choices.size() == r.spec.sampling.n
                   && std::all_of(r.choices.begin(), r.choices.end(),
                                  [](const auto& c) { return c.second.ended; }));
      });
    }));
  }
  /// Nothing to be done; time passes.
  void idle(duration span) {
    run_until([] { return false; }, span);
  }

  kv_front_core::request& request(std::uint64_t id) { return book_.at(id); }
  const actors::rank_actor& rank(rank_id r) const { return *ranks_.at(r); }
  const engine::kv_agent_core& agent(rank_id r) const { return *agents_.at(r); }
  std::vector<rank_id> ranks() const {
    std::vector<rank_id> all;
    for (const auto& [r, a] : ranks_)
      all.push_back(r);
    return all;
  }
  bool agents_empty() const {
    return std::all_of(agents_.begin(), agents_.end(),
                       [](const auto& a) { return a.second->is_empty(); });
  }
  sim_network& net() { return net_; }

private:
  static address path(rank_id rank, const char* part) {
    return "/rank/" + std::to_string(rank.v) + "/" + part;
  }
  void assign(rank_id rank, kv_front_core::request& r) {
    proto::assign_request m;
    m.spec = r.spec;
    m.attempt = ++r.attempt;
    for (const auto& [c, choice] : r.choices)
      m.progress.push_back({c, choice.tokens, choice.ended});
    net_.inject(path(rank, "rank"), parcel::of(std::move(m)));
  }
  void add(rank_id rank) {
    auto actor = std::make_unique<typed_core<actors::rank_actor, actors::rank::protocol>>(
        std::in_place, parts_of(rank));
    ranks_[rank] = &actor->core();
    actors::shard_parts shard;
    shard.options.rank = rank;
    shard.options.life = life(rank);
    shard.options.hidden = static_cast<std::uint32_t>(model_->spec().hidden_size);
    shard.runner = engine::own_expert_runner(model_, 1);
    engine::kv_agent_options keeping;
    keeping.rank = rank;
    keeping.life = life(rank);
    keeping.replicas = setting_.replicas;
    if (setting_.unlimited)
      keeping.bandwidth = 0;
    auto agent = std::make_unique<typed_core<engine::kv_agent_core, actors::kv_agent::protocol>>(
        std::in_place, keeping);
    agents_[rank] = &agent->core();
    net_.add(path(rank, "rank"), std::move(actor));
    net_.add(path(rank, "expert_shard"), actors::make_expert_shard(std::move(shard)));
    net_.add(path(rank, "kv_agent"), std::move(agent));
    proto::placement_published placed = alone(model_->spec());
    placed.ranks = {rank};
    placed.lives = {life(rank)};
    net_.inject(path(rank, "rank"), parcel::of(placed));
    net_.inject(path(rank, "expert_shard"), parcel::of(placed));
  }
  void commit() {
    view_.view = epoch{view_.view.v + 1};
    view_.members.clear();
    for (const auto& [r, a] : ranks_)
      view_.members.push_back({r, {}, life(r), ""});
    for (const auto& [r, a] : ranks_)
      net_.inject(path(r, "kv_agent"), parcel::of(view_));
  }
  static incarnation life(rank_id rank) { return incarnation{100 + rank.v}; }
  actors::rank_parts parts_of(rank_id rank) const {
    lone_rank_setting of;
    of.step_rows = setting_.step_rows;
    of.steps_in_flight = setting_.steps_in_flight;
    of.speculation = setting_.speculation;
    of.snapshot_bytes = setting_.snapshot_bytes;
    of.pages = setting_.pages;
    actors::rank_parts parts = rank_parts_of(model_, of);
    parts.options.rank = rank;
    parts.options.life = life(rank);
    parts.options.journal = parts.options.scheduler = "/control/front";
    parts.options.context_tokens = setting_.context_tokens;
    parts.options.unacknowledged_max = 8; // computing takes no time: mail keeps the pace
    parts.listeners = "";
    if (setting_.replicas > 0) {
      parts.options.kv_agent = engine::kv_agent_path(rank);
      parts.transfer.enabled = true;
      parts.transfer.token_us = setting_.token_us;
    }
    return parts;
  }

  kv_ranks_setting setting_;
  std::shared_ptr<const engine::loaded_model> model_;
  sim_network net_;
  kv_front_core::book book_;
  std::map<rank_id, const actors::rank_actor*> ranks_;
  std::map<rank_id, const engine::kv_agent_core*> agents_;
  proto::view_committed view_;
};

} // namespace di::test
