// SPDX-License-Identifier: Apache-2.0
// Order of a run: control, then node processes and ranks, work, end; and the same end from every
// other place.
#include "launch/cluster.hpp"

#include "launch/cluster_run.hpp"
#include "launch/signals.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <signal.h>

namespace di::launch {
namespace {

using std::chrono::milliseconds;
using clock = poll_loop::clock;

constexpr milliseconds polite_end{5'000}; ///< after success: SIGTERM until SIGKILL
constexpr milliseconds quick_end{500};    ///< after a failure
constexpr milliseconds node_end{600};     ///< SIGKILL of children until that of node processes
/// A dead rank makes others fail; the kernel reports a large process later than its victims.
constexpr milliseconds cause_wait{30}, cause_wait_control{300};

} // namespace

std::string rank_name(std::uint32_t rank) {
  return fmt::format("rank {}", rank);
}

cluster::cluster(cluster_options options, run_dir dir, run_identities ids, cluster_log& log)
    : o_{std::move(options)},
      dir_{std::move(dir)},
      ids_{std::move(ids)},
      log_{log},
      host_{loop_, local_events(),
            [this](const std::string& child, const std::string& phase, std::uint32_t stuck_ms,
                   const std::string& what) {
              if (const auto rank = rank_of(child))
                rank_stuck(*rank, phase, stuck_ms, what);
              else
                child_stopped(child, stuck_ms);
            }},
      children_{host_.children()},
      beats_{{o_.config.heartbeat_every, o_.config.heartbeat_suspect, o_.config.lease}} {
  for (const auto& id : ids_.ranks)
    ranks_.push_back({id, false, false, false, 0});
  for (const auto& id : ids_.gateways)
    gateways_.push_back({id, false, false, false, 0, 0, {}});
}

int cluster::run() {
  if (!o_.serve && o_.batch.output.empty()) {
    output_.emplace(o_.lines_to);
    loop_.watch(output_->failure_fd(), [this] {
      loop_.forget(output_->failure_fd());
      // Of a reader that has gone control learns too, and ends in peace.
      if (const auto o = output_->outcome(); !o && o.error().code != ec::cancelled)
        end(exit_gave_up, o.error().what);
    });
  }
  serve();
  if (output_) {
    // Signals end the launcher by now, so that a reader who takes nothing may be given up.
    const bool patient = code_ == exit_done || code_ == exit_requests_failed;
    const auto out = output_->finish(patient ? std::nullopt : std::optional{quick_end});
    if (patient && !out && out.error().code != ec::cancelled) {
      code_ = exit_gave_up;
      reason_ = out.error().what;
    }
  }
  if (!reason_.empty())
    log_.last(unanswered_.empty() ? reason_ : fmt::format("{}; {}", reason_, unanswered_));
  log_.finish(); // before the run directory goes, which may hold its files
  return code_;
}

void cluster::serve() {
  signal_source signals{loop_, [this](int number) { on_signal(number); }};
  not_ready_.insert("control");
  for (const auto& r : o_.plan.ranks)
    not_ready_.insert(rank_name(r.rank));
  for (std::uint32_t g = 0; g < gateways_.size(); ++g)
    not_ready_.insert(gateway_name(g));
  loop_.at(clock::now() + o_.config.start_timeout, [this] { late(); });
  open_admin();
  start_control();
  if (!ending_)
    start_nodes();
  loop_.run();
  admin_.reset();
}

void cluster::on_status(const std::string& child, const std::string& json) {
  if (is_child_word(json)) {
    const auto word = parse_child_word(json);
    if (child == "control" && word.ok())
      on_word(*word);
    return;
  }
  const auto s = parse_status(json);
  if (!s.ok())
    return log_.line(child, s.error().render());
  switch (s->kind) {
  case status_kind::bound:
    if (child == "control")
      control_bound(s->self);
    return;
  case status_kind::ready:
    if (const auto rank = rank_of(child))
      ranks_[*rank].ready = true;
    if (not_ready_.erase(child) != 0 && not_ready_.empty()) {
      formed_ = true;
      log_.note(
          fmt::format("all {} processes are ready", o_.plan.ranks.size() + gateways_.size() + 1));
    }
    return tell_progress();
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
  case status_kind::serving:
    if (const auto gateway = gateway_of(child))
      gateway_serves(*gateway);
    return;
  case status_kind::drained:
    if (const auto gateway = gateway_of(child))
      gateways_[*gateway].drained = true;
    return;
  }
}

void cluster::on_lost(const std::string& child, const std::string& how) {
  if (const auto rank = rank_of(child))
    rank_lost(*rank, how);
  if (const auto gateway = gateway_of(child); gateway && !ending_) {
    node_word word;
    word.kind = node_word_kind::gateway_lost;
    word.number = *gateway;
    word.life = gateways_[*gateway].id.life;
    if (!gateways_[*gateway].drained)
      word.what = how;
    tell_control(word);
  }
}

void cluster::on_exit(const std::string& child, exit_state state, const std::string& words) {
  const auto rank = rank_of(child);
  const auto gateway = gateway_of(child);
  if (rank)
    ranks_[*rank].running = false;
  if (gateway)
    gateways_[*gateway].running = false;
  if (ending_)
    return stop_if_empty();
  const auto said = said_.find(child);
  const auto reason = said == said_.end()
                          ? words
                          : fmt::format("{}: {} ({})", child, said->second, to_string(state));
  said_.erase(child);
  if (gateway)
    return gateway_exited(*gateway, state, reason);
  if (!rank)
    return on_control_exit(state, reason);
  rank_exited(*rank, state, reason);
  if (!formed_)
    death_at_start(state, reason);
}

/// The first death is the cause, unless it was itself caused by one that the kernel reports later:
/// a process that was killed beats one that gave up.
void cluster::death_at_start(exit_state state, const std::string& reason) {
  const bool killed = state.signal != 0;
  if (!first_cause_.empty() && (!killed || cause_certain_))
    return;
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

void cluster::on_signal(int number) {
  if (ending_) {
    order_all(SIGKILL);
    return;
  }
  if (o_.serve && number == SIGHUP)
    return reload();
  if (!formed_ && o_.serve)
    return end(exit_done, fmt::format("stopped by signal {} while it started", number));
  if (!formed_)
    return end(exit_gave_up,
               fmt::format("stopped by signal {} before all processes were ready", number));
  if (draining_)
    return end(exit_gave_up, fmt::format("aborted by signal {}", number));
  if (o_.serve)
    return drain_gateways(fmt::format("signal {}", number));
  draining_ = true;
  log_.note(fmt::format("signal {}: no new requests; running ones get {}; a second signal aborts",
                        number, format_time(o_.config.drain_timeout)));
  children_.signal("control", SIGINT); // control drains at SIGINT, ends at SIGTERM
  loop_.at(clock::now() + o_.config.drain_timeout, [this] {
    end(exit_gave_up, fmt::format("requests still ran {} after the first signal",
                                  format_time(o_.config.drain_timeout)));
  });
}

void cluster::late() {
  if (formed_ && o_.serve && !announced_ && !ending_ && !draining_)
    return end(exit_gave_up, fmt::format("all processes are ready, but no token came within {} "
                                         "(cluster.start_timeout); the gateways' logs say why",
                                         format_time(o_.config.start_timeout)));
  if (formed_ || ending_)
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
  const auto gateways = options.serve ? options.serve->gateways.size() : 0;
  auto ids = make_identities(options.config, options.plan, dir->path(),
                             static_cast<std::uint32_t>(gateways));
  if (!ids.ok()) {
    log.last(ids.error().what);
    return exit_usage;
  }
  cluster c{std::move(options), std::move(*dir), std::move(*ids), log};
  return c.run();
}

} // namespace di::launch
