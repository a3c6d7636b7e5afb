// SPDX-License-Identifier: Apache-2.0
// Finding events, and writing JSON.
#include "launch/serve/live_core.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace di::serve {
namespace {

using nlohmann::json;

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

double counter_of(const std::optional<proto::snapshot>& s, const char* name) {
  if (!s)
    return 0;
  const auto found = s->counters.find(name);
  return found == s->counters.end() ? 0 : found->second;
}

const proto::kept_rank* rank_of(const proto::keeper_state& k, rank_id rank) {
  const auto at = std::find_if(k.ranks.begin(), k.ranks.end(),
                               [&](const proto::kept_rank& r) { return r.rank == rank; });
  return at == k.ranks.end() ? nullptr : &*at;
}

bool is_member(const proto::kept_rank& r) {
  return r.state == "member" || r.state == "draining";
}

/// "rank 3 (pid 7): killed by signal 9 (Killed); its last line: ..." without what everyone knows.
std::string short_reason(const std::string& why) {
  if (why.empty())
    return "no reason known";
  const auto begin = why.starts_with("rank ") ? why.find("): ") : std::string::npos;
  const auto from = begin == std::string::npos ? 0 : begin + 3;
  return why.substr(from, why.find("; its last line") - from);
}

json rank_json(const proto::kept_rank& r, const std::optional<proto::schedule>& s) {
  json one{{"rank", r.rank.v},     {"node", r.node.v},
           {"state", r.state},     {"deaths", r.deaths},
           {"starts", r.starts},   {"wait_ms", r.wait_ms},
           {"why", r.last_reason}, {"life", fmt::format("{:016x}", r.life.v)}};
  for (std::size_t i = 0; s && i < s->ranks.size(); ++i) {
    const auto& load = s->ranks[i];
    if (load.rank != r.rank || load.life != r.life)
      continue;
    one["running"] = load.running;
    one["waiting"] = load.waiting;
    one["rows_pending"] = load.rows_pending;
    one["rows_done"] = load.rows_done;
    one["kv_total"] = load.kv_tokens_total;
    one["kv_used"] = load.kv_tokens_total - std::min(load.kv_tokens_free, load.kv_tokens_total);
    if (i < s->assigned.size())
      one["requests"] = s->assigned[i];
  }
  return one;
}

} // namespace

void live_core::rate::take(double now, std::int64_t now_ms) {
  if (!known || now < total) { // first, or counted anew by another life of control
    *this = {now, 0, now_ms, true};
    return;
  }
  const std::int64_t passed = now_ms - at_ms;
  if (passed <= 0)
    return;
  const double fresh = (now - total) * 1000 / static_cast<double>(passed);
  const double weight = std::min(1.0, static_cast<double>(passed) / 1500);
  per_s += (fresh - per_s) * weight;
  if (per_s < 0.05)
    per_s = 0;
  total = now;
  at_ms = now_ms;
}

void live_core::log(std::string kind, std::string text) {
  events_.push_back({++last_, wall_ms_, std::move(kind), std::move(text)});
  if (events_.size() > events_max)
    events_.pop_front();
}

// --- events

void live_core::update(const cluster_reading& now, std::int64_t wall_ms, std::int64_t steady_ms) {
  wall_ms_ = wall_ms;
  const std::uint64_t before = last_;
  if (now.keeper.has_value() != control_ || !any_) {
    control_ = now.keeper.has_value();
    if (!control_) {
      down_since_ms_ = steady_ms;
      log("control", fmt::format("control does not answer: {}", now.missing));
    } else if (any_) {
      log("control", fmt::format("control answers again after {:.1f} s; ranks went on meanwhile",
                                 static_cast<double>(steady_ms - down_since_ms_) / 1000));
    }
    any_ = true;
  }
  // It may be back before anyone asks: its counts begin anew.
  if (last_ == before && now.counters && seen_.counters
      && now.counters->samples < seen_.counters->samples)
    log("control", "control was started again; ranks went on meanwhile");
  why_missing_ = now.missing;
  if (now.keeper) {
    if (seen_.keeper)
      compare_keeper(*seen_.keeper, *now.keeper);
    else
      log("view",
          fmt::format("view {} with {} of {} ranks", now.keeper->view.v,
                      std::count_if(now.keeper->ranks.begin(), now.keeper->ranks.end(), is_member),
                      now.keeper->wanted));
    seen_.keeper = now.keeper;
  }
  if (now.schedule)
    seen_.schedule = now.schedule;
  if (now.journal) {
    if (seen_.journal && seen_.journal->failing != now.journal->failing)
      log("journal", now.journal->failing ? "the journal's disk takes nothing: " + now.journal->what
                                          : std::string{"the journal is written again"});
    seen_.journal = now.journal;
    tokens_.take(static_cast<double>(now.journal->tokens), steady_ms);
  }
  if (now.counters) {
    if (seen_.counters)
      compare_counters(*seen_.counters, *now.counters);
    seen_.counters = now.counters;
    drafted_.take(counter_of(now.counters, "di_rank_drafts_verified_total"), steady_ms);
    accepted_.take(counter_of(now.counters, "di_rank_drafts_accepted_total"), steady_ms);
    steps_.take(counter_of(now.counters, "di_rank_steps_total"), steady_ms);
  }
  if (now.heat)
    seen_.heat = now.heat;
}

