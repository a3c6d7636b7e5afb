// SPDX-License-Identifier: Apache-2.0
// Test-only: a call of RANK for one row per expert.
#pragma once

#include "messaging/proto/expert_shard.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace di::testing {

struct call_from {
  rank_id rank{1};
  std::uint64_t placement = 5; ///< version that it follows
  std::uint32_t layer = 0;
};

/// Rows of 32 zeros, row i for experts[i]; the caller's life is 10 + its rank.
inline proto::expert_batch expert_call(std::uint64_t id, const call_from& from,
                                       std::vector<std::uint32_t> experts, bool decoding) {
  proto::expert_batch m;
  m.call = call_id{id};
  m.caller = from.rank;
  m.life = incarnation{10 + from.rank.v};
  m.placement = epoch{from.placement};
  m.layer = layer_id{from.layer};
  m.decoding = decoding;
  m.rows = static_cast<std::uint32_t>(experts.size());
  m.hidden = 32;
  for (std::uint32_t i = 0; i < m.rows; ++i)
    m.row.push_back(i);
  m.weight.assign(experts.size(), 1.0F);
  m.expert = std::move(experts);
  m.codes = shared_bytes::adopt(std::vector<std::uint8_t>(m.rows * 32));
  m.scales = shared_bytes::adopt(std::vector<std::uint8_t>(m.rows));
  return m;
}

} // namespace di::testing
