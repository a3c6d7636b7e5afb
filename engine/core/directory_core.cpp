// SPDX-License-Identifier: Apache-2.0
// Announcements, distribution of snapshots, forming of the group.
#include "engine/core/directory_core.hpp"

#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {
namespace {

constexpr timer retry_timer{1, 0};
constexpr timer form_timer{2, 0};
constexpr std::size_t retired_lives_max = 64; // per prefix

bool is_below(const address& path, const address& prefix) {
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '/');
}

std::string listed(const std::vector<address>& names) {
  std::string all;
  for (const auto& n : names)
    all += (all.empty() ? "" : ", ") + n;
  return all;
}

} // namespace

directory_core::directory_core(directory_options options) : options_{std::move(options)} {
}

void directory_core::start(instant /*now*/, outbox& out) {
  if (options_.form_within > duration{})
    out.arm(form_timer, options_.form_within);
}

result<proto::announced> directory_core::on(const proto::announce& m, const origin& from,
                                            instant /*now*/, outbox& out) {
  const auto& p = m.process;
  DI_TRY_VOID(admit(p));
  view_ = std::max(view_, from.view);
  if (p.role == "rank" && !example_)
    example_ = p;
  const auto known = entries_.find(p.prefix);
  if (known == entries_.end() || known->second.process.life != p.life) {
    if (known != entries_.end())
      retire(p.prefix, known->second.process.life);
    version_ = epoch{version_.v + 1};
    entries_[p.prefix] = entry{p, {}, {}, version_, formed_};
    distribute(out);
  }
  const auto absent = missing().size();
  return proto::announced{version_, static_cast<std::uint32_t>(options_.expected.size() - absent),
                          static_cast<std::uint32_t>(options_.expected.size())};
}

result<void> directory_core::admit(const proto::process_entry& p) const {
  if (p.prefix.size() < 2 || p.prefix.front() != '/' || p.life.v == 0)
    return fail(ec::bad_argument, "process '{}' (life {:016x}): a prefix and a life are needed",
                p.prefix, p.life.v);
  const auto known = entries_.find(p.prefix);
  if (known == entries_.end() && entries_.size() >= processes_max)
    return fail(ec::limit_exceeded, "{} processes are known, no more fit", entries_.size());
  if (const auto over = retired_.find(p.prefix);
      over != retired_.end()
      && std::find(over->second.begin(), over->second.end(), p.life) != over->second.end())
    return fail(ec::stale_incarnation, "life {:016x} of {} is over", p.life.v, p.prefix);
  if (known != entries_.end() && known->second.process.life == p.life
      && !(known->second.process == p))
    return fail(ec::duplicate, "{} (life {:016x}) has announced itself differently before",
                p.prefix, p.life.v);
  if (p.role != "rank" || !example_)
    return {};
  // A lone rank may come back with another build; among several the first one holds.
  const auto others = std::any_of(entries_.begin(), entries_.end(), [&](const auto& x) {
    return x.first != p.prefix && x.second.process.role == "rank";
  });
  if (!others && !formed_)
    return {};
  if (example_->contract_id != p.contract_id)
    return fail(ec::refused, "contract '{}' of {} differs from '{}' of {}", p.contract_id, p.prefix,
                example_->contract_id, example_->prefix);
  if (example_->proof != p.proof)
    return fail(ec::refused,
                "{} computes something else than the group: the proof of its known tokens is '{}', "
                "that of {} '{}'",
                p.prefix, p.proof, example_->prefix, example_->proof);
  return {};
}

result<proto::resolved> directory_core::on(const proto::resolve& m) const {
  const proto::process_entry* best = nullptr;
  std::size_t longest = 0;
  const auto offer = [&](const address& prefix, const proto::process_entry& p) {
    if (!is_below(m.path, prefix) || prefix.size() <= longest)
      return;
    best = &p;
    longest = prefix.size();
  };
  for (const auto& [prefix, e] : entries_) {
    offer(prefix, e.process);
    for (const auto& alias : e.process.aliases)
      offer(alias, e.process);
  }
  if (!best)
    return fail(ec::not_found, "no process owns {}; {} are known", m.path, entries_.size());
  return proto::resolved{*best};
}

result<proto::directory_snapshot> directory_core::on(const proto::get_directory& /*m*/) const {
  return snapshot();
}

