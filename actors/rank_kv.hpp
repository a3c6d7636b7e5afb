// SPDX-License-Identifier: Apache-2.0
// The real kv_ledger: sequence states of the model over the rank's page pool, and the prefix cache
// between them.
#pragma once

#include "actors/kv_transfer.hpp"
#include "engine/core/kv_ledger.hpp"
#include "engine/kv/page_pool.hpp"
#include "engine/model/kv_layout.hpp"
#include "engine/model/prefix_cache.hpp"
#include "engine/model/sequence_state.hpp"

#include <memory>
#include <unordered_map>

namespace di::actors {

/// Owned by the RANK shell, used on its thread only.
class rank_kv final : public engine::kv_ledger {
public:
  /// @param layout, pool  outlive it
  rank_kv(const engine::kv_layout& layout, engine::page_pool& pool,
          const engine::prefill_rules& rules, engine::prefix_index_options prefixes,
          kv_transfer_options transfer = {})
      : layout_{layout},
        pool_{pool},
        cache_{pool, rules, std::move(prefixes)},
        transfer_{layout, pool, cache_, transfer} {}

  result<void> admits(const proto::request_spec& spec) const override;
  std::uint32_t open(engine::sequence_key key, const engine::kv_opening& what) override;
  bool reserve(engine::sequence_key key, std::uint32_t tokens) override;
  void truncate(engine::sequence_key key, std::uint32_t tokens) override;
  void close(engine::sequence_key key) override;
  std::uint32_t advanced(engine::sequence_key key, std::uint32_t settled,
                         std::uint32_t rows) override;
  void ending(engine::sequence_key key, std::uint32_t settled, bool computing) override;
  std::uint32_t chunk_end(engine::sequence_key key, std::uint32_t position) const override;
  bool fork(engine::sequence_key from, engine::sequence_key to, std::uint32_t tokens) override;
  engine::kv_prefix prefix(engine::sequence_key key) const override;
  void over(request_id request, std::uint32_t attempt) override {
    transfer_.forget_until(request, attempt);
  }
  std::uint64_t tokens_held(engine::sequence_key key) const override;
  std::uint64_t tokens_free() const override;
  std::uint64_t tokens_total() const override { return pool_.pages() * page_tokens64(); }
  std::uint32_t page_tokens() const override {
    return static_cast<std::uint32_t>(engine::page_tokens);
  }
  std::size_t sequences() const override { return states_.size(); }
  void check() const override;

  /// @pre open
  engine::sequence_state& state(engine::sequence_key key) { return *states_.at(key).state; }
  const engine::prefix_index& index() const noexcept { return cache_.index(); }
  kv_transfer& transfer() noexcept { return transfer_; }

private:
  struct entry {
    std::unique_ptr<engine::sequence_state> state;
    engine::prefix_session session;
  };
  static std::uint64_t page_tokens64() { return static_cast<std::uint64_t>(engine::page_tokens); }

  const engine::kv_layout& layout_;
  engine::page_pool& pool_;
  std::unordered_map<engine::sequence_key, entry> states_;
  engine::prefix_cache cache_;
  kv_transfer transfer_;
};

} // namespace di::actors
