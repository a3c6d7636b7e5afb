// SPDX-License-Identifier: Apache-2.0
// A set of numbers that mostly come in runs: a few bounds instead of a million entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace di::engine {

class number_ranges {
public:
  bool contains(std::uint64_t n) const {
    const auto after = ranges_.upper_bound(n);
    return after != ranges_.begin() && std::prev(after)->second >= n;
  }

  /// Adds [first, last]; first <= last.
  void add(std::uint64_t first, std::uint64_t last) {
    auto at = ranges_.upper_bound(first);
    if (at != ranges_.begin() && touches(std::prev(at)->second, first))
      --at;
    while (at != ranges_.end() && touches(last, at->first)) {
      first = std::min(first, at->first);
      last = std::max(last, at->second);
      at = ranges_.erase(at);
    }
    ranges_.emplace(first, last);
  }
  void add(std::uint64_t n) { add(n, n); }

  /// Drops the lowest runs until at most `runs_max` are left.
  void keep_last(std::size_t runs_max) {
    while (ranges_.size() > runs_max)
      ranges_.erase(ranges_.begin());
  }

  /// first -> last, ascending, never adjacent.
  const std::map<std::uint64_t, std::uint64_t>& runs() const noexcept { return ranges_; }
  friend bool operator==(const number_ranges&, const number_ranges&) = default;

private:
  /// [.., last] and [first, ..] with first's run not below: do they overlap or meet?
  static bool touches(std::uint64_t last, std::uint64_t first) {
    return last >= first || first - last == 1;
  }

  std::map<std::uint64_t, std::uint64_t> ranges_;
};

} // namespace di::engine
