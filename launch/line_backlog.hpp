// SPDX-License-Identifier: Apache-2.0
// Lines on their way to a receiver that may be slow: sent in order, kept while its credit is used
// up.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

namespace di::launch {

/// What may happen to a line that cannot be sent now.
enum class line_worth : std::uint8_t {
  keep, ///< sent later, whatever it takes: orders, and reports about children
  spare ///< dropped and counted while much waits already: logs
};

/// Used on one thread. Its owner calls flush() again while it returns false.
class line_backlog {
public:
  /// @errors limit_exceeded: not now; anything else: the receiver is gone or will never take it
  using post_fn = std::function<result<void>(const std::string& line)>;

  /// @param spare_bytes_max spare lines are dropped while more than this waits
  explicit line_backlog(post_fn post, std::size_t spare_bytes_max = 1U << 20U)
      : post_{std::move(post)}, spare_bytes_max_{spare_bytes_max} {}

  /// Behind all that waits.
  void put(std::string line, line_worth worth);
  /// @return true if nothing waits any more
  bool flush();
  bool empty() const noexcept { return waiting_.empty(); }
  /// Spare lines dropped since the last call.
  std::uint64_t take_dropped() noexcept;

private:
  post_fn post_;
  std::size_t spare_bytes_max_;
  std::deque<std::string> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::uint64_t dropped_ = 0;
};

} // namespace di::launch
