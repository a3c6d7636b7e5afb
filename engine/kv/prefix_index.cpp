// SPDX-License-Identifier: Apache-2.0
// The tree of known pages: addresses, order of use, eviction, snapshots.
#include "engine/kv/prefix_index.hpp"

#include <algorithm>
#include <bit>

namespace di::engine {

namespace {

std::uint64_t mixed(std::uint64_t x) noexcept {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 29)) * 0xCF1BBCDCB7A56463ull;
  return x ^ (x >> 32);
}

/// Two lanes of 64 bits with different constants, each fed with every word.
class chain {
public:
  chain(std::uint64_t low, std::uint64_t high) : low_{low}, high_{high} {}
  void add(std::uint64_t word) noexcept {
    low_ = mixed(low_ ^ word) + 0x9E3779B97F4A7C15ull;
    high_ = mixed(std::rotl(high_, 23) + word * 0xC2B2AE3D27D4EB4Full);
  }
  void add(std::string_view text) noexcept {
    add(text.size());
    for (const char c : text)
      add(static_cast<unsigned char>(c));
  }
  std::uint64_t low() const noexcept { return low_; }
  std::uint64_t high() const noexcept { return mixed(high_ ^ low_); }

private:
  std::uint64_t low_, high_;
};

} // namespace

page_address windows_address(const page_address& page, std::int64_t decoder_floor,
                             std::int64_t layers) noexcept {
  chain c{page.low, page.high};
  c.add("windows");
  c.add(static_cast<std::uint64_t>(decoder_floor));
  c.add(static_cast<std::uint64_t>(layers));
  return {c.low(), c.high()};
}

prefix_index::prefix_index(page_pool& pool, prefix_index_options options)
    : pool_{pool}, options_{std::move(options)} {
  DI_CHECK(options_.page_tokens > 0);
  chain c{0x6A09E667F3BCC908ull, 0xBB67AE8584CAA73Bull};
  c.add(options_.contract);
  c.add(static_cast<std::uint64_t>(options_.page_tokens));
  contract_ = {c.low(), c.high()};
}

prefix_index::~prefix_index() {
  clear();
}

void prefix_index::clear() {
  while (oldest_ != none)
    remove(oldest_);
}

prefix_index::address prefix_index::root(std::string_view salt) const {
  chain c{contract_.low, contract_.high};
  c.add(salt);
  return {c.low(), c.high()};
}

prefix_index::address prefix_index::weakened(const address& a) const noexcept {
  if (options_.address_bits >= 64)
    return a;
  return {a.low & ((std::uint64_t{1} << options_.address_bits) - 1), 0};
}

prefix_index::step prefix_index::look_up(const address& above, std::uint32_t parent,
                                         std::span<const token_id> tokens, std::int64_t bounded_hit,
                                         std::string_view salt) const {
  chain c{above.low, above.high};
  c.add(static_cast<std::uint64_t>(bounded_hit));
  for (const token_id token : tokens)
    c.add(static_cast<std::uint32_t>(token));
  step out{weakened({c.low(), c.high()}), none, false};
  const auto known = by_address_.find(out.at);
  if (known == by_address_.end())
    return out;
  const node& n = nodes_[known->second];
  const bool same = n.parent == parent && n.bounded_hit == bounded_hit
                    && (parent != none || n.salt == salt)
                    && std::equal(n.tokens.begin(), n.tokens.end(), tokens.begin(), tokens.end());
  out.found = same ? known->second : none;
  out.collides = !same;
  return out;
}

/// Nodes of the longest known beginning, root first.
std::vector<std::uint32_t> prefix_index::walk(std::span<const token_id> tokens,
                                              const prefix_key& key) const {
  const auto size = static_cast<std::size_t>(options_.page_tokens);
  std::vector<std::uint32_t> path;
  address above = root(key.salt);
  std::uint32_t parent = none;
  for (std::size_t at = 0; at + size <= tokens.size(); at += size) {
    const step next =
        look_up(above, parent, tokens.subspan(at, size), lineage_at(key, at), key.salt);
    if (next.found == none)
      break;
    path.push_back(next.found);
    parent = next.found;
    above = next.at;
  }
  return path;
}

std::int64_t prefix_index::lineage_at(const prefix_key& key, std::size_t position) noexcept {
  return static_cast<std::int64_t>(position) >= key.bounded_hit ? key.bounded_hit : 0;
}

