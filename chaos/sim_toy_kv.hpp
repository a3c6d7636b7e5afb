// SPDX-License-Identifier: Apache-2.0
// A kv_ledger that counts pages and keeps what the toy model remembers of each sequence.
#pragma once

#include "chaos/sim_toy_model.hpp"
#include "engine/core/kv_ledger.hpp"

#include <map>

namespace di::sim::toy {

class kv final : public engine::counted_ledger {
public:
  using counted_ledger::counted_ledger;

  std::uint32_t open(engine::sequence_key key, const engine::kv_opening& what) override {
    memories_[key] = {};
    return counted_ledger::open(key, what);
  }
  void truncate(engine::sequence_key key, std::uint32_t tokens) override {
    for (auto& keys : memories_.at(key).keys)
      keys.resize(tokens);
    counted_ledger::truncate(key, tokens);
  }
  void close(engine::sequence_key key) override {
    memories_.erase(key);
    counted_ledger::close(key);
  }

  memory& of(engine::sequence_key key) { return memories_.at(key); }

private:
  std::map<engine::sequence_key, memory> memories_;
};

} // namespace di::sim::toy
