// SPDX-License-Identifier: Apache-2.0
// KV_AGENT as the asker: pieces of a resumed attempt, from those who have them, if that is cheaper
// than to compute them.
#include "engine/core/kv_agent_core.hpp"
#include "engine/core/kv_agent_state.hpp"

#include <algorithm>

namespace di::engine {

namespace {

/// [us] a restore takes beside its bytes: two rounds of mail.
constexpr double rounds_us = 2'000;
/// [bytes] of an answer from which the rate is learnt.
constexpr std::size_t rate_bytes_min = 64 << 10;

} // namespace

void kv_agent_core::make_wishes(restore& r) const {
  const auto wish_for = [&r](const proto::kv_address& at, proto::kv_kind kind, std::uint32_t choice,
                             std::uint32_t end) {
    const auto [known, fresh] = r.by_address.try_emplace(at, r.wishes.size());
    if (!fresh)
      return; // choices share their prompt
    wish& w = r.wishes.emplace_back();
    w.item = {at, kind, choice, end, 0, 0};
  };
  for (const proto::kv_want& want : r.what.wants) {
    std::uint32_t end = want.first_page * r.what.page_tokens;
    for (const proto::kv_address& at : want.pages)
      wish_for(at, proto::kv_kind::page, want.choice, end += r.what.page_tokens);
    for (std::size_t i = 0; i < std::min(want.windows.size(), want.ends.size()); ++i)
      wish_for(want.windows[i], proto::kv_kind::windows, want.choice, want.ends[i]);
  }
}

/// Pieces that this rank holds for others anyway.
void kv_agent_core::take_own(restore& r) {
  for (wish& w : r.wishes) {
    const kv_store::piece* p = store_.find(w.item.at);
    if (p == nullptr || p->item.kind != w.item.kind || p->item.end != w.item.end)
      continue;
    w.item = p->item;
    w.bytes = 0; // costs nothing
    w.content = shared_bytes::adopt(std::vector<std::byte>{p->bytes});
    w.done = true;
  }
}

void kv_agent_core::on(const proto::restore_pages& m, instant now, outbox& out) {
  if (const auto at = restores_.find(m.request); at != restores_.end()) {
    if (at->second->what.attempt >= m.attempt)
      return;
    restores_.erase(at);
  }
  restore& r = *restores_.emplace(m.request, std::make_unique<restore>()).first->second;
  r.what = m;
  r.began = now;
  r.ends = now + std::chrono::milliseconds{m.within_ms};
  r.locate_until = now + std::min<duration>((r.ends - now) / 2, options_.resend_after);
  make_wishes(r);
  take_own(r);
  if (view_ && m.page_tokens > 0)
    for (const auto& member : holders_of(*view_, m.request, options_.rank, options_.replicas))
      r.holders.emplace_back().member = member;
  locate(r, now, out);
  go_on(r, now, out);
}

void kv_agent_core::locate(restore& r, instant now, outbox& out) {
  std::vector<proto::kv_address> missing;
  std::vector<std::size_t> asked;
  for (std::size_t i = 0; i < r.wishes.size(); ++i)
    if (!r.wishes[i].done) {
      missing.push_back(r.wishes[i].item.at);
      asked.push_back(i);
    }
  for (holder& h : r.holders) {
    h.located = missing.empty();
    if (h.located)
      continue;
    h.ticket = next_ticket_++;
    h.asked = asked;
    h.sent = now;
    h.due = r.locate_until;
    out.send(kv_agent_path(h.member.rank),
             proto::fetch_pages{h.ticket, r.what.request, r.what.attempt, options_.rank,
                                options_.life, view_->view, missing, 0});
  }
  want_tick(r.locate_until, now, out);
}

void kv_agent_core::on(const proto::pages_fetched& m, instant now, outbox& out) {
  for (auto& [id, r] : restores_)
    for (holder& h : r->holders)
      if (h.ticket == m.ticket && h.ticket != 0 && h.member.rank == m.holder
          && h.member.life == m.life) {
        if (const double s = std::chrono::duration<double>(now - h.sent).count();
            s > 0 && m.bytes.size() >= rate_bytes_min)
          fetch_rate_ += 0.25 * (static_cast<double>(m.bytes.size()) / s - fetch_rate_);
        if (m.bytes.size() > 0)
          out.count("di_kv_agent_fetched_bytes_total", static_cast<double>(m.bytes.size()));
        take_fetched(*r, h, m);
        return go_on(*r, now, out); // r may be gone now
      }
}

void kv_agent_core::take_fetched(restore& r, holder& from, const proto::pages_fetched& m) {
  const std::size_t index = static_cast<std::size_t>(&from - r.holders.data());
  from.ticket = 0;
  for (std::size_t i = 0; i < from.asked.size(); ++i) {
    wish& w = r.wishes[from.asked[i]];
    const std::uint32_t bytes = i < m.held.size() ? m.held[i] : 0;
    w.asked = false;
    if (!from.located && bytes > 0) {
      w.who.push_back(index);
      w.bytes = bytes;
    } else if (from.located && bytes == 0) {
      std::erase(w.who, index);
    }
  }
  from.asked.clear();
  from.located = true;
  std::size_t offset = 0;
  for (const proto::kv_item& item : m.items) {
    if (item.bytes > m.bytes.size() - offset)
      break;
    const shared_bytes part{m.bytes.owner(), m.bytes.data() + offset, item.bytes};
    offset += item.bytes;
    const auto at = r.by_address.find(item.at);
    if (at == r.by_address.end())
      continue;
    wish& w = r.wishes[at->second];
    if (w.done)
      continue;
    if (item.kind != w.item.kind || item.end != w.item.end
        || kv_checksum(item, part.bytes()) != item.crc) {
      ++counts_.corrupt_items;
      std::erase(w.who, index);
      continue;
    }
    w.item = item;
    w.content = part;
    w.done = true;
  }
}

/// Which pieces to fetch: of each choice the pages without a gap, and the longest windows that
/// stand on them; none if computing is cheaper.
void kv_agent_core::decide(restore& r, instant now, outbox& out) {
  double gain_tokens = 0, bytes = 0;
  const auto there = [&r](const proto::kv_address& at) {
    const wish& w = r.wishes[r.by_address.at(at)];
    return w.done || !w.who.empty();
  };
  const auto choose = [&](const proto::kv_address& at) {
    wish& w = r.wishes[r.by_address.at(at)];
    if (!std::exchange(w.chosen, true) && !w.done)
      bytes += w.bytes;
  };
  const std::uint64_t page = r.what.page_tokens;
  for (const proto::kv_want& want : r.what.wants) {
    std::size_t pages = 0;
    while (pages < want.pages.size() && there(want.pages[pages]))
      ++pages;
    const std::uint64_t first = want.first_page * page;
    const std::uint64_t end = first + pages * page;
    const auto behind = [&want](std::uint64_t tokens) {
      return tokens > want.rebuild_tokens ? tokens - want.rebuild_tokens : 0;
    };
    std::uint64_t saved = behind(end);
    std::optional<std::size_t> windows;
    for (std::size_t i = 0; i < std::min(want.windows.size(), want.ends.size()); ++i)
      if (want.ends[i] <= end && want.ends[i] > saved && there(want.windows[i])) {
        windows = r.by_address.at(want.windows[i]);
        saved = want.ends[i];
        pages = std::min<std::size_t>(pages, saved > first ? (saved - first) / page : 0);
      }
    r.windows.push_back(windows);
    if (saved <= behind(first))
      continue;
    gain_tokens += static_cast<double>(saved - behind(first));
    for (std::size_t i = 0; i < pages; ++i)
      choose(want.pages[i]);
    if (windows)
      choose(r.wishes[*windows].item.at);
  }
  r.state = restore_state::fetching;
  if (std::none_of(r.wishes.begin(), r.wishes.end(),
                   [](const wish& w) { return w.done || !w.who.empty(); }))
    out.count("di_kv_agent_restores_missed_total");
  const double cost_us = rounds_us + bytes / fetch_rate_ * 1e6;
  if (gain_tokens * r.what.token_us <= cost_us) {
    out.count("di_kv_agent_restores_declined_total");
    for (wish& w : r.wishes)
      w.chosen = false;
  }
  want_tick(r.ends, now, out);
}

/// The next pieces that a holder has and nobody was asked for.
void kv_agent_core::fetch(restore& r, holder& from, instant now, outbox& out) {
  const std::size_t index = static_cast<std::size_t>(&from - r.holders.data());
  std::vector<proto::kv_address> wanted;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < r.wishes.size(); ++i) {
    wish& w = r.wishes[i];
    if (!w.chosen || w.done || w.asked
        || std::find(w.who.begin(), w.who.end(), index) == w.who.end())
      continue;
    if (!wanted.empty() && bytes + w.bytes > options_.fetch_bytes)
      break;
    bytes += w.bytes;
    w.asked = true;
    wanted.push_back(w.item.at);
    from.asked.push_back(i);
  }
  if (wanted.empty())
    return;
  from.ticket = next_ticket_++;
  from.sent = now;
  from.due = now + options_.resend_after * 2;
  want_tick(from.due, now, out);
  out.send(kv_agent_path(from.member.rank),
           proto::fetch_pages{from.ticket, r.what.request, r.what.attempt, options_.rank,
                              options_.life, view_->view, std::move(wanted), options_.fetch_bytes});
}