prefix_match prefix_index::match(std::span<const token_id> tokens, const prefix_key& key,
                                 std::int64_t limit, snapshot_kind kind,
                                 std::int64_t snapshot_limit) {
  const auto longest = static_cast<std::size_t>(std::max<std::int64_t>(limit, 0));
  prefix_match out;
  ++counts_.lookups;
  counts_.looked_up_tokens += tokens.size();
  const auto path = walk(tokens.first(std::min(tokens.size(), longest)), key);
  if (path.empty())
    return out;
  ++counts_.hits;
  for (const std::uint32_t n : path)
    out.pages.push_back(nodes_[n].page);
  out.hit = static_cast<std::int64_t>(path.size()) * options_.page_tokens;
  counts_.hit_tokens += static_cast<std::uint64_t>(out.hit);
  const auto k = static_cast<std::size_t>(kind);
  for (std::size_t i = path.size(); i-- > 0 && out.snapshot == nullptr;) {
    node& n = nodes_[path[i]];
    if (n.bounded_hit != key.bounded_hit)
      break; // windows of a cold run are not those behind the bounded hit
    if (n.snapshots[k] == nullptr || n.snapshots[k]->length > snapshot_limit)
      continue;
    out.snapshot = n.snapshots[k];
    by_age_.erase(n.snapshot_age[k]);
    n.snapshot_age[k] = ++clock_;
    by_age_[n.snapshot_age[k]] = {path[i], k};
  }
  touch_path(path.back());
  return out;
}

std::int64_t prefix_index::known(std::span<const token_id> tokens, const prefix_key& key,
                                 std::int64_t limit) const {
  const auto longest = static_cast<std::size_t>(std::max<std::int64_t>(limit, 0));
  return static_cast<std::int64_t>(walk(tokens.first(std::min(tokens.size(), longest)), key).size())
         * options_.page_tokens;
}

void prefix_index::name_pages(std::span<const token_id> tokens, const prefix_key& key,
                              std::vector<page_address>& out) const {
  const auto size = static_cast<std::size_t>(options_.page_tokens);
  for (std::size_t at = out.size() * size; at + size <= tokens.size(); at += size) {
    const address above = out.empty() ? root(key.salt) : out.back();
    chain c{above.low, above.high};
    c.add(static_cast<std::uint64_t>(lineage_at(key, at)));
    for (const token_id token : tokens.subspan(at, size))
      c.add(static_cast<std::uint32_t>(token));
    out.push_back(weakened({c.low(), c.high()}));
  }
}

result<std::int64_t> prefix_index::import_pages(std::span<const token_id> tokens,
                                                const prefix_key& key, std::size_t first,
                                                std::span<const std::span<const std::byte>> pages) {
  const auto size = static_cast<std::size_t>(options_.page_tokens);
  if (tokens.size() < (first + pages.size()) * size)
    return fail(ec::bad_argument, "{} pages behind {} do not stand for {} tokens", pages.size(),
                first, tokens.size());
  for (const auto& bytes : pages)
    if (bytes.size() > pool_.page_bytes())
      return fail(ec::bad_argument, "a page of {} bytes, the pool's have {}", bytes.size(),
                  pool_.page_bytes());
  if (const auto path = walk(tokens.first(first * size), key); !path.empty())
    touch_path(path.back());
  DI_TRY_VOID(make_room(static_cast<std::uint32_t>(pages.size())));
  const auto text = tokens.first((first + pages.size()) * size);
  const std::size_t known = walk(text, key).size();
  if (known >= first && known < first + pages.size()) {
    std::vector<page_id> all(first + pages.size()); // those that are known are not looked at
    for (std::size_t i = known; i < all.size(); ++i) {
      auto page = pool_.acquire();
      DI_CHECK(page.ok()); // room was made
      all[i] = *page;
      std::copy(pages[i - first].begin(), pages[i - first].end(), pool_.data(all[i]));
    }
    prefix_cursor cursor;
    publish(cursor, text, all, key);
    for (std::size_t i = known; i < all.size(); ++i)
      pool_.release(all[i]); // what collides goes
  }
  return static_cast<std::int64_t>(walk(text, key).size()) * options_.page_tokens;
}

void prefix_index::publish(prefix_cursor& cursor, std::span<const token_id> tokens,
                           std::span<const page_id> pages, const prefix_key& key) {
  const auto size = static_cast<std::size_t>(options_.page_tokens);
  const std::size_t count = tokens.size() / size;
  DI_CHECK(pages.size() >= count);
  if (cursor.life == 0 || cursor.pages > count || nodes_[cursor.node].life != cursor.life)
    cursor = {};
  if (cursor.pages == count)
    return;
  address above = cursor.life == 0 ? root(key.salt) : nodes_[cursor.node].at;
  std::uint32_t parent = cursor.life == 0 ? none : cursor.node;
  bool added = false;
  for (std::size_t i = cursor.pages; i < count; ++i) {
    const auto text = tokens.subspan(i * size, size);
    const std::int64_t lineage = lineage_at(key, i * size);
    const step next = look_up(above, parent, text, lineage, key.salt);
    if (next.collides)
      break;
    added = added || next.found == none;
    parent = next.found != none ? next.found
                                : insert(next.at, parent, pages[i], text, lineage, key.salt);
    above = next.at;
    cursor = {parent, nodes_[parent].life, i + 1};
  }
  if (added)
    touch_path(parent);
}

