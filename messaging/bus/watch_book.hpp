// SPDX-License-Identifier: Apache-2.0
// Who wants to know when which path ends.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <map>
#include <mutex>
#include <vector>

namespace di::bus {

struct watch_entry {
  address path;
  address watcher;
  incarnation watcher_life{}; ///< 0: an actor of this process
  incarnation target_life{};  ///< process that `path` lives in, 0: this one
  address target_prefix;      ///< route that `path` was found by, empty: this process
};

/// Thread-safe. Entries leave exactly once, so each watcher is told once.
class watch_book {
public:
  /// False if the same watch exists. @errors limit_exceeded
  result<bool> add(watch_entry e);
  /// True if it was there.
  bool remove(const address& path, const address& watcher, incarnation watcher_life);
  /// Watches of a path of this process.
  std::vector<watch_entry> take_local(const address& path);
  /// Own watches of paths in a process, or of those that one route led to.
  std::vector<watch_entry> take_target(incarnation life);
  std::vector<watch_entry> take_prefix(const address& prefix);
  void drop_watcher_life(incarnation life);
  void drop_watcher(const address& watcher);

private:
  template <class Matches>
  std::vector<watch_entry> take_where(Matches&& matches);

  std::mutex guard_;
  std::multimap<address, watch_entry> by_path_;
};

} // namespace di::bus