/// Whatever the restore can do next; it may be gone afterwards.
void kv_agent_core::go_on(restore& r, instant now, outbox& out) {
  for (std::size_t i = 0; i < r.holders.size(); ++i) {
    holder& h = r.holders[i];
    if (!h.failed)
      continue;
    h.ticket = 0;
    for (const std::size_t w : h.asked)
      r.wishes[w].asked = false;
    h.asked.clear();
    for (wish& w : r.wishes)
      std::erase(w.who, i);
  }
  if (r.state == restore_state::locating) {
    const bool all = std::all_of(r.holders.begin(), r.holders.end(),
                                 [](const holder& h) { return h.located || h.failed; });
    if (!all && now < r.locate_until)
      return;
    for (holder& h : r.holders)
      if (!h.located) { // too late; whoever is slow is not asked again
        h.ticket = 0;
        h.asked.clear();
      }
    decide(r, now, out);
  }
  const auto open = [&r] {
    return std::any_of(r.wishes.begin(), r.wishes.end(),
                       [](const wish& w) { return w.chosen && !w.done && !w.who.empty(); });
  };
  if (now >= r.ends || !open())
    return finish_restore(r, out);
  for (holder& h : r.holders)
    if (!h.failed && h.located && h.ticket == 0)
      fetch(r, h, now, out);
}

