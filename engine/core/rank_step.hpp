// SPDX-License-Identifier: Apache-2.0
// What RANK's core and its shell say to each other about a step.
#pragma once

#include "engine/core/kv_ledger.hpp"
#include "engine/core/speculation_choice.hpp"
#include "messaging/base/env.hpp"
#include "messaging/base/ids.hpp"

#include <cstdint>
#include <vector>

namespace di::engine {

struct rank_options {
  rank_id rank;
  incarnation life{};
  address journal = "/control/journal";
  address scheduler = "/control/scheduler";
  address kv_agent;                 ///< hears when an attempt is over; empty: nobody keeps its KV
  std::uint32_t vocab = 0;          ///< [tokens]
  std::uint32_t context_tokens = 0; ///< [tokens] prompt and output together
  std::uint32_t step_rows = 256;    ///< [rows] of one step at most
  std::uint32_t prefill_rows_min = 64;    ///< [rows] kept for prompts however many sequences decode
  std::uint32_t prefill_rows_max = 0;     ///< [rows] of one prompt in one step; 0: step_rows
  std::uint32_t running_max = 64;         ///< [sequences] with KV
  std::uint32_t waiting_max = 4096;       ///< [sequences] queued; more are refused
  std::uint32_t unacknowledged_max = 256; ///< [tokens] per choice; then it pauses
  std::uint64_t kv_tokens = 0;            ///< [tokens] of the page pool
  std::uint32_t page_tokens = 128;        ///< [tokens] granularity of kv_tokens
  std::uint32_t settled_kept = 8192;      ///< attempts remembered after their end
  duration resend_after = std::chrono::milliseconds{250};
  /// 1: a step is settled before the next begins. 2: the next one is launched first, and settling
  /// and planning overlap it. Tokens do not depend on it.
  std::uint32_t steps_in_flight = 1;
  double step_ms =
      0; ///< [ms] prompt chunks are cut so that a step takes no longer; 0: by rows only
  speculation_choice speculation; ///< of requests that do not choose themselves
  std::uint32_t draft_block = 0;  ///< [drafts] of one draft pass; 0: there are no draft layers
};

/// Rows that sequences did not have to compute.
struct prefix_counts {
  std::uint64_t hits = 0;         ///< sequences that began behind a cached prefix
  std::uint64_t tokens = 0;       ///< [tokens] of these prefixes
  std::uint64_t exact_tokens = 0; ///< [tokens] of them with the bits of a cold run
  std::uint64_t rows = 0;         ///< [rows] that need not be run again for windows
  std::uint64_t forks = 0;        ///< choices that began behind another one's prompt
};

/// A sequence to draft for.
struct draft_wish {
  sequence_key sequence = 0;
  token_id next = 0; ///< its last token, not computed yet
};

/// Rows of one sequence in a step.
struct planned_segment {
  sequence_key sequence = 0;
  std::uint32_t first_position = 0;
  std::vector<token_id> tokens; ///< [rows]; the last `drafts` are guesses
  std::uint32_t drafts = 0;
  bool draws = false; ///< logits wanted: of the last 1 + drafts rows
};

/// A launched step: the one descriptor that the runner and the core both go by.
struct step_plan {
  epoch step{};                          ///< from 1
  std::vector<planned_segment> segments; ///< decode rows first
  std::uint32_t rows = 0;
  std::uint32_t prefill_rows = 0;
  std::uint32_t draft_rows = 0;
};

/// What became of a segment.
struct drawn_segment {
  sequence_key sequence = 0; ///< 0: it is gone, or lost its rows
  std::uint32_t kept = 0;    ///< [rows] that stay in the KV
  std::uint32_t drawn = 0;   ///< [tokens]
};

} // namespace di::engine
