// SPDX-License-Identifier: Apache-2.0
// A kv_ledger that counts pages and keeps what the toy model remembers of each sequence.
#pragma once

#include "engine/core/kv_ledger.hpp"
#include "tests/sim/toy_model.hpp"

#include <map>

namespace di::test::toy {

class kv final : public engine::kv_ledger {
public:
  kv(std::uint64_t kv_tokens, std::uint32_t page_tokens) : pages_{kv_tokens, page_tokens} {}

  std::uint32_t open(engine::sequence_key key, const engine::kv_opening& what) override {
    memories_[key] = {};
    return pages_.open(key, what);
  }
  bool reserve(engine::sequence_key key, std::uint32_t tokens) override {
    return pages_.reserve(key, tokens);
  }
  void truncate(engine::sequence_key key, std::uint32_t tokens) override {
    for (auto& keys : memories_.at(key).keys)
      keys.resize(tokens);
    pages_.truncate(key, tokens);
  }
  void close(engine::sequence_key key) override {
    memories_.erase(key);
    pages_.close(key);
  }
  std::uint64_t tokens_held(engine::sequence_key key) const override {
    return pages_.tokens_held(key);
  }
  std::uint64_t tokens_free() const override { return pages_.tokens_free(); }
  std::uint64_t tokens_total() const override { return pages_.tokens_total(); }
  std::uint32_t page_tokens() const override { return pages_.page_tokens(); }
  std::size_t sequences() const override { return pages_.sequences(); }
  void check() const override { pages_.check(); }

  memory& of(engine::sequence_key key) { return memories_.at(key); }

private:
  engine::counted_ledger pages_;
  std::map<engine::sequence_key, memory> memories_;
};

} // namespace di::test::toy
