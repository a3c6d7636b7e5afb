// SPDX-License-Identifier: Apache-2.0
// Decisions of RANK: which sequences run, what the next step computes, which tokens are committed
// and when a choice ends. Owns no device and no KV; the shell (actors/rank.hpp) does.
#pragma once

#include "engine/core/choice_sampler.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/rank.hpp"
#include "messaging/proto/scheduler.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace di::engine {

struct rank_options {
  rank_id rank;
  incarnation life{};
  address journal = "/control/journal";
  address scheduler = "/control/scheduler";
  std::uint32_t vocab = 0;                ///< [tokens]
  std::uint32_t context_tokens = 0;       ///< [tokens] prompt and output together
  std::uint32_t step_rows = 256;          ///< [rows] of one step at most
  std::uint32_t prefill_rows_min = 64;    ///< [rows] kept for prompts however many sequences decode
  std::uint32_t prefill_rows_max = 0;     ///< [rows] of one prompt in one step; 0: step_rows
  std::uint32_t running_max = 64;         ///< [sequences] with KV
  std::uint32_t waiting_max = 4096;       ///< [sequences] queued; more are refused
  std::uint32_t unacknowledged_max = 256; ///< [tokens] per choice; then it pauses
  std::uint64_t kv_tokens = 0;            ///< [tokens] of the page pool
  std::uint32_t page_tokens = 128;        ///< [tokens] granularity of kv_tokens
  std::uint32_t settled_kept = 8192;      ///< attempts remembered after their end
  duration resend_after = std::chrono::milliseconds{250};
};

/// One sequence = one choice of one attempt; never reused within an incarnation.
using sequence_key = std::uint64_t;

/// Rows of one sequence in a step.
struct planned_segment {
  sequence_key sequence = 0;
  std::uint32_t first_position = 0;
  std::vector<token_id> tokens; ///< [rows]
  bool draws = false;           ///< the last row's logits are wanted
};

struct step_plan {
  epoch step{};                          ///< from 1
  std::vector<planned_segment> segments; ///< decode rows first
  std::uint32_t rows = 0;
  std::uint32_t prefill_rows = 0;
};

/// States of a sequence:
///
// clang-format off
///   waiting --room-->                                   running
///   running --too much unacknowledged-->                (pauses) --acknowledged--> running
///   running --end token, length, error, withdrawn-->    ended
///   waiting --withdrawn, resumed behind its end-->      ended
///   ended   --acknowledged, withdrawn-->                gone
// clang-format on
///
/// A sequence that is withdrawn while a step computes it is dropped when the step ends. KV for
/// prompt and max_tokens is set aside when a sequence starts to run, so it never runs out midway.
/// Owned by the RANK shell; used on its thread only.
class rank_core {
public:
  rank_core(rank_options options, sampler_factory samplers);
  ~rank_core();

  result<void> on(const proto::assign_request& m, instant now, outbox& out);
  result<void> on(const proto::withdraw_request& m, instant now, outbox& out);
  result<void> on(const proto::commit_accepted& m, instant now, outbox& out);
  result<void> on(const proto::commit_refused& m, instant now, outbox& out);
  result<void> on(const proto::drain_rank& m, instant now, outbox& out);
  result<void> on_due(timer which, instant now, outbox& out);
  /// A view took effect.
  void install_view(epoch view, outbox& out);

  /// Whether plan() would have rows.
  bool has_work() const;
  /// The next step; empty segments if there is nothing to do. @pre no step is out
  step_plan plan(instant now);
  /// The step's outcome. @param logits one per segment of the plan: [vocab] if it draws, else empty
  /// @return drawn tokens in plan order
  std::vector<token_id> finish_step(std::span<const std::span<const float>> logits, instant now,
                                    outbox& out);
  /// The step could not be computed: its sequences end with this error.
  void fail_step(const error& why, instant now, outbox& out);
  /// Sequences whose state the shell can let go, each told once.
  std::vector<sequence_key> take_dropped();

  bool step_out() const noexcept { return !in_step_.empty(); }
  std::uint32_t running() const noexcept { return static_cast<std::uint32_t>(running_.size()); }
  std::uint32_t waiting() const noexcept { return static_cast<std::uint32_t>(waiting_.size()); }
  std::size_t requests() const noexcept { return requests_.size(); } ///< with open choices
  std::uint64_t steps() const noexcept { return step_; }
  std::uint64_t rows() const noexcept { return rows_; }
  epoch view() const noexcept { return view_; }
  std::uint32_t unacknowledged() const;
  /// Total tokens that a sequence may reach, for its page reservation. @pre known key
  std::uint32_t tokens_max(sequence_key key) const;
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1 };
  enum class phase : std::uint8_t { waiting, running, ended };
  struct request;
  struct sequence;

  result<void> admissible(const proto::assign_request& m) const;
  result<void> take(const proto::assign_request& m, instant now, outbox& out);
  void admit_waiting();
  std::uint64_t kv_need(const sequence& s) const;
  bool is_paused(const sequence& s) const;
  void add_decode_rows(step_plan& plan, std::uint32_t cap, instant now);
  void add_prefill_rows(step_plan& plan, instant now);
  void add_rows(step_plan& plan, sequence& s, std::uint32_t rows, instant now);
  std::optional<token_id> advance(sequence& s, std::span<const float> logits, instant now);
  void end(sequence& s, proto::choice_end how, instant now);
  void commit(sequence& s, std::uint32_t from, instant now, outbox& out);
  void drop_attempt(request_id id, instant now, outbox& out);
  void remove(sequence_key key, outbox& out);
  void settle(const request& r, outbox& out);
  void report(outbox& out);
  void arm_resend(outbox& out);
  sequence* find(request_id id, std::uint32_t choice, std::uint32_t attempt);

  rank_options options_;
  sampler_factory samplers_;
  std::unordered_map<sequence_key, std::unique_ptr<sequence>> sequences_;
  std::map<request_id, std::unique_ptr<request>> requests_;
  std::deque<sequence_key> waiting_;
  std::vector<sequence_key> running_; // in order of admission
  std::vector<sequence_key> in_step_; // of the step that is out, in plan order
  std::vector<sequence_key> dropped_;
  std::map<request_id, std::uint32_t> settled_; // last settled attempt
  std::deque<request_id> settled_order_;
  std::uint64_t next_key_ = 1, step_ = 0, rows_ = 0, report_ = 0;
  std::uint64_t kv_used_ = 0;   // [tokens] set aside
  std::size_t decode_turn_ = 0; // where the next step starts taking decode rows
  epoch view_{};
  bool draining_ = false, resend_armed_ = false;
  proto::rank_load reported_;
};

} // namespace di::engine
