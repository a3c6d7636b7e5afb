// SPDX-License-Identifier: Apache-2.0
// Joining, and following the directory.
#include "actors/registrar.hpp"

#include "actors/directory.hpp"

#include <algorithm>

namespace di::actors {
namespace {

constexpr timer retry_timer{1, 0};
constexpr timer join_timer{2, 0};

// Asking again cannot change these.
bool is_final(ec code) {
  return code == ec::refused || code == ec::duplicate || code == ec::bad_argument
         || code == ec::stale_incarnation || code == ec::limit_exceeded;
}

} // namespace

registrar_core::registrar_core(registrar_options options) : options_{std::move(options)} {
  DI_CHECK(options_.office != nullptr);
}

void registrar_core::start(instant /*now*/, outbox& out) {
  out.arm(join_timer, options_.join_within);
  ask(out);
}

void registrar_core::ask(outbox& out) {
  out.request(options_.directory, proto::announce{options_.process}, ++asked_,
              options_.ask_timeout);
}

result<proto::snapshot_installed> registrar_core::on(const proto::directory_snapshot& m) {
  if (m.version < version_)
    return fail(ec::stale_epoch, "version {} of the directory is older than {}", m.version.v,
                version_.v);
  for (const auto& p : m.processes)
    if (control_ && p.prefix == control_->prefix && p.life != control_->life)
      return fail(ec::stale_incarnation, "version {} of the directory is of life {:016x} of {}",
                  m.version.v, p.life.v, p.prefix);
  const auto& self = options_.process.prefix;
  for (const auto& p : m.processes) {
    if (p.prefix == self)
      continue;
    if (std::find(routes_.begin(), routes_.end(), p) != routes_.end())
      continue;
    DI_TRY_VOID(add_routes(*options_.office, p));
    std::erase_if(routes_, [&](const auto& r) { return r.prefix == p.prefix; });
    routes_.push_back(p);
  }
  for (const auto& r : routes_)
    if (std::none_of(m.processes.begin(), m.processes.end(),
                     [&](const auto& p) { return p.prefix == r.prefix; }))
      remove_routes(*options_.office, r, {ec::peer_lost, r.prefix + " left the directory"});
  std::erase_if(routes_, [&](const auto& r) {
    return std::none_of(m.processes.begin(), m.processes.end(),
                        [&](const auto& p) { return p.prefix == r.prefix; });
  });
  version_ = m.version;
  if (options_.installed)
    options_.installed(m);
  return proto::snapshot_installed{version_, self, options_.process.life};
}

void registrar_core::on(const proto::withdrawn& m, instant /*now*/, outbox& out) {
  const auto found = std::find_if(routes_.begin(), routes_.end(), [&](const auto& r) {
    return r.prefix == m.prefix && r.life == m.life;
  });
  if (found == routes_.end()) {
    out.count("di_registrar_stale_facts_total");
    return;
  }
  remove_routes(*options_.office, *found, {ec::peer_lost, m.prefix + ": " + m.reason});
  routes_.erase(found);
}

result<void> registrar_core::on(const proto::control_moved& m, instant /*now*/, outbox& out) {
  const auto& now_is = m.control;
  const auto known = std::find_if(routes_.begin(), routes_.end(),
                                  [&](const auto& r) { return r.prefix == now_is.prefix; });
  if (known != routes_.end() && known->life == now_is.life)
    return {}; // told before
  if (known != routes_.end()) {
    remove_routes(*options_.office, *known, {ec::peer_lost, "the control process started again"});
    routes_.erase(known);
  }
  DI_TRY_VOID(add_routes(*options_.office, now_is)); // other prefixes come with the next snapshot
  control_ = now_is;
  version_ = {};
  admitted_ = false;
  last_refusal_ = "no answer yet";
  out.count("di_registrar_controls_total");
  out.arm(join_timer, options_.join_within);
  out.disarm(retry_timer);
  ask(out);
  return {};
}

void registrar_core::on(const proto::view_committed& m) {
  if (m.view <= view_)
    return;
  view_ = m.view;
  options_.office->set_view(view_);
}

void registrar_core::on_answer(std::uint64_t tag, const result<parcel>& answer, instant /*now*/,
                               outbox& out) {
  if (tag != asked_)
    return; // an announcement to a control process that is no more
  if (answer) {
    admitted_ = true;
    out.disarm(join_timer);
    return;
  }
  last_refusal_ = answer.error().render();
  if (is_final(answer.error().code))
    return out.fail(answer.error());
  out.arm(retry_timer, options_.retry_after);
}

void registrar_core::on_due(timer which, instant /*now*/, outbox& out) {
  if (which == retry_timer)
    return ask(out);
  if (!admitted_)
    out.fail(
        {ec::deadline_exceeded,
         fmt::format(
             "{} was not admitted by {} within {} ms; last answer: {}", options_.process.prefix,
             options_.directory,
             std::chrono::duration_cast<std::chrono::milliseconds>(options_.join_within).count(),
             last_refusal_)});
}

} // namespace di::actors
