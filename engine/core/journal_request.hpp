// SPDX-License-Identifier: Apache-2.0
// What journal_core keeps of a request; private to its source files.
#pragma once

#include "engine/core/journal_core.hpp"

namespace di::engine {

struct journal_core::choice {
  std::vector<token_id> tokens;
  std::vector<proto::position_logprobs> logprobs; ///< as tokens, or empty
  proto::choice_end end;
  proto::choice_timings timings;
  std::uint32_t shown = 0; ///< output index that GATEWAY has acknowledged up to
  std::uint32_t sent = 0;  ///< output index that was released up to at least once
  rank_id rank;            ///< that committed last
  bool end_shown = false;
  bool cut = false;           ///< ended by JOURNAL, not by its rank
  std::uint64_t position = 0; ///< of its last record
  std::uint32_t settled = 0;  ///< output index that is written up to
  bool end_settled = false;
  std::optional<instant> gap_since; ///< tokens before those that come are missing
  instant released;                 ///< last time that something was sent to GATEWAY
  duration wait{};                  ///< until it is sent again

  bool ended() const noexcept { return end.reason != proto::finish_reason::none; }
  bool all_shown() const noexcept { return end_shown && shown == next(); }
  std::uint32_t next() const noexcept { return static_cast<std::uint32_t>(tokens.size()); }
};

struct journal_core::request {
  proto::request_spec spec;
  std::uint32_t attempt = 1;
  std::vector<choice> choices;
  std::optional<life_of_rank> placed;    ///< who owns the attempt
  std::optional<life_of_rank> prefix_of; ///< whose bounded prefix was recorded in this life
  bool admitted = false;
  bool closed = false;
  bool keep = false;          ///< until answer_delivered
  bool delivered = false;     ///< answer_delivered came
  bool from_disk = false;     ///< of an earlier life, and no GATEWAY of this one has asked for it
  std::uint64_t position = 0; ///< of its last record that is not a choice's
  std::uint32_t attempt_recorded = 1;
  std::optional<life_of_rank> placed_recorded;
  std::uint64_t bytes = 0;                    ///< [bytes] of its records, about
  std::string note, dedup, dedup_digest;      ///< of open_request, as the next two
  std::uint64_t keep_ms = 0, detached_ms = 0; ///< [ms]
  std::uint64_t opened_ms = 0, closed_ms = 0; ///< [ms] of elapsed_ms()
  bool attended = false;  ///< its gateway says when it is another life, and attaches again
  bool detached = false;  ///< nobody gets its tokens
  bool lingers = false;   ///< detached, and a timer says when it has been for too long
  bool stored = false;    ///< closed, and kept for keep_ms
  incarnation follower{}; ///< life of spec.gateway; 0: not known
  bool cached_known = false;
  std::uint32_t cached_tokens = 0; ///< [tokens] if cached_known
  instant asked;                   ///< last admit_request
  duration wait{};                 ///< until the next
  instant opened;

  bool came_to_nothing() const; ///< all its choices ended with errors, or were cancelled
};

} // namespace di::engine
