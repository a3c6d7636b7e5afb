// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a network loses, repeats, reorders and breaks, and whoever dies, restored pieces
// have the right bytes, bounds hold, and in the end nothing is held, promised or waited for.
#include "tests/support/kv_net.hpp"

namespace di::test {
namespace {

using namespace std::chrono_literals;

struct open_attempt {
  rank_id owner;
  std::uint32_t attempt = 1, sealed = 0;
  std::uint64_t text = 0;
};

class script {
public:
  explicit script(std::uint64_t seed)
      : net_{seed, {0.15, 0.15, 0.05, 30'000}},
        replicas_{static_cast<std::uint32_t>(1 + seed % 2)} {
    for (std::uint32_t r = 0; r < 6; ++r)
      add(r, r);
    net_.commit(2);
  }

  void play(int steps) {
    for (int i = 0; i < steps; ++i) {
      act();
      net_.run(std::chrono::microseconds{net_.random()() % 20'000});
      verify();
    }
  }
  void end() {
    net_.weather = {0, 0, 0, 100};
    for (const auto& [id, a] : open_)
      release(id, a);
    open_.clear();
    for (const auto& [id, a] : late_)
      release(id, a);
    net_.run(120s);
    verify();
    for (const rank_id r : net_.ranks()) {
      const auto s = net_.agent(r).on(proto::get_kv_agent{}).value();
      EXPECT_TRUE(net_.agent(r).is_empty())
          << "rank " << r.v << " holds " << s.held_items << " pieces of " << s.leases
          << " leases, owns " << s.owned << ", promises " << s.reserved_bytes;
      seen_.corrupt_items += s.corrupt_items;
      seen_.expired_leases += s.expired_leases;
    }
  }
  const proto::kv_agent_state& seen() const { return seen_; }

private:
  void add(std::uint32_t rank, std::uint64_t life) {
    engine::kv_agent_options o;
    o.rank = rank_id{rank};
    o.life = incarnation{100 + life};
    o.replicas = replicas_;
    o.held_bytes = 60'000;
    o.queued_bytes = 30'000;
    o.message_bytes = 4'000;
    o.fetch_bytes = 5'000;
    o.bandwidth = 2'000'000;
    o.orphan_after = 20s;
    net_.add(o);
  }
  rank_id anyone() {
    const auto all = net_.ranks();
    return all[net_.random()() % all.size()];
  }
  void release(std::uint64_t id, const open_attempt& a) {
    if (net_.lives(a.owner))
      net_.tell(a.owner,
                proto::release_pages{{request_id{id}, a.attempt, a.owner, net_.life(a.owner)}});
  }
  void seal(std::uint64_t id, open_attempt& a) {
    std::vector<proto::kv_item> items;
    const std::uint32_t more = 1 + static_cast<std::uint32_t>(net_.random()() % 5);
    for (std::uint32_t i = 0; i < more && a.sealed < 20; ++i)
      items.push_back(kv_page(a.text, a.sealed++));
    items.push_back(kv_windows(a.text, a.sealed));
    net_.tell(a.owner, kv_sealed(request_id{id}, a.attempt, items));
  }
  void resume(std::uint64_t id, open_attempt& a) {
    const open_attempt old = a;
    ++a.attempt;
    a.owner = anyone();
    a.sealed = 0;
    proto::kv_want w;
    for (std::uint32_t i = 0; i < old.sealed; ++i)
      w.pages.push_back(kv_page(a.text, i).at);
    for (std::uint32_t i = old.sealed; i > 0; --i) {
      w.windows.push_back(kv_windows(a.text, i).at);
      w.ends.push_back(i * 128);
    }
    w.rebuild_tokens = 64;
    net_.tell(a.owner, proto::restore_pages{request_id{id}, a.attempt, {w}, 128, 1000, 300});
    asked_[{id, a.attempt}] = w;
    late_.emplace_back(id, old); // its owner hears only later that it is superseded
  }
  void act() {
    const auto dice = net_.random()() % 20;
    if (open_.size() < 4 || dice < 3) {
      // Some requests have the same text.
      open_[++last_] = {anyone(), 1, 0, net_.random()() % 3 == 0 ? 5 : 1000 + last_};
      return;
    }
    if (!late_.empty() && dice % 3 == 0) {
      const std::size_t which = net_.random()() % late_.size();
      release(late_[which].first, late_[which].second);
      late_.erase(late_.begin() + static_cast<long>(which));
    }
    auto at = open_.begin();
    std::advance(at, static_cast<long>(net_.random()() % open_.size()));
    if (dice < 14) {
      if (net_.lives(at->second.owner))
        seal(at->first, at->second);
    } else if (dice < 16) {
      release(at->first, at->second);
      open_.erase(at);
    } else if (dice < 18) {
      resume(at->first, at->second);
    } else if (dice == 18 && net_.ranks().size() > 3) {
      const rank_id victim = anyone();
      net_.kill(victim);
      for (auto& [id, a] : open_)
        if (a.owner == victim)
          resume(id, a);
    } else if (net_.ranks().size() < 6) {
      for (std::uint32_t r = 0; r < 6; ++r)
        if (!net_.lives(rank_id{r})) {
          add(r, ++lives_);
          break;
        }
      net_.commit(2);
    }
  }
  void verify() {
    for (const auto& [to, m] : net_.restored) {
      const auto asked = asked_.find({m.request.v, m.attempt});
      ASSERT_NE(asked, asked_.end());
      std::size_t offset = 0, page = 0;
      for (const proto::kv_item& item : m.items) {
        const auto bytes = m.bytes.bytes().subspan(offset, item.bytes);
        const auto right = kv_content(item.at, item.bytes);
        ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), right.begin(), right.end()));
        offset += item.bytes;
        if (item.kind == proto::kv_kind::page) {
          ASSERT_LT(page, asked->second.pages.size());
          ASSERT_EQ(item.at, asked->second.pages[page]) << "no gap";
          ++page;
        } else {
          ASSERT_LE(item.end, page * 128) << "windows stand on pages";
        }
      }
      seen_.restored_items += m.items.size();
    }
    net_.restored.clear();
  }

  kv_net net_;
  std::uint32_t replicas_;
  std::map<std::uint64_t, open_attempt> open_;
  std::vector<std::pair<std::uint64_t, open_attempt>> late_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, proto::kv_want> asked_;
  std::uint64_t last_ = 0, lives_ = 50;
  proto::kv_agent_state seen_;
};

TEST(kv_agent_property, restores_right_bytes_and_leaves_nothing_behind) {
  std::uint64_t restored = 0, corrupt = 0, expired = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    script s{seed};
    s.play(300);
    s.end();
    restored += s.seen().restored_items;
    corrupt += s.seen().corrupt_items;
    expired += s.seen().expired_leases;
    if (::testing::Test::HasFailure())
      return;
  }
  EXPECT_GT(restored, 200U) << "the script restores too little to prove anything";
  EXPECT_GT(corrupt, 20U);
  EXPECT_GT(expired, 20U);
}

} // namespace
} // namespace di::test