std::uint32_t prefix_index::insert(const address& at, std::uint32_t parent, page_id page,
                                   std::span<const token_id> tokens, std::int64_t bounded_hit,
                                   std::string_view salt) {
  std::uint32_t slot = none;
  if (free_nodes_.empty()) {
    slot = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    slot = free_nodes_.back();
    free_nodes_.pop_back();
  }
  node& n = nodes_[slot];
  n.at = at;
  n.life = ++lives_;
  n.parent = parent;
  n.children = 0;
  n.page = page;
  n.bounded_hit = bounded_hit;
  n.salt = parent == none ? std::string{salt} : std::string{};
  n.tokens.assign(tokens.begin(), tokens.end());
  if (parent != none)
    ++nodes_[parent].children;
  pool_.share(page);
  by_address_[at] = slot;
  ++counts_.published_pages;
  n.older = newest_;
  n.newer = none;
  (newest_ == none ? oldest_ : nodes_[newest_].newer) = slot;
  newest_ = slot;
  return slot;
}

void prefix_index::unlink(std::uint32_t slot) {
  const node& n = nodes_[slot];
  (n.older == none ? oldest_ : nodes_[n.older].newer) = n.newer;
  (n.newer == none ? newest_ : nodes_[n.newer].older) = n.older;
}

void prefix_index::touch(std::uint32_t slot) {
  unlink(slot);
  nodes_[slot].older = newest_;
  nodes_[slot].newer = none;
  (newest_ == none ? oldest_ : nodes_[newest_].newer) = slot;
  newest_ = slot;
}

/// From the leaf up, so that what others stand on is the younger.
void prefix_index::touch_path(std::uint32_t leaf) {
  for (std::uint32_t n = leaf; n != none; n = nodes_[n].parent)
    touch(n);
}

void prefix_index::drop_snapshot(std::uint32_t slot, std::size_t kind) {
  node& n = nodes_[slot];
  if (n.snapshots[kind] == nullptr)
    return;
  snapshot_bytes_ -= n.snapshots[kind]->bytes();
  by_age_.erase(n.snapshot_age[kind]);
  n.snapshots[kind].reset();
  ++counts_.snapshots_dropped;
}

/// Takes a node without children out; a clear() may do it while sequences hold the page.
void prefix_index::remove(std::uint32_t slot) {
  node& n = nodes_[slot];
  DI_CHECK(n.children == 0);
  for (std::size_t kind = 0; kind < n.snapshots.size(); ++kind)
    drop_snapshot(slot, kind);
  unlink(slot);
  by_address_.erase(n.at);
  if (n.parent != none)
    --nodes_[n.parent].children;
  pool_.release(n.page);
  n.life = 0;
  n.tokens.clear();
  free_nodes_.push_back(slot);
}

bool prefix_index::evictable(std::uint32_t slot) const {
  return nodes_[slot].children == 0 && pool_.references(nodes_[slot].page) == 1;
}

std::uint32_t prefix_index::evict(std::uint32_t pages) {
  std::uint32_t freed = 0;
  // Parents are younger than their children, so one pass in order of use meets leaves first.
  for (std::uint32_t n = oldest_; n != none && freed < pages;) {
    const std::uint32_t next = nodes_[n].newer;
    if (evictable(n)) {
      remove(n);
      ++freed;
    }
    n = next;
  }
  counts_.evicted_pages += freed;
  return freed;
}

std::uint32_t prefix_index::evictable_pages() const {
  if (counted_at_ == pool_.changes())
    return evictable_;
  std::vector<std::uint32_t> gone(nodes_.size(), 0); // children that could go
  std::uint32_t count = 0;
  for (std::uint32_t n = oldest_; n != none; n = nodes_[n].newer) {
    if (gone[n] != nodes_[n].children || pool_.references(nodes_[n].page) != 1)
      continue;
    ++count;
    if (nodes_[n].parent != none)
      ++gone[nodes_[n].parent];
  }
  counted_at_ = pool_.changes();
  evictable_ = count;
  return count;
}

result<void> prefix_index::make_room(std::uint32_t pages) {
  if (pool_.free_pages() >= pages)
    return {};
  const std::uint32_t missing = pages - pool_.free_pages();
  if (missing > by_address_.size() || missing > evictable_pages())
    return fail(ec::kv_exhausted, "{} KV pages wanted, {} of {} are free and {} can be evicted",
                pages, pool_.free_pages(), pool_.pages(), evictable_pages());
  DI_CHECK(evict(missing) == missing);
  return {};
}

