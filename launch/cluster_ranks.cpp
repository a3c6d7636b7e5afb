// SPDX-License-Identifier: Apache-2.0
// Ranks of a run: first lives, later lives, ends.
#include "launch/cluster_run.hpp"
#include "messaging/base/log.hpp"

#include <fmt/format.h>

#include <charconv>
#include <signal.h>

namespace di::launch {

using clock = poll_loop::clock;

child_events cluster::local_events() {
  child_events e;
  e.status = [this](const std::string& c, const std::string& json) { on_status(c, json); };
  e.log = [this](const std::string& c, const std::string& line) { log_.line(c, line); };
  e.lost = [this](const std::string& c, const std::string& how) { on_lost(c, how); };
  e.exited = [this](const std::string& c, exit_state s, const std::string& w) { on_exit(c, s, w); };
  return e;
}

boot_config cluster::boot_for(process_role role, std::uint32_t index,
                              const process_identity& id) const {
  boot_config b;
  b.role = role;
  b.index = index;
  b.node = role == process_role::rank ? o_.plan.ranks[index].node : 0;
  b.life = id.life;
  b.topology_file = o_.config.file;
  b.topology_text = o_.topology_text;
  b.sets = o_.sets;
  b.run_dir = dir_.path();
  b.control_endpoint = id.control_endpoint;
  b.bulk_endpoint = id.bulk_endpoint;
  b.curve = ids_.curve_of(id);
  b.control = control_;
  if (role == process_role::rank && o_.config.shared_memory && o_.plan.nodes[b.node].ranks > 1) {
    const auto& n = o_.plan.nodes[b.node];
    for (std::uint32_t r = n.first_rank; r < n.first_rank + n.ranks; ++r)
      if (r == index || ranks_[r].running || ranks_[r].started == 0)
        b.segment_lives.push_back(ranks_[r].id.life);
    constexpr std::uint64_t page_bytes = 4096;
    b.segment_bytes = (o_.config.segment_bytes + page_bytes - 1) / page_bytes * page_bytes;
  }
  b.threads = role == process_role::rank ? o_.plan.ranks[index].threads : o_.plan.control_threads;
  b.stuck_after_ms = static_cast<std::uint32_t>(
      std::chrono::ceil<std::chrono::milliseconds>(o_.config.stuck_after).count());
  b.trace_spans = o_.trace_spans;
  b.log_level = o_.log_level;
  return b;
}

void cluster::start_ranks() {
  if (ranks_started_ || !control_ || ending_ || greeted_.size() + 1 < o_.plan.nodes.size())
    return;
  ranks_started_ = true;
  for (const auto& r : o_.plan.ranks) {
    if (ending_)
      return;
    if (const auto started = start_rank(r.rank); !started.ok())
      end(exit_gave_up, fmt::format("{}: {}", rank_name(r.rank), started.error().what));
  }
}

result<void> cluster::start_rank(std::uint32_t rank) {
  auto& lives = ranks_[rank];
  const auto node = o_.plan.ranks[rank].node;
  auto boot = boot_for(process_role::rank, rank, lives.id);
  child_spec spec;
  spec.name = rank_name(rank);
  const std::vector<std::string> role{"rank", std::to_string(rank)};
  if (node != 0) {
    const auto remote = remotes_.find(node);
    if (remote == remotes_.end())
      return fail(ec::unavailable, "node {} is gone", node);
    remote->second->send({order_kind::start, spec.name, role, to_json(boot), 0});
  } else {
    spec.argv = {o_.program, "child"};
    spec.argv.insert(spec.argv.end(), role.begin(), role.end());
    DI_TRY_VOID(host_.start_rank(std::move(spec), std::move(boot)));
  }
  lives.running = true;
  lives.ready = lives.lost = false;
  ++lives.started;
  return {};
}

result<void> cluster::fresh_life(std::uint32_t rank) {
  DI_TRY(ranks_[rank].id,
         next_life(ranks_[rank].id, o_.plan.tcp, dir_.path(), fmt::format("rank{}", rank)));
  return {};
}

void cluster::start_again(const child_word& order) {
  node_word answer;
  answer.kind = node_word_kind::start_failed;
  answer.number = order.number;
  answer.rank = order.rank;
  if (order.rank >= ranks_.size()) {
    answer.what = fmt::format("there is no rank {}", order.rank);
    return tell_control(answer);
  }
  answer.node = o_.plan.ranks[order.rank].node;
  auto& lives = ranks_[order.rank];
  const auto started = [&]() -> result<void> {
    if (lives.running)
      return fail(ec::duplicate, "a life of {} runs", rank_name(order.rank));
    DI_TRY_VOID(fresh_life(order.rank));
    return start_rank(order.rank);
  }();
  if (started.ok()) {
    answer.kind = node_word_kind::rank_started;
    answer.life = lives.id.life;
    log_.note(fmt::format("{} starts again, life {} of it", rank_name(order.rank), lives.started));
  } else {
    answer.what = started.error().render();
  }
  tell_control(answer);
}

void cluster::kill_rank(const child_word& order) {
  if (order.rank >= ranks_.size())
    return;
  if (const auto& lives = ranks_[order.rank]; !lives.running || lives.id.life != order.life) {
    // Control missed its end, perhaps because it was itself away: else it would ask for ever.
    auto word = about(node_word_kind::rank_exited, order.rank);
    word.life = order.life;
    word.state.signal = SIGKILL;
    word.what = fmt::format("{}: this life is gone", rank_name(order.rank));
    return tell_control(word);
  }
  const int number = order.politely ? SIGTERM : SIGKILL;
  log_.note(fmt::format("{} gets signal {}: {}", rank_name(order.rank), number, order.what));
  if (const auto node = o_.plan.ranks[order.rank].node; node == 0)
    children_.signal(rank_name(order.rank), number);
  else if (const auto remote = remotes_.find(node); remote != remotes_.end())
    remote->second->send({order_kind::signal, rank_name(order.rank), {}, {}, number});
}

std::optional<std::uint32_t> cluster::rank_of(const std::string& child) const {
  constexpr std::string_view head = "rank ";
  std::uint32_t rank = 0;
  if (!child.starts_with(head))
    return std::nullopt;
  const auto* end = child.data() + child.size();
  const auto read = std::from_chars(child.data() + head.size(), end, rank);
  if (read.ec != std::errc{} || read.ptr != end || rank >= ranks_.size())
    return std::nullopt;
  return rank;
}

node_word cluster::about(node_word_kind kind, std::uint32_t rank) const {
  node_word w;
  w.kind = kind;
  w.rank = rank;
  w.node = o_.plan.ranks[rank].node;
  w.life = ranks_[rank].id.life;
  return w;
}

void cluster::rank_lost(std::uint32_t rank, const std::string& how) {
  auto& lives = ranks_[rank];
  if (ending_ || !lives.running || std::exchange(lives.lost, true))
    return;
  auto word = about(node_word_kind::rank_lost, rank);
  word.what = how;
  tell_control(word);
}

void cluster::rank_exited(std::uint32_t rank, exit_state state, const std::string& words) {
  ranks_[rank].running = false;
  remove_sockets(ranks_[rank].id);
  auto word = about(node_word_kind::rank_exited, rank);
  word.state = state;
  word.what = words;
  tell_control(word);
  if (formed_)
    log_.note(fmt::format("{}; the run goes on", words));
}

void cluster::rank_stuck(std::uint32_t rank, const std::string& phase, std::uint32_t stuck_ms,
                         const std::string& what) {
  if (ending_ || !formed_)
    return; // loading has its own limit, cluster.start_timeout
  auto word = about(node_word_kind::rank_stuck, rank);
  word.phase = phase;
  word.stuck_ms = stuck_ms;
  word.what = what;
  tell_control(word);
  log_.note(fmt::format("{} is stuck in {} for {} ms: {}", rank_name(rank), phase, stuck_ms, what));
}

} // namespace di::launch
