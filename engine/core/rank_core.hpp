// SPDX-License-Identifier: Apache-2.0
// Decisions of RANK: which sequences run, what the next step computes, which tokens are committed
// and when a choice ends. Owns no device and no KV; the shell (actors/rank.hpp) does.
#pragma once

#include "engine/core/choice_sampler.hpp"
#include "engine/core/chunk_planner.hpp"
#include "engine/core/holder_speeds.hpp"
#include "engine/core/rank_step.hpp"
#include "engine/core/rank_tuning.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/rank.hpp"
#include "messaging/proto/scheduler.hpp"

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace di::engine {

/// States of a sequence:
///
// clang-format off
///   waiting   --room for its prompt-->                     running
///   running   --too much unacknowledged-->                 (pauses) --acknowledged--> running
///   running   --no page left, and it is the newest-->      preempted
///   preempted --room for all its tokens-->                 running, from its first row on
///   running   --end token, length, error, withdrawn-->     ended
///   waiting, preempted --withdrawn, resumed behind its end--> ended
///   ended     --acknowledged, withdrawn-->                 gone
// clang-format on
///
/// One step, at either depth (rank_options::steps_in_flight):
///
///   plan()    who runs and how many rows at most; may be made while the step before is out
///   launch()  nothing is out: rows and positions as they are now, pages taken, the newest
///             preempted where they do not suffice
///   draw()    logits become tokens; rows of wrong guesses are given back
///   keep()    rows that stay may be cached and copied
///   finish()  end checks, commits, report. Depth 2: after the next launch()
///
/// What was planned for a sequence counts only for the life (generation) it was planned in. A
/// sequence that ends while it is in a step loses that step's rows; its KV is closed when the step
/// ends. The oldest sequence never waits for a newer one: it is admitted first, preempted last.
/// Those of later attempts, whose clients have waited already, count as older than all first ones.
/// Owned by the RANK shell; used on its thread only.
class rank_core {
public:
  /// @param kv  outlives the core; null: pages of options.kv_tokens are counted
  rank_core(rank_options options, sampler_factory samplers, kv_ledger* kv = nullptr);
  ~rank_core();

  result<void> on(const proto::assign_request& m, instant now, outbox& out);
  result<void> on(const proto::withdraw_request& m, instant now, outbox& out);
  result<void> on(const proto::commit_accepted& m, instant now, outbox& out);
  result<void> on(const proto::commit_refused& m, instant now, outbox& out);
  result<void> on(const proto::drain_rank& m, instant now, outbox& out);
  result<void> on_due(timer which, instant now, outbox& out);
  /// A view took effect.
  void install_view(epoch view, outbox& out);

  /// Whether launch() may have rows.
  bool has_work() const;
  /// Chooses the next step's rows from what is known now; replaces an earlier choice.
  void plan(instant now);
  /// Whether plan() was called and nothing that it should know has come since.
  bool planned() const noexcept { return plan_ready_; }
  /// Begins the planned step (plans first if need be). Without segments there is nothing to do and
  /// no step is out. @pre no step is out
  const step_plan& launch(instant now, outbox& out);
  /// The step that is out, or was last.
  const step_plan& launched() const noexcept { return launched_; }
  /// The step is computed; draws its tokens. @pre a step is out, finish() was called for the last
  /// @param logits  one per segment: [1 + drafts, vocab] if it draws, else empty
  /// @return one per segment, valid until the next launch()
  std::span<const drawn_segment> draw(std::span<const std::span<const float>> logits, instant now);
  /// Hands the drawn rows to the KV: pages may be cached, windows copied, choices forked. Call it
  /// once the draft layers were fed, as they belong to the windows; whatever comes next does it
  /// too.
  void keep();
  /// Sequences of the next step that would have drafts verified; plans it if need be. A draft pass
  /// for them may follow: their KV stays until launch() or end_drafts(). @pre no step is out
  std::span<const draft_wish> draft_wishes(instant now);
  /// Draws the draft behind `before`. @param logits [vocab] of the draft layers
  result<token_id> draw_draft(sequence_key key, std::span<const float> logits,
                              std::span<const token_id> before);
  /// Drafts behind the last drawn token, for the next launch() only.
  /// @param confidences  [drafts] logits; may be empty if drafts were chosen without
  void offer_drafts(sequence_key key, std::span<const token_id> drafts,
                    std::span<const float> confidences);
  /// The draft pass is given up.
  void end_drafts();
  /// Whose sequence it is; none if it is gone.
  request_id request_of(sequence_key key) const;
  /// Whether the attempt, or a newer one of the request, is served here or was.
  bool knows(request_id id, std::uint32_t attempt) const;
  /// Whether any running sequence, or this one, feeds draft layers.
  bool wants_taps() const;
  bool wants_taps(sequence_key key) const;
  /// Times of dummy steps and draft passes, measured before the first request.
  void profile_step(std::uint32_t rows, double ms) { tuning_.planner.profile_step(rows, ms); }
  void profile_draft(std::uint32_t sequences, double ms) {
    tuning_.planner.profile_draft(sequences, ms);
  }
  /// Measured times of the step that was drawn last, from its launch until its rows were fed to the
  /// draft layers, and of the last draft pass.
  void observe_step(double ms);
  void observe_draft_pass(std::uint32_t sequences, double ms);
  const rank_tuning& tuning() const noexcept { return tuning_; }
  /// Other ranks that this one finds slow; part of its reports.
  void set_slow(std::span<const slow_holder> slow, outbox& out);
  /// Settles the drawn step. Nothing if there is none. @return its drawn tokens, in plan order
  std::vector<token_id> finish(instant now, outbox& out);
  bool unfinished() const noexcept { return !unfinished_.empty(); }
  /// The step that is out could not be computed: its sequences end with this error.
  void fail_step(const error& why, instant now, outbox& out);

  bool step_out() const noexcept { return out_; }
  std::uint32_t running() const noexcept { return static_cast<std::uint32_t>(running_.size()); }
  std::uint32_t waiting() const noexcept { return static_cast<std::uint32_t>(waiting_.size()); }
  std::size_t requests() const noexcept { return requests_.size(); } ///< with open choices
  std::uint64_t steps() const noexcept { return step_; }
  std::uint64_t rows() const noexcept { return rows_; }
  std::uint64_t preemptions() const noexcept { return preemptions_; }
  epoch view() const noexcept { return view_; }
  std::uint32_t unacknowledged() const;
  const kv_ledger& kv() const noexcept { return *kv_; }
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1 };
  enum class phase : std::uint8_t { waiting, preempted, running, ended };
  struct request;
  struct sequence;
  /// Rows that the next step shall have of a sequence.
  struct item {
    sequence_key key = 0;
    std::uint32_t generation = 0;
    std::uint32_t rows = 0; ///< at most; without drafts
    std::uint32_t drafts = 0;
    bool prefill = false;
  };

  // rank_core.cpp: requests
  result<void> admissible(const proto::assign_request& m) const;
  result<void> take(const proto::assign_request& m, instant now, outbox& out);
  result<std::unique_ptr<sequence>> make_sequence(const proto::assign_request& m, request& owner,
                                                  std::uint32_t choice, instant now) const;
  void end(sequence& s, proto::choice_end how, instant now);
  void drop_attempt(request_id id, instant now, outbox& out);
  void remove(sequence_key key, outbox& out);
  void settle(const request& r, outbox& out);
  void release_copies(request_id id, std::uint32_t attempt, outbox& out);
  sequence* find(request_id id, std::uint32_t choice, std::uint32_t attempt);
  // rank_commit.cpp: what is told
  void settle_drawn(sequence& s, instant now, std::vector<token_id>& drawn);
  void commit(sequence& s, std::uint32_t from, instant now, outbox& out);
  void count_told(outbox& out);
  void report(outbox& out);
  void arm_resend(outbox& out);
  // rank_plan.cpp: who runs
  bool is_paused(const sequence& s) const;
  bool has_room(const sequence& s, std::uint64_t promised) const;
  std::uint64_t promised() const;
  void admit_waiting(instant now);
  void open_kv(sequence& s);
  bool is_parked(const sequence& s) const;
  void unpark(sequence& leader);
  void plan_decode_rows(std::uint32_t cap);
  void plan_prefill_rows();
  // rank_launch.cpp: what runs, and in which pages
  sequence* live(const item& i);
  void take_pages(item& i, instant now, outbox& out);
  void preempt(sequence& s, outbox& out);
  void enqueue(sequence& s);
  void add_segment(const item& i, sequence& s, instant now);
  // rank_draw.cpp: what came out
  drawn_segment draw_segment(const planned_segment& segment, std::span<const float> logits,
                             instant now);
  void keep_rows(sequence& s);
  void close_ended();
  // rank_draft.cpp: guesses
  speculation_choice speculation_of(const proto::request_spec& spec) const;
  std::uint32_t drafts_room(const sequence& s) const;
  void choose_drafts();
  calibration& confidences_of(const sequence& s);
  void learn_drafts(sequence& s, std::uint32_t verified, std::uint32_t accepted);

  rank_options options_;
  sampler_factory samplers_;
  std::unique_ptr<kv_ledger> own_kv_;
  kv_ledger* kv_;
  std::unordered_map<sequence_key, std::unique_ptr<sequence>> sequences_;
  std::map<request_id, std::unique_ptr<request>> requests_;
  std::deque<sequence_key> waiting_;   // by age; also those that were preempted
  std::vector<sequence_key> running_;  // by age
  std::vector<item> items_;            // of the planned step, decode rows first
  std::uint32_t planned_rows_ = 0;     // of items_, without drafts
  std::uint32_t draft_rows_ = 0;       // left for drafts
  std::vector<prompt_need> needs_;     // scratch of plan()
  std::vector<std::uint32_t> chunks_;  // scratch of plan()
  std::vector<const sequence*> ready_; // scratch of plan()
  bool plan_ready_ = false;
  step_plan launched_;
  bool out_ = false;
  std::vector<drawn_segment> drawn_;     // of the last drawn step
  std::vector<sequence_key> unfinished_; // drawn, not settled
  std::vector<sequence_key> to_keep_;    // drawn, not handed to the KV
  std::vector<sequence_key> closing_;    // ended while in the step or draft pass that is out
  rank_tuning tuning_;
  prefix_counts prefix_, prefix_told_;
  std::array<std::uint64_t, drafts_max> verified_told_{}, accepted_told_{}; // [position] counted
  std::vector<draft_wish> wishes_;
  std::vector<token_id> pending_;               // scratch of draw_draft()
  std::vector<verify_offer> offers_;            // scratch of choose_drafts()
  std::vector<std::vector<float>> survivals_;   // [offers]
  std::map<request_id, std::uint32_t> settled_; // last settled attempt
  std::deque<request_id> settled_order_;
  std::uint64_t next_resumed_key_ = 1,
                next_key_ = std::uint64_t{1} << 32; // older than any fresh one
  std::uint64_t step_ = 0, rows_ = 0, report_ = 0, preemptions_ = 0;
  epoch view_{};
  bool draining_ = false, resend_armed_ = false;
  bool freed_ = false; ///< room was given back that no report tells of
  proto::rank_load reported_;
  std::vector<slow_holder> slow_;
};

} // namespace di::engine
