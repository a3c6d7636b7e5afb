// SPDX-License-Identifier: Apache-2.0
// RANK and EXPERT_SHARD over the toy model: the production cores, a toy device.
#pragma once

#include "actors/expert_shard.hpp"
#include "actors/rank.hpp"
#include "chaos/sim_toy_kv.hpp"

namespace di::sim {

class toy_rank_core {
public:
  /// @param stale_states  counts rows of a sequence that its KV does not fit
  /// @param experts       of a layer
  toy_rank_core(engine::rank_options options, std::uint64_t* stale_states,
                std::uint32_t experts = toy::experts,
                duration ask_after = std::chrono::milliseconds{40})
      : options_{options},
        experts_of_layer_{experts},
        ask_after_{ask_after},
        kv_{options.kv_tokens, options.page_tokens},
        core_{options,
              [](const proto::request_spec& spec,
                 std::uint32_t choice) -> result<std::unique_ptr<engine::choice_sampler>> {
                return std::unique_ptr<engine::choice_sampler>{
                    std::make_unique<toy::sampler>(spec, choice)};
              },
              &kv_},
        // Few rows per call: what one holder is asked for takes several.
        calls_{options.rank, {options.life, ask_after, 3 * 2 * toy::hidden, {3, 1}}},
        stale_states_{stale_states} {}

  template <class M>
  result<void> on(const M& m, instant now, outbox& out) {
    DI_TRY_VOID(core_.on(m, now, out));
    wake(out);
    return {};
  }
  /// It asks for nothing: a toy's KV is its tokens.
  result<void> on(const proto::pages_restored&, instant, outbox&) { return {}; }
  result<void> on(const proto::placement_published& m, instant now, outbox& out) {
    DI_TRY(auto made, engine::placement::from(m));
    if (!calls_.current() || calls_.current()->version() < made.version()) {
      std::vector<engine::placed_rank> alive;
      for (std::size_t i = 0; i < made.ranks(); ++i)
        alive.push_back(made.rank_at(i));
      joined_ = joined_ || names_it(alive);
      core_.install_view(made.view(), out);
      calls_.install(std::make_shared<const engine::placement>(std::move(made)));
      calls_.keep_only(alive);
    }
    owes_installed_ = true;
    tell_installed(out);
    send_calls(now, out);
    wake(out);
    return {};
  }
  result<void> on(const proto::view_committed& m, instant now, outbox& out) {
    if (m.view < core_.view())
      return {};
    std::vector<engine::placed_rank> alive;
    for (const proto::view_member& member : m.members)
      alive.push_back({member.rank, member.life});
    if (!names_it(alive)) {
      if (joined_)
        out.fail({ec::stale_incarnation, fmt::format("view {} is without it", m.view.v)});
      return {};
    }
    joined_ = true;
    core_.install_view(m.view, out);
    calls_.keep_only(alive);
    send_calls(now, out);
    tell_installed(out);
    wake(out);
    return {};
  }
  result<void> on(const proto::work_due&, instant now, outbox& out) {
    due_ = false;
    if (!calls_.current())
      return {};
    if (computing_) { // the calls are on their way
      core_.finish(now, out);
      if (options_.steps_in_flight > 1 && !core_.planned())
        core_.plan(now);
      return {};
    }
    return launch(now, out);
  }
  result<void> on(const proto::expert_rows& m, instant now, outbox& out) {
    const auto call = calls_.answered(m.call, m.rows.size() / (toy::hidden * 2));
    if (!call)
      return {};
    for (std::size_t i = 0; i < call->entries.size(); ++i)
      std::memcpy(&answers_[call->entries[i].slot], m.rows.data() + i * toy::hidden * 2, 8);
    tell_installed(out);
    return calls_.complete() ? end_layer(now, out) : result<void>{};
  }
  result<void> on(const proto::expert_moved& m, instant now, outbox& out) {
    calls_.moved(m);
    tell_installed(out);
    send_calls(now, out);
    return {};
  }
  result<void> on(const proto::expert_failed& m, instant, outbox&) {
    return fail(m.code, "{}", m.what);
  }
  result<void> on(const proto::call_known& m, instant now, outbox& out) {
    if (!m.queued)
      calls_.forgotten(m.call);
    send_calls(now, out);
    return {};
  }
  result<proto::rank_state> on(const proto::get_rank&, instant, outbox&) {
    proto::rank_state s;
    s.rank = options_.rank;
    s.life = options_.life;
    s.view = core_.view();
    s.running = core_.running();
    s.waiting = core_.waiting();
    s.unacknowledged = core_.unacknowledged();
    s.calls_open = static_cast<std::uint32_t>(calls_.open());
    return s;
  }
  result<void> on_due(timer which, instant now, outbox& out) {
    if (which.kind != 100)
      return core_.on_due(which, now, out);
    for (const engine::expert_call* call : calls_.take_late(now))
      out.send(engine::shard_path(call->holder.rank),
               proto::ask_call{call->id, options_.rank, options_.life});
    if (!calls_.complete())
      out.arm({100, 0}, ask_after_);
    return {};
  }
  void check() const {
    core_.check();
    calls_.check();
  }
  /// Nothing runs, waits or is kept.
  bool idle() const {
    return core_.running() + core_.waiting() + core_.unacknowledged() == 0 && !computing_
           && kv_.sequences() == 0 && core_.requests() == 0;
  }
  const engine::rank_core& core() const { return core_; }
  const engine::expert_call_core& calls() const { return calls_; }

private:
  bool names_it(const std::vector<engine::placed_rank>& alive) const {
    return std::find(alive.begin(), alive.end(), engine::placed_rank{options_.rank, options_.life})
           != alive.end();
  }
  void tell_installed(outbox& out) {
    if (!owes_installed_ || calls_.settled() < calls_.current()->version())
      return;
    owes_installed_ = false;
    out.send("/control/rebalancer",
             proto::placement_installed{engine::rank_path(options_.rank),
                                        calls_.current()->version(), options_.life});
  }
  void wake(outbox& out) {
    if (!computing_ && calls_.current() && core_.has_work())
      send_work(out);
  }
  void send_work(outbox& out) {
    if (!std::exchange(due_, true))
      out.send(engine::rank_path(options_.rank), proto::work_due{});
  }

