// SPDX-License-Identifier: Apache-2.0
// The prefix index against a naive model: a list of (text, page, last use) that is searched from
// end to end. Thousands of seeded operations of sequences that come, grow, fork, publish, end and
// of evictions; after each one the same texts are known on the same pages and every page of the
// pool is accounted for.
#include "engine/kv/prefix_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace di::engine {
namespace {

constexpr std::int64_t page = 4; ///< [tokens]
using token_list = std::vector<token_id>;

struct naive_entry {
  std::string salt;
  token_list text; ///< from position 0 to the end of the page
  std::int64_t bounded = 0;
  page_id where;
  std::uint64_t used = 0;
  std::optional<std::uint64_t> snapshot_used[2];
};

/// The rules of prefix_index.hpp in the plainest words.
class naive_index {
public:
  naive_index(page_pool& pool, std::size_t snapshots) : pool_{pool}, snapshots_{snapshots} {}

  std::vector<naive_entry*> find(const token_list& tokens, const prefix_key& key) {
    std::vector<naive_entry*> out;
    for (std::size_t end = page; end <= tokens.size(); end += page) {
      const std::int64_t begin = static_cast<std::int64_t>(end) - page;
      const std::int64_t bounded = begin >= key.bounded_hit ? key.bounded_hit : 0;
      const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) {
        return e->salt == key.salt && e->bounded == bounded && e->text.size() == end
               && std::equal(e->text.begin(), e->text.end(), tokens.begin());
      });
      if (at == entries_.end())
        break;
      out.push_back(at->get());
    }
    return out;
  }
  /// Newest at the root, as a page is needed as long as one that stands on it.
  void use(const std::vector<naive_entry*>& path) {
    for (auto at = path.rbegin(); at != path.rend(); ++at)
      (*at)->used = ++clock_;
  }
  void publish(const token_list& tokens, const std::vector<page_id>& pages, const prefix_key& key) {
    auto path = find(tokens, key);
    if (path.size() == tokens.size() / page)
      return;
    for (std::size_t i = path.size(); (i + 1) * page <= tokens.size(); ++i) {
      auto e = std::make_unique<naive_entry>();
      e->salt = key.salt;
      e->text.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * page));
      e->bounded = static_cast<std::int64_t>(i) * page >= key.bounded_hit ? key.bounded_hit : 0;
      e->where = pages[i];
      e->used = ++clock_;
      path.push_back(e.get());
      entries_.push_back(std::move(e));
    }
    use(path);
  }
  bool has_child(const naive_entry& e) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const auto& other) {
      return other->salt == e.salt && other->text.size() == e.text.size() + page
             && (other->bounded == e.bounded
                 || (e.bounded == 0 && other->bounded == static_cast<std::int64_t>(e.text.size())))
             && std::equal(e.text.begin(), e.text.end(), other->text.begin());
    });
  }
  /// Oldest first that nobody holds and nothing stands on. @param holders of sequences per page
  std::uint32_t evict(std::uint32_t pages, const std::vector<std::uint32_t>& holders) {
    std::uint32_t freed = 0;
    while (freed < pages) {
      std::size_t oldest = entries_.size();
      for (std::size_t i = 0; i < entries_.size(); ++i)
        if (holders[entries_[i]->where.v] == 0 && !has_child(*entries_[i])
            && (oldest == entries_.size() || entries_[i]->used < entries_[oldest]->used))
          oldest = i;
      if (oldest == entries_.size())
        break;
      entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(oldest));
      ++freed;
    }
    return freed;
  }
  /// A snapshot at the end of a text, room for `snapshots_` of them.
  void keep(const token_list& tokens, const prefix_key& key, std::size_t kind) {
    const auto path = find(tokens, key);
    if (path.empty() || path.back()->text.size() != tokens.size()
        || path.back()->bounded != key.bounded_hit || path.back()->snapshot_used[kind])
      return;
    while (count_snapshots() >= snapshots_) {
      std::optional<std::uint64_t>* oldest = nullptr;
      for (const auto& e : entries_)
        for (auto& s : e->snapshot_used)
          if (s && (oldest == nullptr || *s < **oldest))
            oldest = &s;
      oldest->reset();
    }
    path.back()->snapshot_used[kind] = ++snapshot_clock_;
  }
  std::size_t count_snapshots() const {
    std::size_t n = 0;
    for (const auto& e : entries_)
      n += (e->snapshot_used[0] ? 1u : 0u) + (e->snapshot_used[1] ? 1u : 0u);
    return n;
  }
  /// Length of the snapshot that a match of the path finds, 0: none.
  std::int64_t best_snapshot(const std::vector<naive_entry*>& path, const prefix_key& key,
                             std::size_t kind, std::int64_t limit) {
    for (auto at = path.rbegin(); at != path.rend(); ++at) {
      if ((*at)->bounded != key.bounded_hit)
        break;
      const auto length = static_cast<std::int64_t>((*at)->text.size());
      if (!(*at)->snapshot_used[kind] || length > limit)
        continue;
      (*at)->snapshot_used[kind] = ++snapshot_clock_;
      return length;
    }
    return 0;
  }
  std::size_t size() const { return entries_.size(); }

