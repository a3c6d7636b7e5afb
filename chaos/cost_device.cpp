// SPDX-License-Identifier: Apache-2.0
// Devices that take time instead of computing.
#include "chaos/cost_device.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace di::chaos {
namespace {

constexpr std::uint32_t ask_due = 100;
constexpr duration ask_after = std::chrono::seconds{60}; // nothing is lost here

constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xBF58'476D'1CE4'E5B9U;
  x ^= x >> 27;
  x *= 0x94D0'49BB'1331'11EBU;
  return x ^ (x >> 31);
}

/// Every token is the same; a choice ends at its length.
class length_sampler final : public engine::choice_sampler {
public:
  explicit length_sampler(std::uint32_t tokens) : left_{tokens} {}
  result<engine::drawn_token> draw(std::span<const float>, std::span<const token_id>,
                                   std::span<const token_id>) override {
    return engine::drawn_token{.token = 1, .logprobs = {}};
  }
  proto::choice_end accept(token_id) override {
    proto::choice_end end;
    end.kept_tokens = ++output_;
    if (output_ >= left_)
      end.reason = proto::finish_reason::length;
    return end;
  }

private:
  std::uint32_t left_, output_ = 0;
};

class cost_runner final : public engine::expert_runner {
public:
  cost_runner(rank_id rank, cost_device& device) : rank_{rank}, device_{device} {}
  result<void> run(std::span<engine::expert_job> jobs) override {
    std::size_t pairs = 0;
    for (const engine::expert_job& job : jobs) {
      pairs += job.codes.size();
      device_.counted.rows[job.layer.v][rank_.v] += job.codes.size();
    }
    device_.world.meter().charge(device_.table.experts_call.us(static_cast<double>(pairs)));
    return {};
  }

private:
  rank_id rank_;
  cost_device& device_;
};

struct cost_rank {
  static constexpr auto kind = "cost_rank";
  using core = cost_rank_core;
  using protocol =
      di::protocol<reacts_to<proto::assign_request>, reacts_to<proto::withdraw_request>,
                   reacts_to<proto::commit_accepted>, reacts_to<proto::commit_refused>,
                   reacts_to<proto::drain_rank>, reacts_to<proto::placement_published>,
                   reacts_to<proto::expert_rows>, reacts_to<proto::expert_moved>,
                   reacts_to<proto::expert_failed>, reacts_to<proto::call_known>,
                   reacts_to<proto::work_due>>;
};

engine::sampler_factory samplers() {
  return [](const proto::request_spec& spec,
            std::uint32_t) -> result<std::unique_ptr<engine::choice_sampler>> {
    return std::unique_ptr<engine::choice_sampler>{
        std::make_unique<length_sampler>(spec.sampling.max_tokens)};
  };
}

} // namespace

