// SPDX-License-Identifier: Apache-2.0
#include "chaos/view_history.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace di::chaos {
namespace {

/// `0:1a2b,1:3c4d`: ranks and their lives.
std::set<std::pair<std::uint32_t, std::string>> read_members(std::string_view text) {
  std::set<std::pair<std::uint32_t, std::string>> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t colon = std::min(one.find(':'), one.size());
    std::uint32_t rank = 0;
    if (std::from_chars(one.data(), one.data() + colon, rank).ptr == one.data() + colon)
      out.emplace(rank, one.substr(std::min(colon + 1, one.size())));
  }
  return out;
}

double ms_after(std::int64_t from_us, std::int64_t at_us) {
  return static_cast<double>(at_us - from_us) / 1000.0;
}

} // namespace

view_history::view_history(const std::vector<log_event>& events, std::uint32_t ranks) {
  std::set<std::pair<std::uint32_t, std::string>> now;
  members_ = members_min_ = ranks;
  for (const log_event& e : events) {
    if (e.name != "view_committed" || !e.process.starts_with("/control"))
      continue;
    const auto view = e.number("view").value_or(0);
    if (!views_.empty() && view <= views_.back().view)
      continue; // said again
    auto next = read_members(e.field("lives"));
    step s{e.mono_us, view, {}, {}};
    if (!views_.empty()) {
      for (const auto& m : now)
        if (!next.contains(m))
          s.left.insert(m.first);
      for (const auto& m : next)
        if (!now.contains(m))
          s.came.insert(m.first);
    }
    expelled_ += s.left.size();
    joined_ += s.came.size();
    now = std::move(next);
    members_ = now.size();
    members_min_ = std::min(members_min_, members_);
    views_.push_back(std::move(s));
  }
}

std::size_t
view_history::leaves_after(std::uint32_t rank, std::int64_t from_us,
                           const std::set<std::pair<std::size_t, std::uint32_t>>& taken) const {
  for (std::size_t i = 0; i < views_.size(); ++i)
    if (views_[i].mono_us >= from_us && views_[i].left.contains(rank) && !taken.contains({i, rank}))
      return i;
  return views_.size();
}

std::int64_t view_history::came_us(std::uint32_t rank, std::size_t leaves) const {
  for (std::size_t i = leaves; i > 0; --i)
    if (views_[i - 1].came.contains(rank))
      return views_[i - 1].mono_us;
  return 0;
}

std::size_t view_history::expelled_without(const std::vector<injected>& faults,
                                           const std::vector<log_event>& events) const {
  const auto ends = [](fault_kind kind) { // that a link was cut is no reason
    return kind == fault_kind::kill || kind == fault_kind::stop || kind == fault_kind::crash
           || kind == fault_kind::hang || kind == fault_kind::ballast;
  };
  std::set<std::pair<std::size_t, std::uint32_t>> excused;
  const std::set<std::pair<std::size_t, std::uint32_t>> none;
  // One that strikes when its rank comes by has perhaps met the life after the one it was meant
  // for: it takes the first that no other explains.
  for (const bool armed : {false, true})
    for (const injected& f : faults)
      if (ends(f.kind) && f.armed == armed)
        for (const std::uint32_t rank : f.ranks)
          excused.emplace(leaves_after(rank, f.begin_us, armed ? excused : none), rank);
  // Of an operator's command KEEPER says which ranks it takes out.
  const auto ordered = [&](std::uint32_t rank, std::size_t at) {
    return std::any_of(faults.begin(), faults.end(), [&](const injected& f) {
      const std::int64_t from_us = std::max(f.begin_us, came_us(rank, at));
      return f.kind == fault_kind::command
             && std::any_of(events.begin(), events.end(), [&](const log_event& e) {
                  return e.name == "rank_state" && e.number("rank") == rank && e.mono_us >= from_us
                         && e.mono_us <= views_[at].mono_us
                         && (e.field("state") == "draining" || e.field("state") == "leaving");
                });
    });
  };
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < views_.size(); ++i)
    for (const std::uint32_t rank : views_[i].left)
      wrong += !excused.contains({i, rank}) && !ordered(rank, i) ? 1 : 0;
  return wrong;
}

std::int64_t view_history::struck_us(const injected& f, const std::vector<log_event>& events) {
  const auto of_its_rank = [&](const log_event& e) {
    if (f.kind == fault_kind::hang)
      return e.name == "hangs_on_purpose"
             && std::any_of(f.ranks.begin(), f.ranks.end(), [&](std::uint32_t rank) {
                  return e.process == "/rank/" + std::to_string(rank);
                });
    return (e.name == "member_lost" || e.name == "member_stuck")
           && std::find(f.ranks.begin(), f.ranks.end(),
                        static_cast<std::uint32_t>(e.number("rank").value_or(-1)))
                  != f.ranks.end();
  };
  for (const log_event& e : events)
    if (e.mono_us >= f.begin_us && of_its_rank(e))
      return e.mono_us;
  return f.begin_us;
}

void view_history::follow(aftermath& a, std::int64_t until_us,
                          const std::vector<log_event>& events) const {
  const std::int64_t from = a.fault.begin_us;
  const fault_kind kind = a.fault.kind;
  if (kind != fault_kind::kill && kind != fault_kind::stop && kind != fault_kind::crash
      && kind != fault_kind::hang)
    return;
  const auto touched = [&](std::int64_t rank) {
    return std::find(a.fault.ranks.begin(), a.fault.ranks.end(), static_cast<std::uint32_t>(rank))
           != a.fault.ranks.end();
  };
  const auto note = [&](std::optional<double>& into, std::int64_t at_us) {
    if (!into)
      into = ms_after(from, at_us);
  };
  for (const log_event& e : events) {
    if (e.mono_us < from)
      continue;
    const bool about_it = touched(e.number("rank").value_or(-1));
    if ((!a.fault.armed || kind == fault_kind::hang)
        && (e.name == "member_lost" || e.name == "member_stuck") && about_it)
      note(a.detect_ms, e.mono_us);
    if (e.name == "placement_settled" && a.commit_ms)
      note(a.repair_ms, e.mono_us);
    if (e.name == "view_committed")
      for (const step& s : views_)
        if (s.mono_us == e.mono_us && s.view == e.number("view").value_or(0)) {
          if (std::any_of(s.left.begin(), s.left.end(), touched) && e.mono_us < until_us)
            note(a.commit_ms, e.mono_us);
          if (std::any_of(s.came.begin(), s.came.end(), touched))
            note(a.rejoin_ms, e.mono_us);
        }
    if (e.name == "batch_began" && a.fault.control)
      note(a.control_back_ms, e.mono_us);
  }
}

} // namespace di::chaos
