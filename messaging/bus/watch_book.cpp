// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/watch_book.hpp"

#include "messaging/base/limits.hpp"

namespace di::bus {

result<bool> watch_book::add(watch_entry e) {
  const std::lock_guard lock{guard_};
  const auto [from, to] = by_path_.equal_range(e.path);
  for (auto at = from; at != to; ++at)
    if (at->second.watcher == e.watcher && at->second.watcher_life == e.watcher_life)
      return false;
  if (by_path_.size() >= limits::watches_max)
    return fail(ec::limit_exceeded, "{} watches, no more are allowed", by_path_.size());
  address path = e.path;
  by_path_.emplace(std::move(path), std::move(e));
  return true;
}

bool watch_book::remove(const address& path, const address& watcher, incarnation watcher_life) {
  const std::lock_guard lock{guard_};
  const auto [from, to] = by_path_.equal_range(path);
  for (auto at = from; at != to; ++at)
    if (at->second.watcher == watcher && at->second.watcher_life == watcher_life) {
      by_path_.erase(at);
      return true;
    }
  return false;
}

template <class Matches>
std::vector<watch_entry> watch_book::take_where(Matches&& matches) {
  const std::lock_guard lock{guard_};
  std::vector<watch_entry> out;
  for (auto at = by_path_.begin(); at != by_path_.end();)
    if (matches(at->second)) {
      out.push_back(std::move(at->second));
      at = by_path_.erase(at);
    } else {
      ++at;
    }
  return out;
}

std::vector<watch_entry> watch_book::take_local(const address& path) {
  return take_where([&](const watch_entry& e) { return e.target_life.v == 0 && e.path == path; });
}

std::vector<watch_entry> watch_book::take_target(incarnation life) {
  return take_where([&](const watch_entry& e) { return e.target_life == life; });
}

std::vector<watch_entry> watch_book::take_prefix(const address& prefix) {
  return take_where(
      [&](const watch_entry& e) { return e.target_life.v != 0 && e.target_prefix == prefix; });
}

void watch_book::drop_watcher_life(incarnation life) {
  take_where([&](const watch_entry& e) { return e.watcher_life == life; });
}

void watch_book::drop_watcher(const address& watcher) {
  take_where([&](const watch_entry& e) { return e.watcher_life.v == 0 && e.watcher == watcher; });
}

} // namespace di::bus