/// The page that ends the text, of the key's own lineage: none if it is not known. Windows at or
/// below a bounded hit have no place: the pages there are those of a cold run.
std::uint32_t prefix_index::node_ending_at(std::span<const token_id> tokens, const prefix_key& key,
                                           const prefix_cursor& near) const {
  const auto size = static_cast<std::size_t>(options_.page_tokens);
  if (tokens.empty() || tokens.size() % size != 0)
    return none;
  std::uint32_t at = none;
  if (const std::size_t pages = tokens.size() / size;
      near.life != 0 && near.pages >= pages && nodes_[near.node].life == near.life) {
    at = near.node;
    for (std::size_t up = near.pages - pages; up > 0; --up)
      at = nodes_[at].parent;
  } else if (const auto path = walk(tokens, key); path.size() == pages) {
    at = path.back();
  }
  return at != none && nodes_[at].bounded_hit == key.bounded_hit ? at : none;
}

bool prefix_index::wants_snapshot(std::span<const token_id> tokens, const prefix_key& key,
                                  snapshot_kind kind, const prefix_cursor& near) {
  if (!keeps_snapshots())
    return false;
  const std::uint32_t n = node_ending_at(tokens, key, near);
  return n != none && nodes_[n].snapshots[static_cast<std::size_t>(kind)] == nullptr;
}

void prefix_index::keep_snapshot(std::span<const token_id> tokens, const prefix_key& key,
                                 snapshot_kind kind,
                                 std::shared_ptr<const window_snapshot> snapshot,
                                 const prefix_cursor& near) {
  if (snapshot == nullptr || snapshot->bytes() > options_.snapshot_bytes
      || snapshot->length != static_cast<std::int64_t>(tokens.size())
      || !wants_snapshot(tokens, key, kind, near))
    return;
  while (snapshot_bytes_ + snapshot->bytes() > options_.snapshot_bytes) {
    const auto [slot, old_kind] = by_age_.begin()->second;
    drop_snapshot(slot, old_kind);
  }
  const std::uint32_t slot = node_ending_at(tokens, key, near);
  const auto k = static_cast<std::size_t>(kind);
  node& n = nodes_[slot];
  snapshot_bytes_ += snapshot->bytes();
  n.snapshots[k] = std::move(snapshot);
  n.snapshot_age[k] = ++clock_;
  by_age_[n.snapshot_age[k]] = {slot, k};
  ++counts_.snapshots_kept;
}

void prefix_index::forget_snapshot(std::span<const token_id> tokens, const prefix_key& key,
                                   snapshot_kind kind, const prefix_cursor& near) {
  if (const std::uint32_t n = node_ending_at(tokens, key, near); n != none)
    drop_snapshot(n, static_cast<std::size_t>(kind));
}

result<void> prefix_index::check(std::span<const page_id> held) const {
  std::vector<page_id> all{held.begin(), held.end()};
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  std::vector<bool> seen(nodes_.size(), false);
  std::size_t bytes = 0, snapshots = 0, count = 0;
  for (std::uint32_t n = oldest_; n != none; n = nodes_[n].newer, ++count) {
    const node& at = nodes_[n];
    if (at.life == 0 || seen[n])
      return fail(ec::internal, "node {} is in the order of use, and unused or twice there", n);
    seen[n] = true;
    if (at.parent != none && (seen[at.parent] || nodes_[at.parent].life == 0))
      return fail(ec::internal, "node {} stands on node {}, which is older or gone", n, at.parent);
    if (at.parent != none)
      ++children[at.parent];
    const auto known = by_address_.find(at.at);
    if (known == by_address_.end() || known->second != n)
      return fail(ec::internal, "node {} is not found at its address", n);
    all.push_back(at.page);
    for (const auto& snapshot : at.snapshots)
      if (snapshot != nullptr) {
        bytes += snapshot->bytes();
        ++snapshots;
      }
  }
  for (std::uint32_t n = 0; n < nodes_.size(); ++n)
    if (nodes_[n].life != 0 && (children[n] != nodes_[n].children || !seen[n]))
      return fail(ec::internal, "node {} counts {} children, there are {}", n, nodes_[n].children,
                  children[n]);
  if (count != by_address_.size())
    return fail(ec::internal, "{} pages are known, {} addresses", count, by_address_.size());
  if (bytes != snapshot_bytes_ || snapshots != by_age_.size() || bytes > options_.snapshot_bytes)
    return fail(ec::internal, "{} snapshots of {} bytes, counted {} of {}", snapshots, bytes,
                by_age_.size(), snapshot_bytes_);
  return pool_.check(all);
}

} // namespace di::engine