expert_lottery::expert_lottery(std::uint32_t layers, std::uint32_t experts, std::uint32_t per_token,
                               double skew)
    : experts_{experts}, per_token_{per_token} {
  std::vector<double> upto(experts);
  double sum = 0;
  for (std::uint32_t e = 0; e < experts; ++e)
    upto[e] = sum += std::pow(e + 1.0, -skew);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    std::vector<std::int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    for (std::uint32_t i = experts - 1; i > 0; --i)
      std::swap(order[i], order[mix(layer * 65'537ULL + i) % (i + 1)]);
    auto& drawn = tickets_.emplace_back(tickets);
    std::size_t e = 0;
    for (std::size_t i = 0; i < tickets; ++i) {
      while (upto[e] < sum * (static_cast<double>(i) + 0.5) / tickets && e + 1 < experts)
        ++e;
      drawn[i] = order[e];
    }
  }
}

void expert_lottery::draw(std::uint64_t row, std::uint32_t layer,
                          std::vector<std::int32_t>& out) const {
  const std::size_t first = out.size();
  for (std::uint64_t turn = 0; out.size() < first + per_token_; ++turn) {
    const std::uint64_t ticket = mix(row * 1024 + layer + (turn << 54U));
    const std::int32_t e = turn < 64 ? tickets_[layer][ticket % tickets]
                                     : static_cast<std::int32_t>(ticket % experts_);
    if (std::find(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), e) == out.end())
      out.push_back(e);
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

double expert_rows_count::moe_lb() const noexcept {
  double sum = 0;
  std::size_t layers = 0;
  for (const auto& of_ranks : rows) {
    std::uint64_t most = 0, all = 0;
    for (const std::uint64_t n : of_ranks) {
      most = std::max(most, n);
      all += n;
    }
    if (all == 0)
      continue;
    sum +=
        static_cast<double>(most) * static_cast<double>(of_ranks.size()) / static_cast<double>(all);
    ++layers;
  }
  return layers == 0 ? 1.0 : sum / static_cast<double>(layers);
}

cost_device::cost_device(cost_table t, cost_world& w, double skew, std::uint32_t ranks)
    : table{std::move(t)},
      world{w},
      lottery{table.layers, table.experts, table.experts_per_token, skew},
      counted{std::vector<std::vector<std::uint64_t>>(table.layers,
                                                      std::vector<std::uint64_t>(ranks))} {
}

cost_rank_core::cost_rank_core(engine::rank_options options, engine::load_window_options load,
                               cost_device& device)
    : options_{options},
      device_{device},
      core_{options, samplers()},
      calls_{options.rank, {options.life, ask_after, std::size_t{16} << 20U, std::move(load)}},
      logits_(options.vocab) {
}

result<void> cost_rank_core::on(const proto::placement_published& m, instant now, outbox& out) {
  DI_TRY(auto made, engine::placement::from(m));
  calls_.install(std::make_shared<const engine::placement>(std::move(made)));
  core_.install_view(m.view, out);
  owes_installed_ = true;
  tell_installed(out);
  send_calls(now, out);
  wake(out);
  return {};
}

result<void> cost_rank_core::on(const proto::work_due&, instant now, outbox& out) {
  due_ = false;
  if (!calls_.current())
    return {};
  if (!computing_)
    return launch(now, out);
  core_.finish(now, out); // the calls are on their way
  if (options_.steps_in_flight > 1 && !core_.planned())
    core_.plan(now);
  return {};
}

result<void> cost_rank_core::on(const proto::expert_rows& m, instant now, outbox& out) {
  const auto call = calls_.answered(m.call, m.rows.size() / (std::size_t{2} * device_.hidden));
  if (!call)
    return {};
  device_.world.meter().charge(device_.table.combine.us(static_cast<double>(call->rows.size())));
  tell_installed(out);
  return calls_.complete() ? end_layer(now, out) : result<void>{};
}

result<void> cost_rank_core::on(const proto::expert_moved& m, instant now, outbox& out) {
  calls_.moved(m);
  tell_installed(out);
  send_calls(now, out);
  return {};
}

result<void> cost_rank_core::on(const proto::expert_failed& m, instant, outbox&) {
  return fail(m.code, "{}", m.what);
}

result<void> cost_rank_core::on(const proto::call_known& m, instant now, outbox& out) {
  if (!m.queued)
    calls_.forgotten(m.call);
  send_calls(now, out);
  return {};
}

result<void> cost_rank_core::on_due(timer which, instant now, outbox& out) {
  if (which.kind != ask_due)
    return core_.on_due(which, now, out);
  return {};
}

void cost_rank_core::tell_installed(outbox& out) {
  if (!owes_installed_ || calls_.settled() < calls_.current()->version())
    return;
  owes_installed_ = false;
  out.send("/control/rebalancer",
           proto::placement_installed{engine::rank_path(options_.rank), calls_.current()->version(),
                                      options_.life});
}

void cost_rank_core::wake(outbox& out) {
  if (!computing_ && calls_.current() && core_.has_work())
    send_work(out);
}

void cost_rank_core::send_work(outbox& out) {
  if (!std::exchange(due_, true))
    out.send(engine::rank_path(options_.rank), proto::work_due{});
}

result<void> cost_rank_core::launch(instant now, outbox& out) {
  const engine::step_plan& plan = core_.launch(now, out);
  if (plan.segments.empty()) {
    core_.finish(now, out);
    wake(out);
    return {};
  }
  computing_ = true;
  launched_ = now;
  rows_.clear();
  row_positions_ = 0;
  for (const engine::planned_segment& s : plan.segments)
    for (std::size_t i = 0; i < s.tokens.size(); ++i) {
      const std::uint64_t position = s.first_position + i;
      rows_.push_back(
          mix((s.sequence << 32U) + (std::uint64_t{options_.rank.v} << 20U) + position));
      row_positions_ += static_cast<double>(position);
    }
  layer_ = 0;
  return begin_layer(now, out);
}

result<void> cost_rank_core::begin_layer(instant now, outbox& out) {
  const auto rows = static_cast<double>(rows_.size());
  const cost_table& t = device_.table;
  device_.world.meter().charge(t.attention.us(rows, row_positions_) + t.dispatch.us(rows));
  experts_.clear();
  for (const std::uint64_t row : rows_)
    device_.lottery.draw(row, layer_, experts_);
  DI_TRY_VOID(calls_.begin({layer_id{layer_}, static_cast<std::uint32_t>(rows_.size()),
                            t.experts_per_token, experts_, device_.hidden}));
  send_calls(now, out);
  send_work(out);
  return {};
}

result<void> cost_rank_core::end_layer(instant now, outbox& out) {
  if (++layer_ < device_.table.layers)
    return begin_layer(now, out);
  std::vector<std::span<const float>> logits;
  double draws = 0;
  for (const engine::planned_segment& s : core_.launched().segments) {
    draws += s.draws;
    logits.emplace_back(s.draws ? std::span<const float>{logits_} : std::span<const float>{});
  }
  device_.world.meter().charge(device_.table.head.us(draws) + device_.table.sample.us(draws));
  const double ms = static_cast<double>((now - launched_).count()) / 1e6;
  device_.step_ms.push_back(ms);
  computing_ = false;
  core_.finish(now, out);
  core_.draw(logits, now);
  core_.keep();
  core_.observe_step(ms);
  if (auto load = calls_.end_step())
    out.send("/control/rebalancer", std::move(*load));
  if (options_.steps_in_flight > 1)
    return launch(now, out);
  core_.finish(now, out);
  wake(out);
  return {};
}

void cost_rank_core::send_calls(instant now, outbox& out) {
  for (const engine::expert_call* call : calls_.take_unsent(now)) {
    proto::expert_batch m;
    m.call = call->id;
    m.caller = options_.rank;
    m.life = options_.life;
    m.placement = call->placement;
    m.layer = call->layer;
    m.decoding = core_.launched().prefill_rows == 0;
    m.hidden = device_.hidden;
    m.rows = static_cast<std::uint32_t>(call->rows.size());
    m.codes = shared_bytes::adopt(std::vector<std::uint8_t>(call->rows.size() * device_.hidden));
    m.scales = shared_bytes::adopt(std::vector<std::uint8_t>(call->rows.size()));
    for (const engine::call_entry& e : call->entries) {
      const auto at = std::lower_bound(call->rows.begin(), call->rows.end(), e.row);
      m.row.push_back(static_cast<std::uint32_t>(at - call->rows.begin()));
      m.expert.push_back(e.expert);
      m.weight.push_back(1);
    }
    out.send(engine::shard_path(call->holder.rank), std::move(m));
  }
}

std::unique_ptr<core_handle> make_cost_rank(engine::rank_options options,
                                            engine::load_window_options load, cost_device& device) {
  return wrap_core<cost_rank>(options, std::move(load), device);
}

std::unique_ptr<core_handle> make_cost_shard(rank_id rank, incarnation life, cost_device& device) {
  actors::shard_parts parts;
  parts.options.rank = rank;
  parts.options.life = life;
  parts.options.hidden = cost_device::hidden;
  parts.runner = std::make_shared<cost_runner>(rank, device);
  return actors::make_expert_shard(std::move(parts));
}

} // namespace di::chaos
