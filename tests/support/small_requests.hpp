// SPDX-License-Identifier: Apache-2.0
// Small requests and two ranks, for tests of SCHEDULER and JOURNAL.
#pragma once

#include "engine/moe/placement.hpp"
#include "messaging/proto/journal.hpp"

#include <utility>
#include <vector>

namespace di::test {

inline const std::vector<engine::placed_rank> two_ranks{{rank_id{0}, incarnation{10}},
                                                        {rank_id{1}, incarnation{11}}};

inline proto::request_spec request(std::uint64_t id, std::uint32_t n = 1) {
  proto::request_spec spec;
  spec.request = request_id{id};
  spec.gateway = "/gateway/0";
  spec.prompt = {1, 2, 3};
  spec.sampling.max_tokens = 4;
  spec.sampling.n = n;
  return spec;
}

/// Of attempt 1, as rank 2 tells them.
inline proto::tokens_committed tokens(std::uint64_t id, std::uint32_t first,
                                      std::vector<token_id> ids, bool ended = false) {
  proto::tokens_committed m;
  m.request = request_id{id};
  m.attempt = 1;
  m.rank = rank_id{2};
  m.first_index = first;
  m.tokens = std::move(ids);
  if (ended)
    m.end.reason = proto::finish_reason::length;
  return m;
}

} // namespace di::test
