// SPDX-License-Identifier: Apache-2.0
// Builds a group out of the production cores and cost devices, runs a load, and measures it.
#include "chaos/cost_run.hpp"

#include "actors/serving.hpp"
#include "chaos/cost_device.hpp"
#include "chaos/sim_client.hpp"
#include "engine/core/gateway_core.hpp"
#include "messaging/proto/membership.hpp"

#include <algorithm>
#include <cmath>

namespace di::chaos {
namespace {

constexpr duration never = std::chrono::hours{1}; // nothing is lost here

std::vector<proto::request_spec> requests_of(const cost_load& load) {
  std::vector<proto::request_spec> all(std::size_t{load.ranks} * load.sequences_per_rank);
  std::uint64_t number = 0;
  for (proto::request_spec& spec : all) {
    spec.request = request_id{++number};
    spec.gateway = "/gateway/0";
    spec.prompt.assign(load.prompt_tokens, 1);
    spec.sampling.max_tokens = load.output_tokens;
    spec.sampling.seed = number;
    spec.sampling.ignore_eos = true;
  }
  return all;
}

double share_of(std::vector<double> values, double share) {
  if (values.empty())
    return 0;
  const auto at = std::min(values.size() - 1,
                           static_cast<std::size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

engine::rebalancer_options placing(const cost_table& t, const cost_options& o) {
  engine::rebalancer_options p;
  p.groups = {{0, t.layers, t.experts}};
  p.redundant = o.redundant;
  p.resend_after = never;
  if (o.rebalance) {
    p.policy.mode = engine::rebalance_mode::automatic;
    p.policy.window_steps = 8;
    p.policy.interval_steps = 16;
    p.policy.moves_max = 1U << 20U;
    p.policy.epoch_moves = 1U << 20U;
  }
  return p;
}

void add_control(cost_world& world, std::size_t host, const cost_table& t, const cost_options& o,
                 engine::gateway_core& gateway) {
  engine::journal_options book;
  book.resend_after = never;
  engine::scheduler_options plan;
  plan.resend_after = plan.remind_after = never;
  plan.queue_max = 1U << 20U;
  world.add(host, "control", "/control/rebalancer", actors::make_rebalancer(placing(t, o)));
  world.add(host, "control", "/control/scheduler", actors::make_scheduler(plan));
  world.add(host, "control", "/control/journal", actors::make_journal(book));
  world.add(host, "control", "/gateway/0", wrap_core<sim::client_type>(&gateway));
}

/// Ranks of the topology's defaults.
void add_ranks(cost_world& world, std::size_t control_host, const cost_options& o,
               cost_device& device, proto::view_committed& view) {
  std::size_t host = control_host;
  for (std::uint32_t r = 0; r < o.load.ranks; ++r) {
    if (o.ranks_per_host != 0 && r % o.ranks_per_host == 0)
      host = world.add_host(o.host_cores);
    engine::rank_options options;
    options.rank = rank_id{r};
    options.life = incarnation{r + 1ULL};
    options.vocab = 2;
    options.context_tokens = o.load.prompt_tokens + o.load.output_tokens;
    options.step_rows = 128;
    options.prefill_rows_max = 64;
    options.running_max = std::max(32U, o.load.sequences_per_rank);
    options.kv_tokens = std::uint64_t{options.running_max} * (options.context_tokens + 128);
    options.resend_after = never;
    options.steps_in_flight = 2;
    options.step_ms = 100;
    const std::string process = "rank " + std::to_string(r);
    engine::load_window_options load;
    if (o.rebalance)
      load = {8, 1};
    world.add(host, process, engine::rank_path(options.rank),
              make_cost_rank(options, load, device));
    world.add(host, process, engine::shard_path(options.rank),
              make_cost_shard(options.rank, options.life, device));
    view.members.push_back({options.rank, {}, options.life, "/rank/" + std::to_string(r)});
  }
}

void measure(engine::gateway_core& gateway, const cost_load& load, cost_outcome& out) {
  std::vector<double> first, user;
  std::vector<std::vector<std::uint64_t>> times;
  std::uint64_t begin = 0, end = ~0ULL;
  while (const auto choices = gateway.take_finished())
    for (const engine::collected_choice& c : *choices) {
      if (c.token_us.empty())
        continue;
      begin = std::max(begin, c.token_us.front());
      end = std::min(end, c.token_us.back());
      first.push_back(static_cast<double>(c.first_token_us) / 1e3);
      const auto us = static_cast<double>(c.token_us.back() - c.token_us.front());
      if (us > 0)
        user.push_back(1e6 * static_cast<double>(c.token_us.size() - 1) / us);
      out.elapsed_ms = std::max(out.elapsed_ms, static_cast<double>(c.token_us.back()) / 1e3);
      times.push_back(c.token_us);
    }
  std::size_t tokens = 0;
  for (const auto& t : times)
    tokens += static_cast<std::size_t>(std::count_if(
        t.begin(), t.end(), [&](std::uint64_t at) { return at > begin && at <= end; }));
  if (end > begin)
    out.tokens_per_s = 1e6 * static_cast<double>(tokens) / static_cast<double>(end - begin);
  out.rank_tokens_per_s = out.tokens_per_s / load.ranks;
  out.user_tokens_per_s = share_of(std::move(user), 0.5);
  out.first_token_ms = share_of(first, 0.5);
  out.first_token_p99_ms = share_of(std::move(first), 0.99);
}

} // namespace

result<cost_outcome> simulate_load(const cost_table& table, const cost_options& options) {
  const cost_load& load = options.load;
  if (load.ranks == 0 || load.ranks > 4096 || load.sequences_per_rank == 0
      || load.prompt_tokens == 0 || load.output_tokens < 2)
    return fail(ec::bad_argument, "{} ranks with {} sequences of {} and {} tokens", load.ranks,
                load.sequences_per_rank, load.prompt_tokens, load.output_tokens);
  const auto requests = requests_of(load);
  engine::gateway_options front;
  front.window = static_cast<std::uint32_t>(requests.size());
  front.resend_after = never;
  front.submit.assign(requests.size(), {0, true});
  engine::gateway_core gateway{front, requests};
  cost_world world{{table.mail_us, table.wake_us, table.local_us, table.latency_us}};
  cost_device device{table, world, options.skew, load.ranks};
  const std::size_t first_host = world.add_host(options.host_cores);
  proto::view_committed view;
  view.view = epoch{1};
  add_control(world, first_host, table, options, gateway);
  add_ranks(world, first_host, options, device, view);
  world.inject("/control/rebalancer", parcel::of(std::move(view)));
  world.inject("/gateway/0", parcel::of(proto::start_batch{}));
  if (!world.run([&] { return gateway.done(); }, options.mails_max))
    return fail(ec::unavailable, "{} ranks: {} at {} ms of virtual time", load.ranks,
                world.failure().empty() ? "not done" : world.failure(), world.now().ns / 1'000'000);
  cost_outcome out;
  measure(gateway, load, out);
  out.step_ms = share_of(device.step_ms, 0.5);
  out.moe_lb = device.counted.moe_lb();
  out.mails = world.mails();
  out.control_share = world.busy_share(first_host);
  out.busy_share = out.control_share;
  if (options.ranks_per_host != 0) {
    double sum = 0;
    const std::size_t hosts = (load.ranks + options.ranks_per_host - 1) / options.ranks_per_host;
    for (std::size_t h = 1; h <= hosts; ++h)
      sum += world.busy_share(first_host + h);
    out.busy_share = sum / static_cast<double>(hosts);
  }
  return out;
}

} // namespace di::chaos
