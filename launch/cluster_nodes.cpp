// SPDX-License-Identifier: Apache-2.0
// Node processes of a run: their start, what they report, their silence, their loss.
#include "launch/cluster_run.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <signal.h>

namespace di::launch {

using clock = poll_loop::clock;

namespace {

/// Losses of one node process after which it stays away.
constexpr std::size_t node_deaths_max = 3;
constexpr std::chrono::minutes node_deaths_span{10};
constexpr std::chrono::seconds node_hold_off{1}; ///< doubles

} // namespace

remote_events cluster::far_events() {
  return {[this](std::uint32_t n, const node_report& r) { on_report(n, r); },
          [this](std::uint32_t n, const std::string& w) { on_node_lost(n, w); }};
}

void cluster::await_agents() {
  auto host = agent_host::make(loop_, o_.config, o_.plan, o_.token_file, far_events(),
                               [this](std::uint32_t node, std::unique_ptr<remote_node> remote) {
                                 remotes_.insert_or_assign(node, std::move(remote));
                               });
  if (!host.ok())
    return end(exit_gave_up, host.error().what);
  agents_ = std::move(*host);
  log_.note(fmt::format("waiting for {} agents: dilaunch agent --join {} --token-file {}",
                        o_.plan.nodes.size() - 1, agents_->self().control_endpoint, o_.token_file));
}

void cluster::start_nodes() {
  if (o_.plan.launcher == launcher_kind::agent && o_.plan.nodes.size() > 1)
    return await_agents();
  for (const auto& n : o_.plan.nodes)
    if (n.node != 0 && !ending_)
      if (const auto started = start_node(n); !started.ok())
        return end(exit_gave_up,
                   fmt::format("node {} ({}): {}", n.node, n.host, started.error().what));
}

result<void> cluster::start_node(const planned_node& n) {
  std::vector<std::string> argv{o_.program, "node", "--index", std::to_string(n.node)};
  if (o_.plan.launcher == launcher_kind::ssh) {
    const auto far_program = o_.config.ssh_program.empty() ? o_.program : o_.config.ssh_program;
    argv = o_.config.ssh_command;
    argv.push_back(n.host);
    argv.push_back(fmt::format("exec {} node --index {}", shell_quoted(far_program), n.node));
  }
  DI_TRY(auto remote, start_remote(loop_, n.node, std::move(argv), far_events()));
  remotes_.insert_or_assign(n.node, std::move(remote));
  return {};
}

/// A host whose cores the plan could not know: its ranks share what it says it has.
void cluster::take_cores(std::uint32_t node, std::uint32_t cores) {
  auto& n = o_.plan.nodes[node];
  if (n.cores != 0 || o_.config.threads != 0)
    return;
  n.cores = cores;
  for (std::uint32_t r = n.first_rank; r < n.first_rank + n.ranks; ++r)
    o_.plan.ranks[r].threads = std::max(1U, cores / n.ranks);
}

void cluster::on_report(std::uint32_t node, const node_report& r) {
  if (!remotes_.contains(node))
    return; // it was given up
  beats_.heard(node, clock::now().time_since_epoch());
  const auto rank = rank_of(r.name);
  const bool known = rank && o_.plan.ranks[*rank].node == node && ranks_[*rank].running;
  switch (r.kind) {
  case report_kind::hello:
    greeted_.insert(node);
    beats_.add(node, clock::now().time_since_epoch());
    if (!beating_)
      beat();
    log_.note(fmt::format("node {} is there: host {}, {} cores", node, r.host, r.cores));
    take_cores(node, r.cores);
    if (formed_) {
      node_word there;
      there.kind = node_word_kind::node_there;
      there.node = node;
      tell_control(there);
    }
    return start_ranks();
  case report_kind::status:
    return on_status(r.name, r.text);
  case report_kind::log:
    return log_.line(r.name.empty() ? fmt::format("node {}", node) : r.name, r.text);
  case report_kind::lost:
    if (known)
      on_lost(r.name, r.text);
    return;
  case report_kind::stuck:
    if (known)
      rank_stuck(*rank, r.phase, r.stuck_ms, r.text);
    return;
  case report_kind::beat:
    return;
  case report_kind::exited:
    if (known)
      on_exit(r.name, r.state, fmt::format("{} on node {}", r.text, node));
    return;
  case report_kind::failed: {
    const auto words = fmt::format("node {} ({}): {}{}{}", node, o_.plan.nodes[node].host, r.name,
                                   r.name.empty() ? "" : ": ", r.text);
    if (!formed_)
      return end(exit_gave_up, words);
    if (!known) // a node process that cannot go on ends, and is lost
      return log_.note(words);
    rank_lost(*rank, words);
    return on_exit(r.name, {255, 0}, words);
  }
  }
}

void cluster::on_node_lost(std::uint32_t node, const std::string& words) {
  const auto at = remotes_.find(node);
  if (at == remotes_.end())
    return; // silence and death of the same node process
  const auto why = fmt::format("{} (host {})", words, o_.plan.nodes[node].host);
  // The object is in a callback of its own, so it goes when the loop comes round; an agent may take
  // its place before.
  going_.push_back(std::move(at->second));
  remotes_.erase(at);
  loop_.at(clock::now(), [this, node] {
    going_.clear();
    if (ending_)
      stop_if_empty();
    else if (formed_)
      start_node_again(node);
  });
  greeted_.erase(node);
  beats_.remove(node);
  if (!ending_ && formed_) {
    log_.note(fmt::format("{}; its ranks are lost, the run goes on", why));
    node_word word;
    word.kind = node_word_kind::node_lost;
    word.node = node;
    word.what = why;
    tell_control(word);
  }
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    if (o_.plan.ranks[r].node == node && ranks_[r].running) {
      if (formed_) {
        rank_lost(r, why);
        rank_exited(r, {0, SIGKILL}, fmt::format("{}: {}", rank_name(r), why));
      }
      ranks_[r].running = false;
    }
  if (!formed_)
    end(exit_gave_up, why);
}

/// A node process that ended is started again a while later; agents come back by themselves.
void cluster::start_node_again(std::uint32_t node) {
  if (agents_)
    return;
  auto& deaths = node_deaths_[node];
  const auto now = clock::now();
  while (!deaths.empty() && deaths.front() + node_deaths_span < now)
    deaths.pop_front();
  deaths.push_back(now);
  if (deaths.size() > node_deaths_max)
    return log_.note(
        fmt::format("node {} stays away: it was lost {} times in 10 min", node, deaths.size()));
  loop_.at(now + node_hold_off * (1U << (deaths.size() - 1)), [this, node] {
    if (ending_ || remotes_.contains(node))
      return;
    if (const auto started = start_node(o_.plan.nodes[node]); !started.ok())
      log_.note(fmt::format("node {}: {}", node, started.error().what));
  });
}

/// One round of heartbeats.
void cluster::beat() {
  beating_ = true;
  const auto now = clock::now().time_since_epoch();
  const auto silence = [&](std::uint32_t node) {
    return format_time(
        std::chrono::duration_cast<std::chrono::milliseconds>(beats_.silence(node, now)));
  };
  const auto found = beats_.round(now);
  for (const auto node : found.silent)
    log_.note(fmt::format("node {} is silent for {}: suspected", node, silence(node)));
  for (const auto node : found.answered)
    log_.note(fmt::format("node {} answers again", node));
  for (const auto node : found.lost)
    if (const auto remote = remotes_.find(node); remote != remotes_.end()) {
      remote->second->kill();
      on_node_lost(node, fmt::format("node process {}: silent for longer than its lease ({})", node,
                                     format_time(o_.config.lease)));
    }
  for (const auto node : beats_.nodes())
    if (const auto remote = remotes_.find(node); remote != remotes_.end())
      remote->second->send({order_kind::beat, {}, {}, {}, 0});
  loop_.at(clock::now() + o_.config.heartbeat_every, [this] { beat(); });
}

} // namespace di::launch
