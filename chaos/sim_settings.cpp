// SPDX-License-Identifier: Apache-2.0
// Sizes, depths and requests of a simulated cluster, drawn from its seed.
#include "chaos/sim_cluster.hpp"

#include <algorithm>

namespace di::sim {

namespace {

std::vector<proto::request_spec> draw_requests(std::uint32_t ranks, sim_random r) {
  const std::uint64_t most = ranks <= 8 ? 8 * ranks : ranks <= 32 ? 3 * ranks : ranks + ranks / 2;
  std::vector<proto::request_spec> all(r.between(most / 3, most));
  std::uint64_t number = 0;
  for (proto::request_spec& spec : all) {
    spec.request = request_id{++number};
    spec.gateway = "/gateway/0";
    spec.prompt.resize(r.between(1, 20));
    for (token_id& t : spec.prompt)
      t = static_cast<token_id>(r.below(toy::vocab));
    spec.sampling.n = static_cast<std::uint32_t>(r.between(1, 2));
    spec.sampling.max_tokens = static_cast<std::uint32_t>(r.between(1, 40));
    spec.sampling.seed = r.next();
    spec.sampling.logprobs = r.chance(0.5) ? 0 : -1;
    spec.priority = static_cast<std::int32_t>(r.below(5)) - 2;
    spec.tenant = std::string(1, r.chance(0.5) ? 'a' : 'b');
  }
  return all;
}

/// Numbers far behind those of the batch.
std::vector<proto::request_spec> draw_streams(std::uint32_t ranks, sim_random r) {
  std::vector<proto::request_spec> all = draw_requests(std::min(ranks, 8U), r);
  all.resize(std::min<std::size_t>(all.size(), 2 * std::size_t{ranks}));
  for (proto::request_spec& spec : all) {
    spec.request = request_id{spec.request.v + (std::uint64_t{1} << 40U)};
    spec.gateway = "/gateway/1";
  }
  return all;
}

} // namespace

drawn_settings draw_settings(std::uint64_t seed, std::uint32_t ranks) {
  sim_random r = sim_random{seed}.fork(3);
  drawn_settings s;
  s.nodes = ranks < 4 ? 1 : static_cast<std::uint32_t>(r.between(1, std::min(ranks / 2, 4U)));
  s.experts = static_cast<std::uint32_t>(ranks <= 8 ? r.between(3, 12)
                                                    : r.between(ranks / 2, ranks + ranks / 2));
  s.redundant = r.chance(0.5) ? 0 : static_cast<std::uint32_t>(r.below(s.experts));
  engine::rank_options& o = s.rank;
  o.vocab = toy::vocab;
  o.context_tokens = 64;
  s.compute_max = std::chrono::microseconds{r.chance(0.5) ? 100 : r.chance(0.5) ? 400 : 1500};
  o.step_rows = static_cast<std::uint32_t>(r.between(2, 16));
  o.prefill_rows_min = static_cast<std::uint32_t>(r.between(1, 4));
  o.running_max = static_cast<std::uint32_t>(r.between(1, 5));
  o.unacknowledged_max = static_cast<std::uint32_t>(r.between(1, 8));
  o.page_tokens = static_cast<std::uint32_t>(r.between(1, 8));
  o.kv_tokens = r.between(72, 200);
  o.steps_in_flight = static_cast<std::uint32_t>(r.between(1, 2));
  s.slice_rows = static_cast<std::uint32_t>(r.between(1, 9));
  s.policy.seed = seed;
  if (r.chance(0.5)) { // experts move while it runs: at random, or by load whatever the gain
    s.policy.mode =
        r.chance(0.5) ? engine::rebalance_mode::forced : engine::rebalance_mode::automatic;
    s.policy.bins = 1;
    s.policy.interval_steps = static_cast<std::uint32_t>(r.between(1, ranks <= 8 ? 6 : 30));
    s.policy.epoch_moves = static_cast<std::uint32_t>(r.below(5));
    s.policy.begin_above = s.policy.end_below = 1;
    s.policy.gain_min = 0.001;
  }
  s.loss = r.chance(0.75)  ? engine::on_loss::shrink
           : seed % 2 == 0 ? engine::on_loss::restart
                           : engine::on_loss::restart_smaller;
  if (s.loss == engine::on_loss::shrink && seed % 4 == 0)
    s.members_min = ranks - ranks / 4 - 1; // some losses it bears, then it waits
  s.requests = draw_requests(ranks, r.fork(1));
  s.streams = draw_streams(ranks, r.fork(2));
  s.window =
      static_cast<std::uint32_t>(ranks <= 8 ? r.between(1, 8) : r.between(ranks / 2, 2 * ranks));
  return s;
}

} // namespace di::sim