private:
  page_pool& pool_;
  std::size_t snapshots_;
  std::vector<std::unique_ptr<naive_entry>> entries_;
  std::uint64_t clock_ = 0, snapshot_clock_ = 0;
};

struct toy_sequence {
  std::string salt;
  token_list tokens;
  std::vector<page_id> pages;
  std::int64_t bounded = 0;
  prefix_cursor cursor;
};

/// A rank of toy sequences over a small pool; texts over two letters, so that they meet often.
class toy_rank {
public:
  toy_rank(std::uint32_t seed, unsigned address_bits)
      : random_{seed}, pool_{std::move(*page_pool::create(64, 24))}, text_of_(24) {
    window_snapshot one;
    one.length = page;
    snapshot_bytes_ = one.bytes();
    prefix_index_options options{"contract", page, 3 * snapshot_bytes_, address_bits};
    index_ = std::make_unique<prefix_index>(*pool_, std::move(options));
    naive_ = std::make_unique<naive_index>(*pool_, 3);
    compare_ = address_bits == 128;
  }

  void step() {
    switch (random_() % 8) {
    case 0:
    case 1:
      begin();
      break;
    case 2:
    case 3:
    case 4:
      grow();
      break;
    case 5:
      end();
      break;
    case 6:
      evict(static_cast<std::uint32_t>(random_() % 4));
      break;
    case 7:
      snapshot();
      break;
    }
    check();
  }
  std::uint64_t hits() const { return index_->counts().hits; }
  std::uint64_t evicted() const { return index_->counts().evicted_pages; }
  std::uint64_t dropped() const { return index_->counts().snapshots_dropped; }

private:
  token_id letter() { return static_cast<token_id>(random_() % 2); }
  prefix_key key(const toy_sequence& s) const { return {s.salt, s.bounded}; }

  void begin() {
    if (sequences_.size() >= 5)
      return end();
    toy_sequence s;
    s.salt = random_() % 4 == 0 ? "other" : "";
    token_list prompt(4 + random_() % 20);
    for (token_id& t : prompt)
      t = letter();
    if (random_() % 3 == 0)
      s.bounded = static_cast<std::int64_t>(index_->known(prompt, {s.salt, 0}, 8));
    const auto limit = static_cast<std::int64_t>(prompt.size()) - 1;
    const auto kind = static_cast<snapshot_kind>(random_() % 2);
    const auto match = index_->match(prompt, key(s), limit, kind, limit);
    ASSERT_EQ(match.hit, static_cast<std::int64_t>(match.pages.size()) * page);
    ASSERT_LE(match.hit, limit);
    for (std::size_t i = 0; i < match.pages.size(); ++i) { // nothing else than the text itself
      const toy_sequence& of = text_of_[match.pages[i].v];
      ASSERT_EQ(of.salt, s.salt);
      const std::size_t end = (i + 1) * page;
      ASSERT_GE(of.tokens.size(), end);
      ASSERT_TRUE(std::equal(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(end),
                             of.tokens.begin()));
      const bool behind = static_cast<std::int64_t>(i * page) >= of.bounded && of.bounded > 0;
      ASSERT_EQ(behind ? of.bounded : 0,
                static_cast<std::int64_t>(i * page) >= s.bounded ? s.bounded : 0);
    }
    if (compare_) {
      const token_list allowed{prompt.begin(), prompt.begin() + limit};
      auto path = naive_->find(allowed, key(s));
      ASSERT_EQ(path.size(), match.pages.size());
      for (std::size_t i = 0; i < path.size(); ++i)
        ASSERT_EQ(path[i]->where, match.pages[i]);
      const std::int64_t snapshot =
          naive_->best_snapshot(path, key(s), static_cast<std::size_t>(kind), limit);
      ASSERT_EQ(match.snapshot == nullptr ? 0 : match.snapshot->length, snapshot);
      naive_->use(path);
    }
    for (const page_id p : match.pages) {
      pool_->share(p);
      s.pages.push_back(p);
    }
    s.tokens.assign(prompt.begin(), prompt.begin() + match.hit);
    if (s.bounded > match.hit)
      s.bounded = 0; // a rank would make the pages below it again
    sequences_.push_back(std::move(s));
  }

