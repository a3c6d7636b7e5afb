// SPDX-License-Identifier: Apache-2.0
// The KV of a rank's sequences as RANK's core sees it: room that is taken as sequences grow and
// given back when they shrink, end or are preempted. What lies in the KV is the shell's business.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

namespace di::engine {

/// One sequence = one choice of one attempt; never reused within an incarnation.
using sequence_key = std::uint64_t;

/// What is known of a sequence when its KV begins.
struct kv_opening {
  const proto::request_spec* spec = nullptr;
  std::span<const token_id> tokens; ///< prompt, then what was drawn already
  std::uint32_t prompt = 0;         ///< [tokens] of them
  std::uint32_t attempt = 0, choice = 0;
};

/// What a sequence did not have to make.
struct kv_prefix {
  std::uint32_t hit = 0;     ///< [tokens] of cached pages that it began with
  std::uint32_t bounded = 0; ///< H of a bounded hit, to be recorded
};

/// Room is counted in pages of `page_tokens` tokens. Owned by the RANK shell or by rank_core, used
/// on RANK's thread only.
///
/// A sequence is unknown, or open with a length (rows computed) and room (pages) for at least that.
class kv_ledger {
public:
  virtual ~kv_ledger() = default;

  /// Whether sequences of a request could begin as it says (a recorded bounded hit).
  /// @errors ec::bad_argument: they never could
  virtual result<void> admits(const proto::request_spec& spec) const {
    (void)spec;
    return {};
  }
  /// Begins a sequence. @pre unknown key, admits() its request
  /// @return [rows] that it has already, from a cached prefix; below tokens.size()
  virtual std::uint32_t open(sequence_key key, const kv_opening& what) = 0;
  /// Takes room for positions [0, tokens); cached prefixes that nobody uses make way.
  /// @return false: there is no room, nothing has changed
  virtual bool reserve(sequence_key key, std::uint32_t tokens) = 0;
  /// The sequence has exactly `tokens` rows: those behind were rejected, their room is free again.
  virtual void truncate(sequence_key key, std::uint32_t tokens) = 0;
  /// Forgets a sequence and frees its room. @pre open, and no step computes it
  virtual void close(sequence_key key) = 0;
  /// After a step: its rows below `settled` are those of tokens that nothing takes back, and may be
  /// cached. @pre no step computes it
  /// @return [rows] that it has now; fewer if some must be run again
  virtual std::uint32_t advanced(sequence_key key, std::uint32_t settled, std::uint32_t rows) {
    (void)key, (void)settled;
    return rows;
  }
  /// It ends. As advanced(), but nothing is run again.
  /// @param computing  a step or draft pass that is out has rows of it: only what those do not
  ///                   touch may be cached
  virtual void ending(sequence_key, std::uint32_t settled, bool computing) {
    (void)settled, (void)computing;
  }
  /// A step's rows from `position` on should end there at the latest.
  virtual std::uint32_t chunk_end(sequence_key, std::uint32_t) const { return ~0U; }
  /// Begins `to` as a copy of the first `tokens` rows of `from`.
  /// @pre `to` is open and empty, no step computes either
  /// @return false: `from` is too far ahead, or cannot be copied; nothing has changed
  virtual bool fork(sequence_key from, sequence_key to, std::uint32_t tokens) {
    (void)from, (void)to, (void)tokens;
    return false;
  }
  virtual kv_prefix prefix(sequence_key) const { return {}; }
  /// Nothing of this attempt, or an older one, begins any more.
  virtual void over(request_id, std::uint32_t attempt) { (void)attempt; }

  virtual std::uint64_t tokens_held(sequence_key key) const = 0; ///< [tokens] of its room
  virtual std::uint64_t tokens_free() const = 0; ///< [tokens] free, or cached and unused
  virtual std::uint64_t tokens_total() const = 0;
  virtual std::uint32_t page_tokens() const = 0;
  virtual std::size_t sequences() const = 0; ///< open ones
  /// Every page is free, held or cached, once.
  virtual void check() const = 0;
};

/// Counts pages and holds nothing: for RANK without a KV of its own, and a base for toy ones.
class counted_ledger : public kv_ledger {
public:
  counted_ledger(std::uint64_t kv_tokens, std::uint32_t page_tokens);

  std::uint32_t open(sequence_key key, const kv_opening& what) override;
  bool reserve(sequence_key key, std::uint32_t tokens) override;
  void truncate(sequence_key key, std::uint32_t tokens) override;
  void close(sequence_key key) override;
  std::uint64_t tokens_held(sequence_key key) const override;
  std::uint64_t tokens_free() const override { return free_ * page_tokens_; }
  std::uint64_t tokens_total() const override { return pages_ * page_tokens_; }
  std::uint32_t page_tokens() const override { return page_tokens_; }
  std::size_t sequences() const override { return pages_of_.size(); }
  void check() const override;

private:
  std::uint64_t pages_for(std::uint32_t tokens) const noexcept {
    return (std::uint64_t{tokens} + page_tokens_ - 1) / page_tokens_;
  }

  std::uint32_t page_tokens_;
  std::uint64_t pages_, free_;
  std::unordered_map<sequence_key, std::uint64_t> pages_of_;
};

} // namespace di::engine
