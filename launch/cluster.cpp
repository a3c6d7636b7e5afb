// SPDX-License-Identifier: Apache-2.0
// Order of a run: control, then node processes and ranks, work, end; and the same end from every
// other place.
#include "launch/cluster.hpp"

#include "launch/agent_host.hpp"
#include "launch/child_set.hpp"
#include "launch/cluster_log.hpp"
#include "launch/endpoints.hpp"
#include "launch/node_link.hpp"
#include "launch/remote.hpp"
#include "launch/run_dir.hpp"
#include "launch/segment_set.hpp"
#include "launch/signals.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <signal.h>
#include <unistd.h>

namespace di::launch {
namespace {

using std::chrono::milliseconds;
using clock = poll_loop::clock;

constexpr milliseconds polite_end{5'000}; ///< after success: SIGTERM until SIGKILL
constexpr milliseconds quick_end{500};    ///< after a failure
constexpr milliseconds node_end{600};     ///< SIGKILL of children until that of node processes
/// A dead rank makes others fail; the kernel reports a large process later than its victims.
constexpr milliseconds cause_wait{30}, cause_wait_control{300};

std::string rank_name(std::uint32_t rank) {
  return fmt::format("rank {}", rank);
}

class cluster {
public:
  cluster(cluster_options options, run_dir dir, run_identities ids, cluster_log& log)
      : o_{std::move(options)},
        dir_{std::move(dir)},
        ids_{std::move(ids)},
        log_{log},
        children_{loop_, local_events()} {}

  int run();

private:
  child_events local_events();
  remote_events far_events();
  void start_nodes();
  void await_agents();
  void start_control();
  void start_ranks();
  boot_config boot_for(process_role role, std::uint32_t index, const process_identity& id) const;
  void start_child(std::uint32_t node, child_spec spec, std::vector<std::string> role);

  void on_status(const std::string& child, const std::string& json);
  void on_exit(const std::string& child, exit_state state, const std::string& words);
  void on_signal(int number);
  void take_cores(std::uint32_t node, std::uint32_t cores);
  void on_report(std::uint32_t node, const node_report& r);
  void on_lost(std::uint32_t node, const std::string& words);

  void end(int code, std::string reason);
  void order_all(int number);
  void stop_if_empty();
  void late();

  cluster_options o_;
  run_dir dir_;
  run_identities ids_;
  cluster_log& log_;
  poll_loop loop_;
  child_set children_;
  segment_set segments_;
  std::unique_ptr<agent_host> agents_;
  std::map<std::uint32_t, std::unique_ptr<remote_node>> remotes_;
  std::map<std::string, std::uint32_t> far_children_; ///< running, by name -> node
  std::set<std::uint32_t> greeted_;                   ///< node processes that are there
  std::set<std::string> not_ready_;
  std::map<std::string, std::string> said_; ///< why a child said it ends
  std::optional<bus::peer> control_;
  bool ranks_started_ = false;

  bool ending_ = false, draining_ = false, cause_certain_ = false;
  int code_ = exit_done;
  std::string reason_;
  std::string first_cause_;
  std::string unanswered_; ///< how many prompts, as control said
};

child_events cluster::local_events() {
  return {[this](const std::string& c, const std::string& json) { on_status(c, json); },
          [this](const std::string& c, const std::string& line) { log_.line(c, line); },
          [this](const std::string& c, exit_state s, const std::string& w) { on_exit(c, s, w); }};
}

remote_events cluster::far_events() {
  return {[this](std::uint32_t n, const node_report& r) { on_report(n, r); },
          [this](std::uint32_t n, const std::string& w) { on_lost(n, w); }};
}

int cluster::run() {
  signal_source signals{loop_, [this](int number) { on_signal(number); }};
  not_ready_.insert("control");
  for (const auto& r : o_.plan.ranks)
    not_ready_.insert(rank_name(r.rank));
  loop_.at(clock::now() + o_.config.start_timeout, [this] { late(); });
  start_control();
  if (!ending_)
    start_nodes();
  loop_.run();
  if (!reason_.empty())
    log_.last(unanswered_.empty() ? reason_ : fmt::format("{}; {}", reason_, unanswered_));
  return code_;
}

void cluster::start_control() {
  auto boot = boot_for(process_role::control, 0, ids_.control);
  boot.batch = o_.batch;
  child_spec spec;
  spec.name = "control";
  spec.boot = to_json(boot);
  spec.terminal = o_.batch.progress ? STDERR_FILENO : -1;
  spec.share_stdout = true;
  start_child(0, std::move(spec), {"control", "0"});
}

void cluster::await_agents() {
  auto host = agent_host::make(loop_, o_.config, o_.plan, o_.token_file, far_events(),
                               [this](std::uint32_t node, std::unique_ptr<remote_node> remote) {
                                 remotes_.emplace(node, std::move(remote));
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
  for (const auto& n : o_.plan.nodes) {
    if (n.node == 0 || ending_)
      continue;
    std::vector<std::string> argv{o_.program, "node", "--index", std::to_string(n.node)};
    if (o_.plan.launcher == launcher_kind::ssh) {
      const auto far_program = o_.config.ssh_program.empty() ? o_.program : o_.config.ssh_program;
      argv = o_.config.ssh_command;
      argv.push_back(n.host);
      argv.push_back(fmt::format("exec {} node --index {}", shell_quoted(far_program), n.node));
    }
    auto remote = start_remote(loop_, n.node, std::move(argv), far_events());
    if (!remote.ok())
      return end(exit_gave_up,
                 fmt::format("node {} ({}): {}", n.node, n.host, remote.error().what));
    remotes_.emplace(n.node, std::move(*remote));
  }
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
      b.segment_lives.push_back(ids_.ranks[r].life);
    constexpr std::uint64_t page_bytes = 4096;
    b.segment_bytes = (o_.config.segment_bytes + page_bytes - 1) / page_bytes * page_bytes;
  }
  b.threads = role == process_role::rank ? o_.plan.ranks[index].threads : o_.plan.control_threads;
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
    child_spec spec;
    spec.name = rank_name(r.rank);
    const auto boot = boot_for(process_role::rank, r.rank, ids_.ranks[r.rank]);
    spec.boot = to_json(boot);
    if (r.node == 0) { // other nodes make their own
      auto segments = segments_.descriptors_for(boot);
      if (!segments.ok())
        return end(exit_gave_up, fmt::format("{}: {}", spec.name, segments.error().what));
      spec.segments = std::move(*segments);
    }
    start_child(r.node, std::move(spec), {"rank", std::to_string(r.rank)});
  }
}

void cluster::start_child(std::uint32_t node, child_spec spec, std::vector<std::string> role) {
  if (node != 0) {
    far_children_.emplace(spec.name, node);
    remotes_.at(node)->send(
        {order_kind::start, std::move(spec.name), std::move(role), std::move(spec.boot), 0});
    return;
  }
  spec.argv = {o_.program, "child"};
  spec.argv.insert(spec.argv.end(), role.begin(), role.end());
  if (const auto started = children_.start(spec); !started.ok())
    end(exit_gave_up, fmt::format("{}: {}", spec.name, started.error().what));
}

void cluster::on_status(const std::string& child, const std::string& json) {
  const auto s = parse_status(json);
  if (!s.ok())
    return log_.line(child, s.error().render());
  switch (s->kind) {
  case status_kind::bound:
    if (child == "control") {
      control_ = s->self;
      start_ranks();
    }
    return;
  case status_kind::ready:
    if (not_ready_.erase(child) != 0 && not_ready_.empty())
      log_.note(fmt::format("all {} processes are ready", o_.plan.ranks.size() + 1));
    return;
  case status_kind::failed:
    said_[child] = s->what;
    return;
  case status_kind::finished:
    return;
  case status_kind::notice:
    return log_.tell(s->what);
  case status_kind::unanswered:
    unanswered_ = s->what;
    return;
  }
}

void cluster::on_exit(const std::string& child, exit_state state, const std::string& words) {
  far_children_.erase(child);
  if (ending_)
    return stop_if_empty();
  const auto said = said_.find(child);
  const auto reason = said == said_.end()
                          ? words
                          : fmt::format("{}: {} ({})", child, said->second, to_string(state));
  const bool clean = child == "control" && state.signal == 0
                     && (state.code == exit_done || state.code == exit_usage
                         || state.code == exit_check_failed || state.code == exit_requests_failed);
  if (clean && first_cause_.empty())
    return end(state.code, state.code == exit_done || state.code == exit_requests_failed
                               ? std::string{}
                               : reason);
  // The first death is the cause, unless it was itself caused by one that the kernel reports
  // later: a process that was killed beats one that gave up.
  const bool killed = state.signal != 0;
  if (first_cause_.empty() || (killed && !cause_certain_)) {
    const bool first = first_cause_.empty();
    first_cause_ = reason;
    cause_certain_ = killed;
    if (first) {
      const auto wait = killed ? cause_wait : cause_wait_control;
      loop_.at(clock::now() + wait, [this] { end(exit_gave_up, first_cause_); });
    } else if (killed) {
      end(exit_gave_up, first_cause_);
    }
  }
}

void cluster::on_signal(int number) {
  if (ending_) {
    order_all(SIGKILL);
    return;
  }
  if (!not_ready_.empty())
    return end(exit_gave_up,
               fmt::format("stopped by signal {} before all processes were ready", number));
  if (draining_)
    return end(exit_gave_up, fmt::format("aborted by signal {}", number));
  draining_ = true;
  log_.note(fmt::format("signal {}: no new requests; running ones get {}; a second signal aborts",
                        number, format_time(o_.config.drain_timeout)));
  children_.signal("control", SIGINT); // control drains at SIGINT, ends at SIGTERM
  loop_.at(clock::now() + o_.config.drain_timeout, [this] {
    end(exit_gave_up, fmt::format("requests still ran {} after the first signal",
                                  format_time(o_.config.drain_timeout)));
  });
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
  switch (r.kind) {
  case report_kind::hello:
    greeted_.insert(node);
    log_.note(fmt::format("node {} is there: host {}, {} cores", node, r.host, r.cores));
    take_cores(node, r.cores);
    return start_ranks();
  case report_kind::status:
    return on_status(r.name, r.text);
  case report_kind::log:
    return log_.line(r.name.empty() ? fmt::format("node {}", node) : r.name, r.text);
  case report_kind::exited:
    if (far_children_.contains(r.name))
      on_exit(r.name, r.state, fmt::format("{} on node {}", r.text, node));
    return;
  case report_kind::failed:
    far_children_.erase(r.name);
    return end(exit_gave_up, fmt::format("node {} ({}): {}{}{}", node, o_.plan.nodes[node].host,
                                         r.name, r.name.empty() ? "" : ": ", r.text));
  }
}

void cluster::on_lost(std::uint32_t node, const std::string& words) {
  for (auto it = far_children_.begin(); it != far_children_.end();)
    it = it->second == node ? far_children_.erase(it) : std::next(it);
  // The object is in a callback of its own; it goes when the loop comes round.
  loop_.at(clock::now(), [this, node] {
    remotes_.erase(node);
    if (ending_)
      stop_if_empty();
  });
  end(exit_gave_up, fmt::format("{} (host {})", words, o_.plan.nodes[node].host));
}

void cluster::late() {
  if (not_ready_.empty() || ending_)
    return;
  std::string missing;
  for (const auto& name : not_ready_)
    missing += (missing.empty() ? "" : ", ") + name;
  end(exit_gave_up, fmt::format("not ready within {} (cluster.start_timeout): {}",
                                format_time(o_.config.start_timeout), missing));
}

void cluster::order_all(int number) {
  children_.signal_all(number);
  for (auto& [node, remote] : remotes_)
    remote->send({order_kind::signal, {}, {}, {}, number});
}

void cluster::end(int code, std::string reason) {
  if (ending_)
    return;
  ending_ = true;
  code_ = code;
  reason_ = std::move(reason);
  order_all(SIGTERM);
  for (auto& [node, remote] : remotes_)
    remote->send({order_kind::leave, {}, {}, {}, 0});
  const bool quick = code != exit_done && code != exit_requests_failed;
  const auto kill_at = clock::now() + (quick ? quick_end : polite_end);
  loop_.at(kill_at, [this] { order_all(SIGKILL); });
  loop_.at(kill_at + node_end, [this] {
    for (auto& [node, remote] : remotes_)
      remote->kill();
  });
  stop_if_empty();
}

void cluster::stop_if_empty() {
  if (children_.running() == 0 && remotes_.empty())
    loop_.stop();
}

} // namespace

int run_cluster(cluster_options options) {
  cluster_log log{options.quiet};
  auto dir = run_dir::make();
  if (!dir.ok()) {
    log.last(dir.error().what);
    return exit_gave_up;
  }
  if (const auto opened =
          log.keep(options.log_dir.empty() ? dir->path() + "/log" : options.log_dir);
      !opened.ok()) {
    log.last(opened.error().what);
    return exit_usage;
  }
  auto ids = make_identities(options.config, options.plan, dir->path());
  if (!ids.ok()) {
    log.last(ids.error().what);
    return exit_usage;
  }
  cluster c{std::move(options), std::move(*dir), std::move(*ids), log};
  return c.run();
}

} // namespace di::launch
