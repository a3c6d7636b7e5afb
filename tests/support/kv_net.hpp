// SPDX-License-Identifier: Apache-2.0
// Test-only: KV_AGENT cores of several ranks on a virtual clock and a bad network, with pieces
// whose bytes follow from their address.
#pragma once

#include "engine/core/kv_agent_core.hpp"
#include "engine/core/kv_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace di::test {

/// What happens to mail between ranks.
struct kv_weather {
  double loss = 0, repeat = 0, corrupt = 0;
  std::int64_t delay_us_max = 100;
};

/// A piece that everybody can check.
inline std::vector<std::byte> kv_content(const proto::kv_address& at, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::uint64_t x = at.low * 0x9E3779B97F4A7C15ull + at.high;
  for (std::byte& b : out) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return out;
}

inline proto::pages_sealed kv_sealed(request_id request, std::uint32_t attempt,
                                     const std::vector<proto::kv_item>& what) {
  proto::pages_sealed m{request, attempt, {}, {}};
  std::vector<std::byte> all;
  for (proto::kv_item item : what) {
    const auto bytes = kv_content(item.at, item.bytes);
    item.crc = engine::kv_checksum(item, bytes);
    m.items.push_back(item);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  m.bytes = shared_bytes::adopt(std::move(all));
  return m;
}

/// Page `index` (from 0) of a text.
inline proto::kv_item kv_page(std::uint64_t text, std::uint32_t index, std::uint32_t bytes = 1000) {
  return {{text, index}, proto::kv_kind::page, 0, (index + 1) * 128, bytes, 0};
}
inline proto::kv_item kv_windows(std::uint64_t text, std::uint32_t pages,
                                 std::uint32_t bytes = 500) {
  return {{text + (1ULL << 60), pages}, proto::kv_kind::windows, 0, pages * 128, bytes, 0};
}

class kv_net {
public:
  explicit kv_net(std::uint64_t seed, kv_weather w = {}) : weather{w}, random_{seed} {}

  void add(engine::kv_agent_options options) {
    lives_[options.rank] = options.life;
    agents_[options.rank] = std::make_unique<engine::kv_agent_core>(options);
  }
  /// The rank is no more; whoever is left learns of the next view, each at a time of its own.
  void kill(rank_id rank) {
    agents_.erase(rank);
    lives_.erase(rank);
    commit();
  }
  void commit(std::uint32_t nodes = 1) {
    view_.view = epoch{view_.view.v + 1};
    view_.members.clear();
    for (const auto& [rank, life] : lives_)
      view_.members.push_back({rank, node_id{rank.v % nodes}, life, ""});
    for (const auto& [rank, agent] : agents_)
      at(now_ + delay(), rank, parcel::of(view_));
  }
  template <message M>
  void tell(rank_id rank, M m) {
    at(now_, rank, parcel::of(std::move(m)));
  }
  engine::kv_agent_core& agent(rank_id rank) { return *agents_.at(rank); }
  bool lives(rank_id rank) const { return agents_.contains(rank); }
  std::vector<rank_id> ranks() const {
    std::vector<rank_id> all;
    for (const auto& [rank, agent] : agents_)
      all.push_back(rank);
    return all;
  }
  incarnation life(rank_id rank) const { return lives_.at(rank); }
  instant now() const { return now_; }
  std::mt19937_64& random() { return random_; }

  /// Runs what is due within `span`.
  void run(duration span) {
    const instant end = now_ + span;
    while (!events_.empty() && events_.top().at <= end) {
      const event e = events_.top();
      events_.pop();
      now_ = e.at;
      handle(e);
    }
    now_ = end;
  }
  /// What agents told their ranks, newest last.
  std::vector<std::pair<address, proto::pages_restored>> restored;
  std::uint64_t mails = 0;
  kv_weather weather;
  /// May change or drop (empty) any mail between ranks.
  std::function<void(const address& to, parcel& body)> tamper;

private:
  struct event {
    instant at;
    std::uint64_t order = 0;
    rank_id to;
    incarnation life{};
    parcel body; ///< empty: a timer
    timer which;
    std::uint64_t generation = 0;
    bool operator<(const event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };
  bool chance(double p) { return std::uniform_real_distribution<double>{}(random_) < p; }
  duration delay() {
    return std::chrono::microseconds{
        std::uniform_int_distribution<std::int64_t>{1, weather.delay_us_max}(random_)};
  }
  void at(instant when, rank_id to, parcel body) {
    events_.push({when,
                  ++order_,
                  to,
                  lives_.contains(to) ? lives_.at(to) : incarnation{},
                  std::move(body),
                  {},
                  0});
  }
  template <class M>
  void flip(parcel& body) {
    const M* m = body.as<M>();
    if (m == nullptr || m->bytes.empty() || !chance(weather.corrupt))
      return;
    M changed = *m;
    std::vector<std::byte> bytes(m->bytes.data(), m->bytes.data() + m->bytes.size());
    bytes[random_() % bytes.size()] ^= std::byte{4};
    changed.bytes = shared_bytes::adopt(std::move(bytes));
    body = parcel::of(std::move(changed));
  }
  void post(const address& to, parcel body) {
    if (to.ends_with("/rank")) {
      const auto* m = body.as<proto::pages_restored>();
      ASSERT_NE(m, nullptr);
      restored.emplace_back(to, *m);
      return;
    }
    ++mails;
    if (tamper)
      tamper(to, body);
    const rank_id rank{static_cast<std::uint32_t>(std::stoul(to.substr(6)))};
    if (body.empty() || !agents_.contains(rank) || chance(weather.loss))
      return;
    flip<proto::push_pages>(body);
    flip<proto::pages_fetched>(body);
    for (int copies = chance(weather.repeat) ? 2 : 1; copies > 0; --copies)
      at(now_ + delay(), rank, body);
  }
  template <message... Ms>
  void dispatch(engine::kv_agent_core& core, const parcel& body, outbox& out, type_list<Ms...>) {
    (..., [&] {
      if (const Ms* m = body.as<Ms>())
        core.on(*m, now_, out);
    }());
  }
  void handle(const event& e) {
    if (!agents_.contains(e.to) || lives_.at(e.to) != e.life)
      return;
    engine::kv_agent_core& core = *agents_.at(e.to);
    outbox out;
    if (e.body.empty()) {
      if (timers_[{e.to, e.which}] != e.generation)
        return;
      core.on_due(e.which, now_, out);
    } else {
      dispatch(core, e.body, out,
               type_list<proto::view_committed, proto::pages_sealed, proto::reserve_pages,
                         proto::pages_reserved, proto::push_pages, proto::pages_landed,
                         proto::release_pages, proto::pages_released, proto::restore_pages,
                         proto::fetch_pages, proto::pages_fetched>{});
    }
    core.check();
    for (any_effect& effect : out.take())
      if (auto* send = std::get_if<effect::send>(&effect)) {
        post(send->to, send->body);
      } else if (auto* arm = std::get_if<effect::arm>(&effect)) {
        event timer_event{now_ + arm->after, ++order_, e.to, e.life, {}, arm->which, ++generation_};
        timers_[{e.to, arm->which}] = generation_;
        events_.push(timer_event);
      }
  }

  std::mt19937_64 random_;
  std::map<rank_id, std::unique_ptr<engine::kv_agent_core>> agents_;
  std::map<rank_id, incarnation> lives_;
  proto::view_committed view_;
  instant now_{1};
  std::priority_queue<event> events_;
  std::map<std::pair<rank_id, timer>, std::uint64_t> timers_;
  std::uint64_t order_ = 0, generation_ = 0;
};

} // namespace di::test
