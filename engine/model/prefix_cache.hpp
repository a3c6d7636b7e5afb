// SPDX-License-Identifier: Apache-2.0
// How the sequences of one rank use the prefix index: starts them behind a hit in every mode, and
// hands their finished pages and windows to the index as they grow.
#pragma once

#include "engine/kv/prefix_index.hpp"
#include "engine/model/prefill_plan.hpp"
#include "engine/model/sequence_state.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace di::engine {

/// What the cache remembers of one sequence. Plain data, kept beside the sequence; a fork gets a
/// copy.
struct prefix_session {
  prefill_request request;
  std::string salt;
  std::int64_t hit = 0;     ///< [tokens] of pages that it did not have to make
  std::int64_t bounded = 0; ///< H, to be recorded: a resumed attempt must name it; 0: none
  /// The exact pages below H are being made again; when the sequence reaches H, advanced() lets its
  /// length fall back to rerun the window under the floors.
  bool rebuilding = false;
  std::int64_t first_row = 0; ///< position of the first row that it ran
  std::int64_t branch = 0;    ///< [tokens] end of a hit without snapshot: one is due there, as a
                              ///< beginning that two prompts share will be shared again; 0: none
  std::int64_t boundary = 0;  ///< [tokens] where a snapshot of the prompt is due; 0: none
  prefix_cursor cursor;
  std::int64_t decode_snapshot = 0; ///< [tokens] last snapshot taken behind the prompt; 0: none
};

/// Owned by RANK, used on its thread only.
///
/// A sequence's way: start(), then steps whose rows of it end at or before chunk_end(), after each
/// step advanced(). Drop the sequence and start a new one to resume it: the bits are the same.
class prefix_cache {
public:
  /// @param pool  outlives the cache
  prefix_cache(page_pool& pool, const prefill_rules& rules, prefix_index_options options);

  /// Starts an empty sequence: sets its floors and adopts what is known. Its length() is the first
  /// position to run then.
  /// @param tokens    prompt, then what was emitted already (a resumed attempt)
  /// @param recorded  H of an earlier attempt of the same request (0: it had no bounded hit); not
  ///                  given: the first attempt
  /// @param windows   null, or windows that another rank computed of these tokens under the floors
  ///                  of the same request; used if they lie behind all else that is known and
  ///                  within the hit
  /// @errors          ec::bad_argument
  result<prefix_session> start(sequence_state& sequence, std::span<const token_id> tokens,
                               const prefill_request& request, std::string_view salt = {},
                               std::optional<std::int64_t> recorded = {},
                               const window_snapshot* windows = nullptr);
  /// Under which key the session's pages are known.
  static prefix_key key_of(const prefix_session& session) {
    return {session.salt, session.rebuilding ? 0 : session.bounded};
  }

  /// Whether a request may name H as its recorded hit. @errors ec::bad_argument
  result<void> recordable(const prefill_request& request, std::int64_t recorded) const;

  /// A step's rows of the sequence from `position` on end at or before it.
  std::int64_t chunk_end(const prefix_session& session, std::int64_t position) const;

  /// After a step: publishes full pages of settled tokens, takes a snapshot where one is worth it.
  /// @param settled  [tokens] <= sequence.length() that nothing takes back any more
  /// @errors         ec::internal
  /// @pre            no step computes the sequence
  result<void> advanced(prefix_session& session, sequence_state& sequence, std::int64_t settled);

  /// The sequence ends: as advanced(), but nothing is run again.
  /// @param computing  a step has rows of it: its windows are in motion, only pages are taken
  void ending(prefix_session& session, const sequence_state& sequence, std::int64_t settled,
              bool computing);

  prefix_index& index() noexcept { return index_; }
  const prefix_index& index() const noexcept { return index_; }
  const prefill_rules& rules() const noexcept { return rules_; }

private:
  result<std::int64_t> bounded_hit(std::span<const token_id> tokens, const prefix_session& session,
                                   std::optional<std::int64_t> recorded) const;
  result<void> begin(prefix_session& session, sequence_state& sequence,
                     std::span<const token_id> tokens, const prefix_match& match,
                     std::int64_t decoder, const window_snapshot* windows);
  result<void> finish_rebuild(prefix_session& session, sequence_state& sequence);
  bool caches(const prefix_session& session, const sequence_state& sequence) const;
  void publish(prefix_session& session, const sequence_state& sequence, std::int64_t settled);
  void take_snapshot(prefix_session& session, const sequence_state& sequence, std::int64_t settled);

  prefill_rules rules_;
  prefix_index index_;
};

} // namespace di::engine