  result<void> launch(instant now, outbox& out) {
    const engine::step_plan& plan = core_.launch(now, out);
    if (plan.segments.empty()) {
      core_.finish(now, out);
      wake(out);
      return {};
    }
    computing_ = true;
    rows_.clear();
    for (const engine::planned_segment& s : plan.segments)
      for (std::size_t i = 0; i < s.tokens.size(); ++i)
        rows_.push_back(toy::embed(s.tokens[i], s.first_position + static_cast<std::uint32_t>(i)));
    layer_ = 0;
    return begin_layer(now, out);
  }

  result<void> begin_layer(instant now, outbox& out) {
    std::size_t row = 0;
    experts_.clear();
    for (const engine::planned_segment& s : core_.launched().segments) {
      toy::memory& m = kv_.of(s.sequence);
      if (m.keys[layer_].size() != s.first_position)
        ++*stale_states_;
      for (std::size_t i = 0; i < s.tokens.size(); ++i, ++row) {
        rows_[row] = toy::attend(m, layer_, rows_[row]);
        for (const std::int32_t e : toy::route(rows_[row], layer_, experts_of_layer_))
          experts_.push_back(e);
      }
    }
    answers_.assign(experts_.size(), 0);
    DI_TRY_VOID(calls_.begin({layer_id{layer_}, static_cast<std::uint32_t>(rows_.size()),
                              toy::experts_per_token, experts_, toy::hidden}));
    send_calls(now, out);
    send_work(out);
    return {};
  }

  result<void> end_layer(instant now, outbox& out) {
    for (std::size_t row = 0; row < rows_.size(); ++row)
      rows_[row] = toy::combine(rows_[row], &answers_[row * toy::experts_per_token]);
    if (++layer_ < toy::layers)
      return begin_layer(now, out);
    std::vector<std::vector<float>> values;
    std::vector<std::span<const float>> logits;
    std::size_t row = 0;
    for (const engine::planned_segment& s : core_.launched().segments) {
      row += s.tokens.size();
      values.push_back(s.draws ? toy::logits(rows_[row - 1]) : std::vector<float>{});
    }
    for (const auto& v : values)
      logits.emplace_back(v);
    computing_ = false;
    core_.finish(now, out);
    core_.draw(logits, now);
    if (auto load = calls_.end_step())
      out.send("/control/rebalancer", std::move(*load));
    if (options_.steps_in_flight > 1)
      return launch(now, out);
    core_.finish(now, out);
    wake(out);
    return {};
  }