  /// Writes tokens; every page that is complete becomes known.
  void grow() {
    if (sequences_.empty())
      return;
    toy_sequence& s = sequences_[random_() % sequences_.size()];
    const std::size_t count = 1 + random_() % 9;
    for (std::size_t i = 0; i < count; ++i) {
      if (s.tokens.size() % page == 0) {
        if (pool_->free_pages() == 0)
          evict(1);
        const auto fresh = pool_->acquire();
        if (!fresh.ok())
          break;
        s.pages.push_back(*fresh);
      }
      s.tokens.push_back(letter());
      text_of_[s.pages.back().v] = {s.salt, s.tokens, {}, s.bounded, {}};
    }
    if (random_() % 5 == 0)
      s.cursor = {}; // a cursor may always be lost
    index_->publish(s.cursor, s.tokens, s.pages, key(s));
    if (compare_)
      naive_->publish(s.tokens, s.pages, key(s));
  }

  void end() {
    if (sequences_.empty())
      return;
    const std::size_t at = random_() % sequences_.size();
    for (const page_id p : sequences_[at].pages)
      pool_->release(p);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void evict(std::uint32_t pages) {
    std::vector<std::uint32_t> holders(pool_->pages(), 0);
    for (const page_id p : held())
      ++holders[p.v];
    const std::uint32_t possible = index_->evictable_pages();
    const std::uint32_t freed = index_->evict(pages);
    ASSERT_EQ(freed, std::min(pages, possible));
    if (compare_) {
      ASSERT_EQ(naive_->evict(pages, holders), freed);
    }
  }

  void snapshot() {
    if (sequences_.empty())
      return;
    const toy_sequence& s = sequences_[random_() % sequences_.size()];
    const std::size_t pages = s.tokens.size() / page;
    if (pages == 0)
      return;
    const std::size_t end = (1 + random_() % pages) * page;
    const token_list text{s.tokens.begin(), s.tokens.begin() + static_cast<std::ptrdiff_t>(end)};
    auto windows = std::make_shared<window_snapshot>();
    windows->length = static_cast<std::int64_t>(end);
    const auto kind = static_cast<snapshot_kind>(random_() % 2);
    index_->keep_snapshot(text, key(s), kind, windows,
                          random_() % 2 == 0 ? s.cursor : prefix_cursor{});
    ASSERT_FALSE(index_->wants_snapshot(text, key(s), kind) && windows.use_count() > 1);
    if (compare_)
      naive_->keep(text, key(s), static_cast<std::size_t>(kind));
  }

  std::vector<page_id> held() const {
    std::vector<page_id> out;
    for (const toy_sequence& s : sequences_)
      out.insert(out.end(), s.pages.begin(), s.pages.end());
    return out;
  }

  void check() {
    const auto fine = index_->check(held());
    ASSERT_TRUE(fine.ok()) << fine.error().render();
    ASSERT_LE(index_->snapshot_bytes(), 3 * snapshot_bytes_);
    if (compare_) {
      ASSERT_EQ(index_->pages(), naive_->size());
      ASSERT_EQ(index_->snapshot_bytes(), naive_->count_snapshots() * snapshot_bytes_);
    }
  }

  std::mt19937 random_;
  std::unique_ptr<page_pool> pool_;
  std::unique_ptr<prefix_index> index_;
  std::unique_ptr<naive_index> naive_;
  std::vector<toy_sequence> sequences_;
  std::vector<toy_sequence> text_of_; ///< [pages] who wrote it, and what
  std::size_t snapshot_bytes_ = 0;
  bool compare_ = true;
};

TEST(prefix_index, knows_what_a_naive_list_knows) {
  std::uint64_t hits = 0, evicted = 0, dropped = 0;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    toy_rank rank{seed, 128};
    for (int i = 0; i < 1000; ++i) {
      rank.step();
      if (::testing::Test::HasFatalFailure())
        FAIL() << "seed " << seed << " step " << i;
    }
    hits += rank.hits();
    evicted += rank.evicted();
    dropped += rank.dropped();
  }
  EXPECT_GT(hits, 500U);
  EXPECT_GT(evicted, 500U);
  EXPECT_GT(dropped, 100U);
}

/// With four bits of address nearly all texts collide: hits become rare, never wrong.
TEST(prefix_index, compares_tokens_where_addresses_are_equal) {
  std::uint64_t hits = 0;
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    toy_rank rank{seed, 4};
    for (int i = 0; i < 500; ++i) {
      rank.step();
      if (::testing::Test::HasFatalFailure())
        FAIL() << "seed " << seed << " step " << i;
    }
    hits += rank.hits();
  }
  EXPECT_GT(hits, 20U);
}

} // namespace
} // namespace di::engine
