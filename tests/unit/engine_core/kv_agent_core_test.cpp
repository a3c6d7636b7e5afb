// SPDX-License-Identifier: Apache-2.0
// KV_AGENT's decisions: who keeps what, bounds, fences of late messages, and what a restore hands
// over when copies are lost, broken or not worth it.
#include "tests/support/kv_net.hpp"
#include "tests/support/sent_mail.hpp"

namespace di::test {
namespace {

using namespace std::chrono_literals;
using engine::kv_agent_options;

kv_agent_options options(std::uint32_t rank, std::uint32_t replicas = 1) {
  kv_agent_options o;
  o.rank = rank_id{rank};
  o.life = incarnation{100 + rank};
  o.replicas = replicas;
  return o;
}

std::unique_ptr<kv_net> cluster(std::uint32_t ranks, std::uint32_t replicas = 1,
                                const std::function<void(kv_agent_options&)>& change = {}) {
  auto net = std::make_unique<kv_net>(1);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    kv_agent_options o = options(r, replicas);
    if (change)
      change(o);
    net->add(o);
  }
  net->commit();
  net->run(10ms);
  return net;
}

std::vector<proto::kv_item> pages(std::uint64_t text, std::uint32_t count) {
  std::vector<proto::kv_item> all;
  for (std::uint32_t i = 0; i < count; ++i)
    all.push_back(kv_page(text, i));
  return all;
}

proto::restore_pages want(request_id request, std::uint64_t text, std::uint32_t count,
                          double token_us = 1000) {
  proto::kv_want w;
  for (const auto& item : pages(text, count))
    w.pages.push_back(item.at);
  for (std::uint32_t i = count; i > 0; --i) {
    w.windows.push_back(kv_windows(text, i).at);
    w.ends.push_back(i * 128);
  }
  w.rebuild_tokens = 100;
  return {request, 2, {w}, 128, token_us, 400};
}

std::uint64_t holding(kv_net& net) {
  std::uint64_t items = 0;
  for (const rank_id r : net.ranks())
    items += net.agent(r).store().items();
  return items;
}

bool all_empty(kv_net& net) {
  const auto ranks = net.ranks();
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](rank_id r) { return net.agent(r).is_empty(); });
}

const request_id asked{7};

TEST(kv_buddies, are_never_the_owner_and_stand_on_another_node_if_there_is_one) {
  proto::view_committed view{epoch{1}, {}};
  for (std::uint32_t r = 0; r < 8; ++r)
    view.members.push_back({rank_id{r}, node_id{r / 4}, incarnation{r + 1}, ""});
  std::set<rank_id> used;
  for (std::uint64_t id = 1; id <= 200; ++id) {
    const auto buddies = engine::buddies_of(view, request_id{id}, rank_id{1}, 2);
    ASSERT_EQ(buddies.size(), 2U);
    for (const auto& m : buddies) {
      EXPECT_EQ(m.node, node_id{1});
      used.insert(m.rank);
    }
    // Whoever looks for them after the owner's death finds them without knowing who it was.
    auto later = view;
    std::erase_if(later.members, [](const auto& m) { return m.rank == rank_id{1}; });
    const auto holders = engine::holders_of(later, request_id{id}, rank_id{2}, 2);
    for (const auto& m : buddies)
      EXPECT_TRUE(std::find(holders.begin(), holders.end(), m) != holders.end());
    EXPECT_LE(holders.size(), 6U);
  }
  EXPECT_EQ(used.size(), 4U) << "requests are scattered";
  EXPECT_EQ(engine::buddies_of(view, asked, rank_id{1}, 20).size(), 7U);
  EXPECT_TRUE(engine::buddies_of(view, asked, rank_id{50}, 2).empty());
}

TEST(kv_agent, keeps_copies_at_as_many_buddies_as_asked_and_forgets_them_at_the_end) {
  const auto net = cluster(5, 2);
  net->tell(rank_id{0}, kv_sealed(asked, 1, pages(1, 10)));
  net->run(1s);
  EXPECT_EQ(holding(*net), 20U);
  EXPECT_EQ(net->agent(rank_id{0}).store().items(), 0U);
  net->tell(rank_id{0}, proto::release_pages{{asked, 1, rank_id{0}, incarnation{100}}});
  net->run(1s);
  EXPECT_TRUE(all_empty(*net));
}

TEST(kv_agent, stores_a_piece_once_however_many_requests_share_it) {
  const auto net = cluster(2);
  net->tell(rank_id{0}, kv_sealed(request_id{1}, 1, pages(1, 6)));
  net->tell(rank_id{0}, kv_sealed(request_id{2}, 1, pages(1, 8)));
  net->run(1s);
  EXPECT_EQ(holding(*net), 8U);
  net->tell(rank_id{0}, proto::release_pages{{request_id{1}, 1, rank_id{0}, incarnation{100}}});
  net->run(1s);
  EXPECT_EQ(holding(*net), 8U);
  net->tell(rank_id{0}, proto::release_pages{{request_id{2}, 1, rank_id{0}, incarnation{100}}});
  net->run(1s);
  EXPECT_TRUE(all_empty(*net));
}

