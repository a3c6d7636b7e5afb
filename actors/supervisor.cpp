// SPDX-License-Identifier: Apache-2.0
// Carrying out of restart decisions.
#include "actors/supervisor.hpp"

#include <algorithm>

namespace di::actors {
namespace {

std::vector<engine::restart_rule> rules_of(const std::vector<child_spec>& children) {
  std::vector<engine::restart_rule> rules;
  for (const auto& child : children)
    rules.push_back(child.restart);
  return rules;
}

} // namespace

result<void> local_launcher::start(const child_spec& child, std::uint64_t life, ended_fn ended) {
  spawn_options options;
  options.detached = child.detached;
  options.life = life;
  options.listen = child.listen;
  options.ended = [host = host_, ended = std::move(ended)](const error& reason) {
    if (!host->closing()) // else nobody is to start it again, or to give up over it
      ended(reason);
  };
  return host_->spawn(*types_, child.kind, child.path, child.config, std::move(options));
}

void local_launcher::stop(const child_spec& child, std::uint64_t /*life*/, const error& reason) {
  host_->stop(child.path, reason); // a path has one life at a time
}

supervisor_core::supervisor_core(supervisor_options options)
    : options_{std::move(options)},
      core_{rules_of(options_.children), options_.seed},
      last_reasons_(options_.children.size()) {
  DI_CHECK(options_.launcher != nullptr);
  DI_CHECK(options_.office != nullptr);
}

supervisor_core::~supervisor_core() {
  for (const auto& action : core_.stop())
    options_.launcher->stop(options_.children[action.child], action.life,
                            {ec::unavailable, "supervisor " + options_.self + " has ended"});
}

void supervisor_core::start(instant now, outbox& out) {
  carry_out(core_.start(now), out);
  settle(now, out);
}

void supervisor_core::on(const proto::child_down& m, instant now, outbox& out) {
  const auto i = index_of(m.path);
  const error reason{m.code, m.what};
  if (i < core_.size() && m.life == core_.life(i))
    last_reasons_[i] = reason.render();
  const auto stale = core_.stale_downs();
  carry_out(core_.on_down(i, m.life, reason, now), out);
  if (core_.stale_downs() != stale)
    out.count("di_supervisor_stale_downs_total");
  settle(now, out);
}

void supervisor_core::on_due(timer /*which*/, instant now, outbox& out) {
  carry_out(core_.on_due(now), out);
  settle(now, out);
}

result<proto::children> supervisor_core::on(const proto::get_children& /*m*/) const {
  proto::children all;
  for (std::size_t i = 0; i < core_.size(); ++i)
    all.entries.push_back({options_.children[i].path, options_.children[i].kind,
                           std::string{to_string(core_.state(i))}, core_.life(i), core_.restarts(i),
                           last_reasons_[i]});
  return all;
}

void supervisor_core::on(const proto::kill_child& m, instant /*now*/, outbox& out) {
  const auto i = index_of(m.path);
  if (i >= core_.size() || core_.state(i) != engine::child_state::running) {
    out.count("di_supervisor_kills_ignored_total");
    return;
  }
  // Not through restart_core: for it this is a death like any other.
  options_.launcher->stop(options_.children[i], core_.life(i), {ec::cancelled, m.reason});
}

void supervisor_core::on(const proto::stop_children& /*m*/, instant now, outbox& out) {
  stopping_ = true;
  carry_out(core_.stop(), out);
  settle(now, out);
}

void supervisor_core::carry_out(const std::vector<engine::restart_action>& actions, outbox& out) {
  using kind = engine::restart_action::kind;
  for (const auto& action : actions) {
    switch (action.what) {
    case kind::start:
      start_child(action.child, action.life, out);
      break;
    case kind::stop:
      options_.launcher->stop(options_.children[action.child], action.life,
                              {ec::unavailable, "stopped by supervisor " + options_.self});
      break;
    case kind::give_up: {
      error reason = *action.reason;
      reason.what = options_.children[action.child].path + ": " + reason.what;
      if (options_.publish)
        out.send(topic_address, proto::subtree_gave_up{options_.self, reason.what});
      out.fail(std::move(reason));
      break;
    }
    }
  }
}

void supervisor_core::start_child(std::size_t i, std::uint64_t life, outbox& out) {
  const auto& child = options_.children[i];
  const auto started = options_.launcher->start(
      child, life,
      [office = options_.office, self = options_.self, path = child.path,
       life](const error& reason) {
        envelope mail;
        mail.to = self;
        mail.from = path;
        mail.body = parcel::of(proto::child_down{path, life, reason.code, reason.what});
        // If the supervisor is gone, nobody needs to know.
        [[maybe_unused]] const auto sent = office->post(std::move(mail));
      });
  if (!started) {
    // Through the mailbox like every other end, so that restart_core sees one event at a time.
    out.send(options_.self, proto::child_down{child.path, life, started.error().code,
                                              "start failed: " + started.error().what});
    return;
  }
  if (life == 1)
    return;
  out.count("di_supervisor_restarts_total");
  if (options_.publish)
    out.send(topic_address,
             proto::child_restarted{child.path, life, core_.restarts(i), last_reasons_[i]});
}

void supervisor_core::settle(instant now, outbox& out) {
  if (const auto next = core_.next_due())
    out.arm({1, 0}, std::max(duration{}, *next - now));
  if (stopping_ && core_.all_down())
    out.fail({ec::ok, "all children have ended"});
}

std::size_t supervisor_core::index_of(const address& path) const {
  const auto found = std::find_if(options_.children.begin(), options_.children.end(),
                                  [&](const child_spec& c) { return c.path == path; });
  return static_cast<std::size_t>(found - options_.children.begin());
}

} // namespace di::actors
