// SPDX-License-Identifier: Apache-2.0
// How many rows went to which expert over a window of steps: counted by a caller, packed for the
// wire, unpacked by REBALANCER.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/expert_shard.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

struct load_window_options {
  std::uint32_t steps = 0; ///< of a window; 0: nothing is counted
  std::uint32_t bins = 4;  ///< parts of a window; at most `steps` of them are made
};

/// Counts the rows that one caller routes. Owned and used by one thread.
class load_window {
public:
  explicit load_window(load_window_options options);

  /// Rows of a layer's demand. @param experts in the layer  @param routed [rows, experts per token]
  void add(layer_id layer, std::uint32_t experts, std::span<const std::int32_t> routed);
  /// A step has ended. @return the full window, without rank, life and placement
  std::optional<proto::expert_load> end_step();

private:
  struct layer_rows {
    std::uint32_t experts = 0;
    std::vector<std::uint32_t> rows; ///< [bins, experts]
  };
  proto::expert_load pack() const;

  load_window_options options_;
  std::uint32_t step_ = 0; ///< in the window
  std::uint64_t window_ = 0;
  std::vector<layer_rows> layers_;
};

/// Packs counts: each as 7 bits per byte, lowest first, the top bit set where more follow; a run of
/// n > 0 zeros as a 0 followed by n.
void pack_counts(std::span<const std::uint32_t> counts, std::string& out);
/// Reads exactly counts.size() packed counts and removes them from `text`.
/// @errors bad_format: too short, a count past 32 bits, a run past the end
result<void> unpack_counts(std::string_view& text, std::span<std::uint32_t> counts);

} // namespace di::engine