void live_core::compare_keeper(const proto::keeper_state& before, const proto::keeper_state& now) {
  for (const proto::kept_rank& r : now.ranks) {
    const auto* old = rank_of(before, r.rank);
    if (!old)
      continue;
    if (r.deaths > old->deaths)
      log("death", fmt::format("rank {} died: {}", r.rank.v, short_reason(r.last_reason)));
    if (r.state != old->state)
      log("state", fmt::format("rank {} is {} (was {}){}", r.rank.v, r.state, old->state,
                               r.wait_ms > 0 ? fmt::format(", starts in {:.1f} s",
                                                           static_cast<double>(r.wait_ms) / 1000)
                                             : std::string{}));
  }
  if (now.view != before.view) {
    std::string members;
    for (const proto::kept_rank& r : now.ranks)
      if (is_member(r) && members.size() < 200)
        members += fmt::format("{}{}", members.empty() ? "" : " ", r.rank.v);
    log("view", fmt::format("view {}: {} ranks: {}", now.view.v,
                            std::count_if(now.ranks.begin(), now.ranks.end(), is_member), members));
  }
  if (now.order != before.order)
    log("order", now.order.empty() ? fmt::format("order done: {}", before.order)
                                   : fmt::format("order of an operator: {}", now.order));
  if (now.wanted != before.wanted)
    log("order", fmt::format("{} ranks are wanted (were {})", now.wanted, before.wanted));
}

void live_core::compare_counters(const proto::snapshot& before, const proto::snapshot& now) {
  const auto grown = [&](const char* name) {
    return counter_of(now, name) - counter_of(before, name);
  };
  if (const double moved = grown("di_rebalancer_moves_total"); moved > 0)
    log("moves", fmt::format("{:.0f} experts move, moe_lb {:.3f}", moved,
                             counter_of(now, "di_rebalancer_moe_lb")));
  if (const double made = grown("di_rebalancer_placements_total"); made > 0)
    log("placement",
        fmt::format("{:.0f} placement{} of experts published", made, made > 1 ? "s" : ""));
  if (const double resumed = grown("di_rank_restores_total"); resumed > 0)
    log("state", fmt::format("{:.0f} sequences go on from KV copies", resumed));
  if (const double slow = grown("di_scheduler_slow_ranks_total"); slow > 0)
    log("state", fmt::format("{:.0f} ranks are slow", slow));
}

// --- JSON

std::string live_core::state_json() const {
  json j{{"time", wall_ms_}, {"control", control_ && any_}};
  if (!control_)
    j["why"] = why_missing_;
  j["ranks"] = json::array();
  if (seen_.keeper) {
    const auto& k = *seen_.keeper;
    j["view"] = k.view.v;
    j["wanted"] = k.wanted;
    j["order"] = k.order;
    j["members"] = std::count_if(k.ranks.begin(), k.ranks.end(), is_member);
    for (std::size_t i = 0; i < std::min(k.ranks.size(), ranks_max); ++i)
      j["ranks"].push_back(rank_json(k.ranks[i], seen_.schedule));
  }
  json& requests = j["requests"] = json::object();
  if (seen_.journal) {
    requests["open"] = seen_.journal->open;
    requests["closed"] = seen_.journal->closed;
    requests["tokens"] = seen_.journal->tokens;
    j["journal"] = {{"unwritten", seen_.journal->unwritten},
                    {"file_bytes", seen_.journal->file_bytes},
                    {"failing", seen_.journal->failing}};
  }
  if (seen_.schedule)
    requests["queued"] = seen_.schedule->queued;
  j["rates"] = {{"tokens", tokens_.per_s}, {"steps", steps_.per_s}};
  if (drafted_.per_s > 0)
    j["rates"]["accepted"] = accepted_.per_s / drafted_.per_s;
  if (seen_.counters)
    j["totals"] = {{"moves", counter_of(seen_.counters, "di_rebalancer_moves_total")},
                   {"moe_lb", counter_of(seen_.counters, "di_rebalancer_moe_lb")},
                   {"prefix_tokens", counter_of(seen_.counters, "di_rank_prefix_tokens_total")},
                   {"preemptions", counter_of(seen_.counters, "di_rank_preemptions_total")}};
  return dump(j);
}

std::string live_core::heat_json() const {
  if (!seen_.heat)
    return {};
  const auto& h = *seen_.heat;
  json j{{"placement", h.placement.v}, {"counted", h.counted}};
  j["ranks"] = json::array();
  for (std::size_t i = 0; i < std::min(h.ranks.size(), h.rank_rows.size()); ++i)
    j["ranks"].push_back({h.ranks[i].v, h.rank_rows[i]});
  j["groups"] = json::array();
  for (const auto& g : h.groups) {
    const std::uint32_t most = g.rows.empty() ? 0 : *std::max_element(g.rows.begin(), g.rows.end());
    std::string cells;
    for (const std::uint32_t rows : g.rows)
      cells += static_cast<char>('0' + (most == 0 ? 0 : std::uint64_t{rows} * 63 / most));
    std::uint64_t copies = 0;
    for (const std::uint32_t c : g.copies)
      copies += c;
    j["groups"].push_back({{"first_layer", g.first_layer},
                           {"layers", g.layers},
                           {"experts", g.experts},
                           {"rows_max", most},
                           {"slots", copies},
                           {"cells", std::move(cells)}});
  }
  return dump(j);
}

std::pair<std::string, std::uint64_t> live_core::events_json(std::uint64_t after,
                                                             std::size_t most) const {
  json j = json::array();
  for (const live_event& e : events_) {
    if (e.number <= after || j.size() >= most)
      continue;
    after = e.number;
    j.push_back({{"n", e.number}, {"time", e.wall_ms}, {"kind", e.kind}, {"text", e.text}});
  }
  return {dump(j), after};
}

} // namespace di::serve