TEST(kv_agent, holds_no_more_than_its_bound_and_keeps_beginnings) {
  const auto net = cluster(2, 1, [](kv_agent_options& o) { o.held_bytes = 4'500; });
  net->tell(rank_id{0}, kv_sealed(asked, 1, pages(1, 10)));
  net->run(1s);
  EXPECT_EQ(holding(*net), 4U); // 1,000 bytes each
  for (std::uint32_t i = 0; i < 4; ++i)
    EXPECT_NE(net->agent(rank_id{1}).store().find({1, i}), nullptr) << i;
}

TEST(kv_agent, pushes_within_its_bandwidth) {
  const auto net = cluster(2, 1, [](kv_agent_options& o) {
    o.bandwidth = 100'000;
    o.message_bytes = 10'000;
  });
  std::vector<proto::kv_item> many;
  for (std::uint32_t i = 0; i < 100; ++i)
    many.push_back(kv_page(1, i));
  net->tell(rank_id{0}, kv_sealed(asked, 1, many));
  net->run(500ms); // 50,000 bytes and a burst of 10,000
  EXPECT_GE(holding(*net), 40U);
  EXPECT_LE(holding(*net), 70U);
  net->run(1s);
  EXPECT_EQ(holding(*net), 100U);
}

TEST(kv_agent, drops_what_exceeds_its_queue) {
  const auto net = cluster(2, 1, [](kv_agent_options& o) { o.queued_bytes = 3'000; });
  net->tell(rank_id{0}, kv_sealed(asked, 1, pages(1, 10)));
  net->run(1s);
  EXPECT_EQ(holding(*net), 3U);
}

TEST(kv_agent, keeps_the_newest_windows_of_a_choice_only) {
  const auto net = cluster(2);
  auto all = pages(1, 4);
  all.push_back(kv_windows(1, 2));
  net->tell(rank_id{0}, kv_sealed(asked, 1, all));
  net->run(1s);
  net->tell(rank_id{0}, kv_sealed(asked, 1, {kv_windows(1, 4)}));
  net->run(1s);
  EXPECT_EQ(holding(*net), 5U);
  EXPECT_EQ(net->agent(rank_id{1}).store().find(kv_windows(1, 2).at), nullptr);
}

TEST(kv_agent, restores_what_a_dead_rank_had_sealed) {
  for (std::uint32_t asker = 1; asker < 5; ++asker) { // one is the buddy itself
    const auto net = cluster(5);
    auto all = pages(1, 6);
    all.push_back(kv_windows(1, 6));
    net->tell(rank_id{0}, kv_sealed(asked, 1, all));
    net->run(1s);
    net->kill(rank_id{0});
    net->run(10ms);
    net->tell(rank_id{asker}, want(asked, 1, 6));
    net->run(1s);
    ASSERT_EQ(net->restored.size(), 1U);
    ASSERT_EQ(net->restored[0].second.items.size(), 7U);
    std::size_t offset = 0;
    for (const proto::kv_item& item : net->restored[0].second.items) {
      const auto bytes = net->restored[0].second.bytes.bytes().subspan(offset, item.bytes);
      const auto right = kv_content(item.at, item.bytes);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), right.begin(), right.end()));
      offset += item.bytes;
    }
    net->tell(rank_id{asker},
              proto::release_pages{{asked, 2, rank_id{asker}, incarnation{100 + asker}}});
    net->run(1s);
    EXPECT_TRUE(all_empty(*net))
        << "who resumes a request releases what was held for older attempts";
  }
}

TEST(kv_agent, gives_up_a_restore_that_costs_more_than_it_saves) {
  const auto net = cluster(3);
  net->tell(rank_id{0}, kv_sealed(asked, 1, pages(1, 6)));
  net->run(1s);
  net->kill(rank_id{0});
  net->run(10ms);
  net->tell(rank_id{1}, want(asked, 1, 6, 0.001));
  net->run(1s);
  ASSERT_EQ(net->restored.size(), 1U);
  EXPECT_TRUE(net->restored[0].second.items.empty());
}

TEST(kv_agent, hands_over_what_came_when_a_copy_is_broken_or_its_holder_dies) {
  const auto net = cluster(3);
  net->tell(rank_id{0}, kv_sealed(asked, 1, pages(1, 6)));
  net->run(1s);
  const rank_id buddy = net->agent(rank_id{1}).store().items() > 0 ? rank_id{1} : rank_id{2};
  const rank_id asker{3 - buddy.v};
  net->kill(rank_id{0});
  net->run(10ms);
  net->tamper = [](const address&, parcel& body) {
    if (const auto* m = body.as<proto::pages_fetched>(); m != nullptr && !m->items.empty()) {
      auto changed = *m;
      std::vector<std::byte> bytes(m->bytes.data(), m->bytes.data() + m->bytes.size());
      bytes[2'500] ^= std::byte{1}; // in the third page
      changed.bytes = shared_bytes::adopt(std::move(bytes));
      body = parcel::of(std::move(changed));
    }
  };
  net->tell(asker, want(asked, 1, 6));
  net->run(1s);
  ASSERT_EQ(net->restored.size(), 1U);
  EXPECT_EQ(net->restored[0].second.items.size(), 2U);
  net->tamper = [&](const address&, parcel& body) {
    if (body.as<proto::pages_fetched>() != nullptr)
      body = {};
  };
  auto again = want(asked, 1, 6);
  again.attempt = 3;
  net->tell(asker, again);
  net->run(1s);
  ASSERT_EQ(net->restored.size(), 2U);
  EXPECT_TRUE(net->restored[1].second.items.empty());
}

/// A late release of an older attempt must not touch what the newer one holds.
TEST(kv_agent, lets_a_release_end_its_own_and_older_attempts_only) {
  engine::kv_agent_core holder{options(2)};
  outbox out;
  const auto reserve = [&](std::uint32_t attempt, std::uint32_t owner, std::uint32_t page) {
    holder.on(proto::reserve_pages{{asked, attempt, rank_id{owner}, incarnation{100 + owner}},
                                   proto::kv_purpose::replica,
                                   epoch{1},
                                   1,
                                   {kv_page(1, page)}},
              instant{1}, out);
    const ec code = only<proto::pages_reserved>(out).code;
    out.take();
    return code;
  };
  EXPECT_EQ(reserve(1, 0, 0), ec::ok);
  EXPECT_EQ(reserve(2, 1, 1), ec::ok);
  EXPECT_EQ(holder.store().lease_count(), 2U);
  holder.on(proto::release_pages{{asked, 1, rank_id{0}, incarnation{100}}}, instant{2}, out);
  EXPECT_EQ(only<proto::pages_released>(out).lease.attempt, 1U);
  out.take();
  EXPECT_EQ(holder.store().lease_count(), 1U);
  EXPECT_EQ(holder.store().reserved_bytes(), 1'000U);
  EXPECT_EQ(reserve(1, 0, 0), ec::stale_epoch) << "a late message of an attempt that is over";
  holder.on(proto::release_pages{{asked, 2, rank_id{1}, incarnation{101}}}, instant{3}, out);
  EXPECT_TRUE(holder.is_empty());
}

TEST(kv_agent, keeps_nothing_for_lives_that_have_left_the_view) {
  kv_agent_options o = options(2);
  o.orphan_after = 5s;
  engine::kv_agent_core holder{o};
  outbox out;
  proto::view_committed view{epoch{1}, {}};
  for (std::uint32_t r = 0; r < 3; ++r)
    view.members.push_back({rank_id{r}, {}, incarnation{100 + r}, ""});
  holder.on(view, instant{1}, out);
  const proto::reserve_pages ask{{asked, 1, rank_id{0}, incarnation{100}},
                                 proto::kv_purpose::replica,
                                 epoch{1},
                                 1,
                                 {kv_page(1, 0)}};
  holder.on(ask, instant{2}, out);
  EXPECT_EQ(holder.store().lease_count(), 1U);
  view.view = epoch{2};
  view.members.erase(view.members.begin());
  holder.on(view, instant{3}, out);
  EXPECT_EQ(holder.store().lease_count(), 1U) << "somebody may claim it";
  out.take();
  holder.on(ask, instant{4}, out);
  EXPECT_EQ(only<proto::pages_reserved>(out).code, ec::stale_incarnation);
  holder.on_due({1, 0}, instant{3} + 6s, out);
  EXPECT_TRUE(holder.is_empty());
}

TEST(kv_agent, takes_reservations_of_views_that_it_does_not_know_yet) {
  engine::kv_agent_core holder{options(2)};
  outbox out;
  holder.on(proto::view_committed{epoch{1}, {{rank_id{2}, {}, incarnation{102}, ""}}}, instant{1},
            out);
  holder.on(proto::reserve_pages{{asked, 1, rank_id{0}, incarnation{100}},
                                 proto::kv_purpose::replica,
                                 epoch{2},
                                 1,
                                 {kv_page(1, 0)}},
            instant{2}, out);
  EXPECT_EQ(only<proto::pages_reserved>(out).code, ec::ok);
}

} // namespace
} // namespace di::test