  void send_calls(instant now, outbox& out) {
    for (const engine::expert_call* call : calls_.take_unsent(now)) {
      proto::expert_batch m;
      m.call = call->id;
      m.caller = options_.rank;
      m.life = options_.life;
      m.placement = call->placement;
      m.layer = call->layer;
      m.decoding = core_.launched().prefill_rows == 0;
      m.hidden = toy::hidden;
      m.rows = static_cast<std::uint32_t>(rows_.size());
      std::vector<std::uint8_t> codes(rows_.size() * toy::hidden);
      for (std::size_t i = 0; i < rows_.size(); ++i)
        std::memcpy(&codes[i * toy::hidden], &rows_[i], 8);
      m.codes = shared_bytes::adopt(std::move(codes));
      m.scales = shared_bytes::adopt(std::vector<std::uint8_t>(rows_.size()));
      for (const engine::call_entry& e : call->entries) {
        m.row.push_back(e.row);
        m.expert.push_back(e.expert);
        m.weight.push_back(toy::weight_of(rows_[e.row], static_cast<std::int32_t>(e.expert)));
      }
      out.send(engine::shard_path(call->holder.rank), std::move(m));
    }
    if (!calls_.complete())
      out.arm({100, 0}, ask_after_);
  }

  engine::rank_options options_;
  std::uint32_t experts_of_layer_;
  duration ask_after_;
  toy::kv kv_;
  engine::rank_core core_;
  engine::expert_call_core calls_;
  std::vector<std::uint64_t> rows_, answers_;
  std::vector<std::int32_t> experts_;
  std::uint32_t layer_ = 0;
  bool computing_ = false, due_ = false, owes_installed_ = false;
  bool joined_ = false; ///< has been in a view
  std::uint64_t* stale_states_;
};

struct toy_rank {
  static constexpr auto kind = "toy_rank";
  using core = toy_rank_core;
  using protocol = actors::rank::protocol;
};

/// The experts that a shard has at hand: everything until it is let go of.
class toy_expert_loader final : public engine::expert_loader {
public:
  explicit toy_expert_loader(std::uint64_t* loads) : loads_{loads} {}
  void announce(layer_id layer, expert_id expert) override { gone_.erase({layer, expert}); }
  std::size_t touch(layer_id layer, expert_id expert, std::size_t done, std::size_t) override {
    if (done < 3)
      return 1; // some turns each
    ++*loads_;
    gone_.erase({layer, expert});
    return 0;
  }
  void release(layer_id layer, expert_id expert) override { gone_.insert({layer, expert}); }
  bool has(layer_id layer, expert_id expert) const { return !gone_.contains({layer, expert}); }

private:
  std::set<std::pair<layer_id, expert_id>> gone_;
  std::uint64_t* loads_;
};

/// A device that computes the toy's experts, for the production shard. Experts that were let go of
/// are an error.
class toy_expert_runner final : public engine::expert_runner {
public:
  explicit toy_expert_runner(std::shared_ptr<const toy_expert_loader> loader = nullptr)
      : loader_{std::move(loader)} {}
  result<void> run(std::span<engine::expert_job> jobs) override {
    for (engine::expert_job& job : jobs) {
      if (loader_ && !loader_->has(job.layer, job.expert))
        return fail(ec::not_found, "expert {} of layer {} was let go of", job.expert.v,
                    job.layer.v);
      for (std::size_t i = 0; i < job.codes.size(); ++i) {
        std::uint64_t row = 0;
        std::memcpy(&row, job.codes[i], 8);
        const std::uint64_t y = toy::expert_output(job.layer.v, job.expert.v, row, job.weights[i]);
        std::memcpy(job.out[i], &y, 8);
      }
    }
    return {};
  }

private:
  std::shared_ptr<const toy_expert_loader> loader_;
};

} // namespace di::sim