void directory_core::on(const proto::withdrawn& m, instant /*now*/, outbox& out) {
  const auto known = entries_.find(m.prefix);
  const bool present = known != entries_.end() && known->second.process.life == m.life;
  const bool expected = !formed_ && options_.forms_without_lost
                        && (present || known == entries_.end())
                        && std::erase(options_.expected, m.prefix) > 0;
  if (!present && !expected) {
    out.count("di_directory_stale_facts_total");
    reached("directory.withdraws_unseen");
    retire(m.prefix, m.life); // what it said of itself may come yet
    return;
  }
  retire(m.prefix, m.life);
  if (present) {
    const auto fact = parcel::of(m);
    if (known->second.process.role == "gateway")
      for (const address& to : options_.gateway_lost_to)
        out.forward(to, fact);
    entries_.erase(known);
    version_ = epoch{version_.v + 1};
    for (const auto& [prefix, e] : entries_)
      out.forward(prefix + "/registrar", fact);
  }
  distribute(out);
  settle(out);
}

void directory_core::retire(const address& prefix, incarnation life) {
  auto& over = retired_[prefix];
  if (std::find(over.begin(), over.end(), life) != over.end())
    return;
  over.push_back(life);
  if (over.size() > retired_lives_max)
    over.erase(over.begin());
}

void directory_core::on_answer(std::uint64_t tag, const result<parcel>& answer, instant /*now*/,
                               outbox& out) {
  const auto found = questions_.find(tag);
  if (found == questions_.end())
    return;
  const question q = found->second;
  questions_.erase(found);
  const auto known = entries_.find(q.prefix);
  if (known == entries_.end() || known->second.process.life != q.life)
    return; // gone, or another life by now
  auto& e = known->second;
  const auto* m = answer ? answer->as<proto::snapshot_installed>() : nullptr;
  if (m && m->life == q.life)
    e.installed = std::max(e.installed, q.version);
  if (e.asked == q.version)
    e.asked = {};
  if (e.installed < version_ && e.asked == epoch{})
    out.arm(retry_timer, options_.retry_after);
  settle(out);
}

void directory_core::on_due(timer which, instant /*now*/, outbox& out) {
  if (which == retry_timer)
    return distribute(out);
  if (formed_)
    return;
  std::vector<address> silent;
  for (const auto& [prefix, e] : entries_)
    if (e.installed < version_)
      silent.push_back(prefix);
  const auto absent = missing();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.form_within).count();
  if (!absent.empty())
    return out.fail(
        {ec::deadline_exceeded, fmt::format("after {} ms {} of {} processes are there; missing: {}",
                                            ms, options_.expected.size() - absent.size(),
                                            options_.expected.size(), listed(absent))});
  out.fail({ec::deadline_exceeded,
            fmt::format("after {} ms these processes have not installed their routes: {}", ms,
                        listed(silent))});
}

// --- distribution -----------------------------------------------------------------------------

std::vector<address> directory_core::missing() const {
  std::vector<address> absent;
  for (const auto& prefix : options_.expected)
    if (!entries_.contains(prefix))
      absent.push_back(prefix);
  return absent;
}

proto::directory_snapshot directory_core::snapshot() const {
  proto::directory_snapshot all;
  all.version = version_;
  for (const auto& [prefix, e] : entries_)
    all.processes.push_back(e.process);
  return all;
}

void directory_core::distribute(outbox& out) {
  if (!formed_ && !missing().empty())
    return;
  for (auto& [prefix, e] : entries_) {
    if (e.installed == version_ || e.asked == version_)
      continue;
    e.asked = version_;
    questions_[++last_tag_] = {prefix, e.process.life, version_};
    out.request(prefix + "/registrar", snapshot(), last_tag_, options_.install_timeout);
  }
}

void directory_core::settle(outbox& out) {
  if (formed_)
    return settle_late(out);
  if (!missing().empty() || entries_.empty())
    return;
  for (const auto& [prefix, e] : entries_)
    if (e.installed < version_)
      return;
  formed_ = true;
  out.disarm(form_timer);
  const auto now_formed = proto::group_formed{version_, snapshot().processes, view_};
  for (const auto& listener : options_.formed_to)
    out.send(listener, now_formed);
}

/// Who came late is ready when every process has a version of the book that names it.
void directory_core::settle_late(outbox& out) {
  for (auto& [prefix, late] : entries_) {
    if (!late.late || std::any_of(entries_.begin(), entries_.end(), [&](const auto& x) {
          return x.second.installed < late.since;
        }))
      continue;
    reached("directory.takes_latecomer");
    late.late = false;
    for (const auto& listener : options_.ready_to)
      if (!planted("joiner_forgotten"))
        out.send(listener, proto::process_ready{late.process});
  }
}

void directory_core::check() const {
  DI_CHECK(entries_.size() <= processes_max);
  for (const auto& [prefix, e] : entries_) {
    DI_CHECK(prefix == e.process.prefix);
    DI_CHECK(e.installed <= version_ && e.asked <= version_);
    const auto over = retired_.find(prefix);
    DI_CHECK(over == retired_.end()
             || std::find(over->second.begin(), over->second.end(), e.process.life)
                    == over->second.end());
  }
}

} // namespace di::engine
