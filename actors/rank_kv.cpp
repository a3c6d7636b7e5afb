// SPDX-License-Identifier: Apache-2.0
// Sequence states as a ledger.
#include "actors/rank_kv.hpp"

#include <limits>

namespace di::actors {

std::uint32_t rank_kv::open(engine::sequence_key key, const engine::kv_opening&) {
  const auto made = states_.emplace(key, std::make_unique<engine::sequence_state>(layout_, pool_));
  DI_CHECK(made.second);
  return 0;
}

bool rank_kv::reserve(engine::sequence_key key, std::uint32_t tokens) {
  return states_.at(key)->reserve(tokens).ok();
}

void rank_kv::truncate(engine::sequence_key key, std::uint32_t tokens) {
  const auto cut = states_.at(key)->truncate(tokens);
  DI_CHECK(cut.ok());
}

void rank_kv::close(engine::sequence_key key) {
  DI_CHECK_EQ(states_.erase(key), std::size_t{1});
}

std::uint64_t rank_kv::tokens_held(engine::sequence_key key) const {
  if (layout_.sources.empty()) // such a model keeps windows only
    return std::numeric_limits<std::uint32_t>::max();
  return states_.at(key)->pages().size() * page_tokens64();
}

void rank_kv::check() const {
  std::vector<page_id> held;
  for (const auto& [key, state] : states_)
    held.insert(held.end(), state->pages().begin(), state->pages().end());
  const auto whole = pool_.check(held);
  DI_CHECK(whole.ok());
}

} // namespace di::actors
