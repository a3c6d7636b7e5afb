// SPDX-License-Identifier: Apache-2.0
// Messages of RANK (0x03): work that it gets, facts about its steps.
#pragma once

#include "messaging/proto/sampling.hpp"

namespace di::proto {

/// A span of time in microseconds.
using micros = strong_id<struct micros_tag, std::uint64_t>;

struct assign_request {
  static constexpr wire_id wire{0x0301};
  static constexpr std::string_view doc =
      "Command of SCHEDULER: serve this attempt; a repeated one changes nothing. Answered by "
      "request_taken, request_settled (it was served before) or assignment_refused. Overload: "
      "bounded queue, then assignment_refused.";
  request_spec spec;
  std::uint32_t attempt = 0;             ///< from 1
  epoch view{};                          ///< view that SCHEDULER works under
  incarnation life{};                    ///< of the rank it is meant for; another life refuses
  std::vector<choice_progress> progress; ///< tokens to replay; empty for a first attempt
  DI_FIELDS(assign_request, m.spec, m.attempt, m.view, m.life, m.progress)
};

struct withdraw_request {
  static constexpr wire_id wire{0x0302};
  static constexpr std::string_view doc =
      "Command of SCHEDULER: stop serving this request, answer request_settled. Overload: one per "
      "request.";
  request_id request;
  std::uint32_t attempt = 0; ///< this and older ones
  DI_FIELDS(withdraw_request, m.request, m.attempt)
};

struct step_finished {
  static constexpr wire_id wire{0x0303};
  static constexpr std::string_view doc =
      "Fact of RANK: a step has ended; for listeners that measure. Overload: one per step, dropped "
      "if nobody listens.";
  epoch step{};                 ///< number of the step, from 1, per incarnation
  std::vector<token_id> tokens; ///< [sampled rows] next token per sequence, in plan order
  micros device_time{};         ///< [us] in kernels, without waits for expert answers
  ec outcome = ec::ok;          ///< ok, or why `tokens` is empty
  rank_id rank;
  std::uint32_t rows = 0;         ///< [rows] computed
  std::uint32_t prefill_rows = 0; ///< of them, prompt rows
  micros wall_time{};             ///< [us] from planning to sampling
  std::uint64_t remote_rows = 0;  ///< expert rows computed elsewhere
  std::uint64_t local_rows = 0;   ///< expert rows of the own shard
  DI_FIELDS(step_finished, m.step, m.tokens, m.device_time, m.outcome, m.rank, m.rows,
            m.prefill_rows, m.wall_time, m.remote_rows, m.local_rows)
};

struct drain_rank {
  static constexpr wire_id wire{0x0304};
  static constexpr std::string_view doc =
      "Command: take no new requests, finish those at hand. Overload: none.";
  DI_FIELDS(drain_rank)
};

struct get_rank {
  static constexpr wire_id wire{0x0305};
  static constexpr std::string_view doc = "Question: what is the rank doing. Overload: none.";
  DI_FIELDS(get_rank)
};

/// Drafts at one position of a block, since the rank began.
struct draft_quality {
  std::uint64_t verified = 0; ///< whose rows were computed
  std::uint64_t accepted = 0; ///< of them, drawn by the target
  std::uint64_t outcomes = 0; ///< verified, and all before accepted: what the rest is about
  double said = 0, was = 0;   ///< mean corrected confidence, and share that was accepted
  double ece_raw = 0;         ///< expected calibration error of the draft layers' confidences
  double ece = 0;             ///< of the corrected ones
  double brier = 0;           ///< their mean squared error
  double auc = 0;             ///< how well they order drafts; 0.5: not at all
  DI_FIELDS(draft_quality, m.verified, m.accepted, m.outcomes, m.said, m.was, m.ece_raw, m.ece,
            m.brier, m.auc)
};

struct rank_state {
  static constexpr wire_id wire{0x0306};
  static constexpr std::string_view doc = "Answer to get_rank.";
  rank_id rank;
  incarnation life{};
  epoch view{};
  epoch placement{}; ///< placement that expert calls follow
  std::uint64_t steps = 0;
  std::uint64_t rows = 0;            ///< [rows] computed
  std::uint32_t running = 0;         ///< sequences
  std::uint32_t waiting = 0;         ///< sequences
  std::uint32_t unacknowledged = 0;  ///< [tokens] that JOURNAL has not confirmed
  std::uint32_t calls_open = 0;      ///< expert calls without an answer
  std::string phase;                 ///< idle, drafts, experts
  std::string cost;                  ///< the fitted cost of a step, e.g. t = 1.2 ms + ...
  std::string drafting;              ///< what the planner of drafts has seen and done
  std::vector<draft_quality> drafts; ///< [position]; empty: no draft layers
  DI_FIELDS(rank_state, m.rank, m.life, m.view, m.placement, m.steps, m.rows, m.running, m.waiting,
            m.unacknowledged, m.calls_open, m.phase, m.cost, m.drafting, m.drafts)
};

using rank_messages =
    type_list<assign_request, withdraw_request, step_finished, drain_rank, get_rank, rank_state>;

} // namespace di::proto
