// SPDX-License-Identifier: Apache-2.0
// The control process in a run: its start, its lives, what it hears and what it orders.
#include "launch/cluster_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <signal.h>
#include <unistd.h>

namespace di::launch {
namespace {

using clock = poll_loop::clock;

/// Lives of control that may end by a signal within the span.
constexpr std::size_t control_deaths_max = 3;
constexpr std::chrono::minutes control_deaths_span{10};
/// Of control and of gateways. Stopped for this long and for so many times supervisor.stuck_after
/// it is killed: ranks go on without it for a while, and what it remembers is worth more than a
/// rank's.
constexpr std::chrono::milliseconds control_stopped_min{1'000};
constexpr int control_stopped_factor = 4;

} // namespace

void cluster::start_control() {
  auto boot = boot_for(process_role::control, 0, ids_.control);
  if (!o_.serve)
    boot.batch = o_.batch;
  boot.journal = o_.journal;
  if (boot.journal && boot.journal->folder.empty())
    boot.journal->folder = dir_.path() + "/journal";
  if (control_lives_ > 0)
    boot.recovering = recovering();
  ++control_lives_;
  child_spec spec;
  spec.name = "control";
  spec.argv = {o_.program, "child", "control", "0"};
  spec.boot = to_json(boot);
  spec.terminal = boot.batch && o_.batch.progress ? STDERR_FILENO : -1;
  spec.pipe_stdout = boot.batch && o_.batch.output.empty();
  if (const auto started = host_.start_other(spec, stopped_max()); !started.ok())
    return end(exit_gave_up, fmt::format("{}: {}", spec.name, started.error().what));
  if (spec.pipe_stdout)
    output_->open(children_.take_output(spec.name));
}

std::chrono::milliseconds cluster::stopped_max() const {
  const auto after = std::chrono::ceil<std::chrono::milliseconds>(o_.config.stuck_after);
  return after.count() == 0 ? after : std::max(control_stopped_min, control_stopped_factor * after);
}

recovering_boot cluster::recovering() const {
  recovering_boot r;
  r.lives = control_lives_;
  if (output_) {
    r.lines_written = output_->lines();
    r.lines_failed = output_->failed();
  }
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].running && !ranks_[rank].lost)
      r.ranks.push_back({rank, o_.plan.ranks[rank].node, ranks_[rank].id.life, ranks_[rank].ready});
  return r;
}

void cluster::on_control_exit(exit_state state, const std::string& reason) {
  control_.reset();
  refuse_admins("the control process has ended; what became of the order shows `dilaunch status`");
  if (output_)
    output_->close();
  remove_sockets(ids_.control);
  const bool clean = state.signal == 0
                     && (state.code == exit_done || state.code == exit_usage
                         || state.code == exit_check_failed || state.code == exit_requests_failed);
  if (clean && first_cause_.empty())
    return end(state.code, state.code == exit_done || state.code == exit_requests_failed
                               ? std::string{}
                               : reason);
  if (!formed_)
    return death_at_start(state, reason);
  if (state.signal == 0 || (draining_ && !o_.serve))
    return end(exit_gave_up, reason);
  restart_control(reason);
}

/// Control or a gateway: as if it had died, it starts again within its budget.
void cluster::child_stopped(const std::string& child, std::uint32_t stuck_ms) {
  if (ending_)
    return;
  log_.note(fmt::format("{} was stopped by a signal for {} ms: killed", child, stuck_ms));
  children_.signal(child, SIGKILL);
}

void cluster::restart_control(const std::string& reason) {
  const auto now = clock::now();
  while (!control_deaths_.empty() && control_deaths_.front() + control_deaths_span < now)
    control_deaths_.pop_front();
  control_deaths_.push_back(now);
  if (control_deaths_.size() > control_deaths_max)
    return end(exit_gave_up,
               fmt::format("{}; it was the {}th time in 10 min", reason, control_deaths_.size()));
  auto id = next_life(ids_.control, o_.plan.tcp, dir_.path(), "control0");
  if (!id.ok())
    return end(exit_gave_up, fmt::format("{}; {}", reason, id.error().what));
  ids_.control = std::move(*id);
  log_.note(fmt::format("{}; starting it again", reason));
  start_control();
}

void cluster::control_bound(const bus::peer& self) {
  control_ = self;
  if (control_lives_ > 1) {
    node_word word;
    word.kind = node_word_kind::control_is;
    word.peer = self;
    children_.tell_ranks(word);
    tell_gateways(word);
    for (auto& [node, remote] : remotes_)
      remote->send({order_kind::tell, {}, {}, to_json(word), 0});
  }
  start_gateways();
  start_ranks();
}

void cluster::tell_control(const node_word& word) {
  children_.tell("control", word);
}

void cluster::on_word(const child_word& word) {
  if (ending_)
    return;
  switch (word.kind) {
  case child_word_kind::start_rank:
    return start_again(word);
  case child_word_kind::kill_rank:
    return kill_rank(word);
  case child_word_kind::admin_reply:
    if (word.last)
      admin_waiting_.erase(word.number);
    return admin_->reply(word.number, word.what, word.last);
  }
}

void cluster::open_admin() {
  admin_server::events on;
  on.line = [this](std::uint64_t connection, const std::string& line) {
    on_admin(connection, line);
  };
  on.gone = [this](std::uint64_t connection) {
    if (admin_waiting_.erase(connection) == 0 || !control_)
      return;
    node_word word;
    word.kind = node_word_kind::admin_gone;
    word.number = connection;
    tell_control(word);
  };
  auto server = admin_server::make(loop_, dir_.path(), std::move(on));
  if (!server.ok())
    return end(exit_gave_up, server.error().what);
  admin_ = std::move(*server);
}

void cluster::on_admin(std::uint64_t connection, const std::string& line) {
  if (on_own_order(connection, line))
    return;
  if (!control_ || !formed_ || ending_)
    return admin_->reply(connection,
                         admin_error("unavailable", ending_    ? "the run is ending"
                                                    : !formed_ ? "the processes are still starting"
                                                               : "the control process is starting "
                                                                 "again"),
                         true);
  admin_waiting_.insert(connection);
  node_word word;
  word.kind = node_word_kind::admin;
  word.number = connection;
  word.what = line;
  tell_control(word);
}

void cluster::refuse_admins(const std::string& why) {
  for (const auto connection : std::exchange(admin_waiting_, {}))
    admin_->reply(connection, admin_error("unavailable", why), true);
}

} // namespace di::launch
