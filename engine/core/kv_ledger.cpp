// SPDX-License-Identifier: Apache-2.0
// The ledger that only counts.
#include "engine/core/kv_ledger.hpp"

namespace di::engine {

counted_ledger::counted_ledger(std::uint64_t kv_tokens, std::uint32_t page_tokens)
    : page_tokens_{page_tokens}, pages_{kv_tokens / page_tokens}, free_{pages_} {
}

std::uint32_t counted_ledger::open(sequence_key key, const kv_opening&) {
  DI_CHECK(pages_of_.emplace(key, 0).second);
  return 0;
}

bool counted_ledger::reserve(sequence_key key, std::uint32_t tokens) {
  std::uint64_t& held = pages_of_.at(key);
  const std::uint64_t wanted = pages_for(tokens);
  if (wanted <= held)
    return true;
  if (wanted - held > free_)
    return false;
  free_ -= wanted - held;
  held = wanted;
  return true;
}

void counted_ledger::truncate(sequence_key key, std::uint32_t tokens) {
  std::uint64_t& held = pages_of_.at(key);
  DI_CHECK(pages_for(tokens) <= held);
  free_ += held - pages_for(tokens);
  held = pages_for(tokens);
}

void counted_ledger::close(sequence_key key) {
  const auto at = pages_of_.find(key);
  DI_CHECK(at != pages_of_.end());
  free_ += at->second;
  pages_of_.erase(at);
}

std::uint64_t counted_ledger::tokens_held(sequence_key key) const {
  return pages_of_.at(key) * page_tokens_;
}

void counted_ledger::check() const {
  std::uint64_t held = 0;
  for (const auto& [key, pages] : pages_of_)
    held += pages;
  DI_CHECK_EQ(held + free_, pages_);
}

} // namespace di::engine