void kv_agent_core::restore_due(restore& r, instant now, outbox& out) {
  for (holder& h : r.holders)
    if (h.ticket != 0 && h.due <= now && r.state == restore_state::fetching)
      h.failed = true;
    else if (h.ticket != 0)
      want_tick(std::max(h.due, now + duration{1}), now, out);
  want_tick(std::max(r.ends, now), now, out);
  go_on(r, now, out);
}

/// Hands over what came: pages without a gap, and windows whose pages are all there.
void kv_agent_core::finish_restore(restore& r, outbox& out) {
  proto::pages_restored answer{r.what.request, r.what.attempt, {}, {}};
  std::vector<std::byte> all;
  std::set<proto::kv_address> taken;
  const auto take = [&](const wish& w, std::uint32_t choice) {
    if (!taken.insert(w.item.at).second)
      return;
    answer.items.push_back(w.item);
    answer.items.back().choice = choice;
    all.insert(all.end(), w.content.data(), w.content.data() + w.content.size());
  };
  for (std::size_t i = 0; i < r.what.wants.size(); ++i) {
    const proto::kv_want& want = r.what.wants[i];
    std::uint64_t end = std::uint64_t{want.first_page} * r.what.page_tokens;
    for (const proto::kv_address& at : want.pages) {
      const wish& w = r.wishes[r.by_address.at(at)];
      if (!w.chosen || !w.done)
        break;
      take(w, want.choice);
      end += r.what.page_tokens;
    }
    if (i < r.windows.size() && r.windows[i])
      if (const wish& w = r.wishes[*r.windows[i]]; w.chosen && w.done && w.item.end <= end)
        take(w, want.choice);
  }
  counts_.restored_items += answer.items.size();
  out.count("di_kv_agent_restored_bytes_total", static_cast<double>(all.size()));
  answer.bytes = shared_bytes::adopt(std::move(all));
  // Who had pieces for older attempts is told when this one is over.
  const proto::kv_lease lease = own_lease(r.what.request, r.what.attempt);
  for (std::size_t i = 0; i < r.holders.size(); ++i) {
    const holder& h = r.holders[i];
    const bool had = std::any_of(r.wishes.begin(), r.wishes.end(), [i](const wish& w) {
      return std::find(w.who.begin(), w.who.end(), i) != w.who.end();
    });
    if (had && is_member(h.member.rank, h.member.life))
      open_channel({lease, h.member.rank}, h.member.life);
  }
  out.send("/rank/" + std::to_string(options_.rank.v) + "/rank", std::move(answer));
  restores_.erase(r.what.request);
}

} // namespace di::engine
