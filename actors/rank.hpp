// SPDX-License-Identifier: Apache-2.0
// RANK: owns a device's step runner and the KV of its sequences, runs the step loop, and asks
// EXPERT_SHARD actors for routed experts in between. Spawned detached.
#pragma once

#include "actors/kit.hpp"
#include "actors/rank_kv.hpp"
#include "engine/core/expert_call_core.hpp"
#include "engine/core/holder_speeds.hpp"
#include "engine/core/rank_core.hpp"
#include "engine/model/draft_runner.hpp"
#include "engine/model/step.hpp"
#include "engine/model/step_profile.hpp"
#include "messaging/base/trace.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/rank.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>

namespace di::actors {

/// What a RANK is made of.
struct rank_parts {
  engine::rank_options options;                 ///< kv_tokens and page_tokens as the pool has them
  std::shared_ptr<engine::step_runner> runner;  ///< used on the actor's thread only
  std::shared_ptr<engine::draft_runner> drafts; ///< likewise; null: no drafts
  engine::sampler_factory samplers;
  engine::kv_layout layout;
  std::size_t taps_width = 0; ///< [values] of one row that feeds draft layers
  std::unique_ptr<engine::page_pool> pool;
  engine::prefill_rules rules;                          ///< of the model
  engine::prefix_index_options prefixes;                ///< what is cached between sequences
  duration ask_after = std::chrono::milliseconds{500};  ///< expert calls without an answer
  std::size_t answer_bytes_max = std::size_t{16} << 20; ///< of one expert call
  engine::load_window_options load;                     ///< for REBALANCER
  engine::step_profile profile;                         ///< what steps took before it began
  address listeners = topic_address;                    ///< gets step_finished; empty: nobody
  kv_transfer_options transfer;                         ///< on if options.kv_agent is there
};

/// One step computes at a time:
///
///   idle --work_due--> computing --layer's MoE--> waits for experts --last answer--> computing
///   computing --done--> drawing --depth 1: settled--> idle (and work_due if there is more)
///                       drawing --depth 2: next launched--> computing
///   (before a launch:)  drafting --layer's MoE--> waits for experts … --drawn--> launch
///
/// Between two layers the mailbox is read, so a rank answers while it waits. Behind the calls of a
/// layer it sends itself work_due: what can be done meanwhile (settling the last step, planning the
/// next, shared experts) is done then, when the calls are on their way. A step that cannot be
/// computed ends its sequences with the error; the rank lives on, and begins its next step once the
/// own shard has let go of the failed one's rows.
///
/// Ranks that a view or placement no longer names are lost: their open calls are asked again of
/// other holders, or park until a placement names some; the step goes on from where it is. A view
/// without its own life ends the actor, and says nothing more.
class rank_actor {
public:
  explicit rank_actor(rank_parts parts);

  result<void> on(const proto::assign_request& m, instant now, outbox& out);
  result<void> on(const proto::withdraw_request& m, instant now, outbox& out);
  result<void> on(const proto::commit_accepted& m, instant now, outbox& out);
  result<void> on(const proto::commit_refused& m, instant now, outbox& out);
  result<void> on(const proto::drain_rank& m, instant now, outbox& out);
  result<void> on(const proto::placement_published& m, instant now, outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::expert_rows& m, instant now, outbox& out);
  result<void> on(const proto::expert_moved& m, instant now, outbox& out);
  result<void> on(const proto::expert_failed& m, instant now, outbox& out);
  result<void> on(const proto::call_known& m, instant now, outbox& out);
  result<void> on(const proto::pages_restored& m, instant now, outbox& out);
  result<void> on(const proto::work_due& m, instant now, outbox& out);
  result<proto::rank_state> on(const proto::get_rank& m) const;
  result<void> on_due(timer which, instant now, outbox& out);
  void check() const;
  const engine::rank_core& core() const noexcept { return core_; }

private:
  enum timer_kind : std::uint32_t { ask_due = 100, restore_due = 101 };
  enum class phase : std::uint8_t { idle, experts, drafts };

  // rank_restore.cpp
  bool await_restore(const proto::assign_request& m, outbox& out);
  result<void> take_restored(request_id request, instant now, outbox& out);
  void send_sealed(outbox& out);
  void offer_to(std::span<const engine::placed_rank> members);

  void wake(outbox& out);
  void send_work(outbox& out);
  using next_state = std::optional<result<engine::step_state>>; ///< nothing: no more to compute
  next_state begin_step(instant now, outbox& out);
  next_state begin_drafts(instant now);
  next_state end_drafts(outbox& out);
  next_state launch(instant now, outbox& out);
  next_state end_step(outbox& out);
  result<engine::step_state> start_step();
  void go_on(result<engine::step_state> state, outbox& out);
  void overlap(instant now, outbox& out);
  result<bool> ask_experts(outbox& out);
  void send_calls(outbox& out);
  proto::expert_batch batch_of(const engine::expert_call& call) const;
  void draw(instant now);
  void trace_drawn(std::int64_t drawing_ns);
  void feed_drafts(outbox& out);
  const engine::expert_demand& demand() const;
  result<engine::step_state> resume();
  void settle(instant now, outbox& out);
  void give_up(const error& why, outbox& out);
  void fail_step(const error& why, outbox& out);
  void drafts_failed(const error& why, outbox& out);
  void await_readers(outbox& out);
  void resume_if_complete(outbox& out);
  void lose_others(std::span<const engine::placed_rank> alive, outbox& out);
  void tell_installed(outbox& out);
  void reader_done(call_id call, outbox& out);
  template <class F>
  result<engine::step_state> timed(F&& compute);

  rank_parts parts_;
  rank_kv kv_;
  engine::rank_core core_;
  engine::expert_call_core calls_;
  engine::holder_speeds speeds_;
  phase phase_ = phase::idle;
  bool waited_ = false; ///< in the step that is out: mail was read
  instant step_began_, drafts_began_;
  trace::stopwatch step_watch_, draft_watch_, wait_watch_;
  std::vector<engine::draft_wish> drafting_;   ///< of the pass that is out
  std::vector<engine::drawn_segment> outcome_; ///< of the drawn step
  bool drafts_failed_ = false;                 ///< the next step goes without
  proto::step_finished drawn_;                 ///< of the drawn step, without its tokens
  std::optional<proto::expert_load> load_;     ///< to be sent with it
  std::uint64_t device_ns_ = 0, local_rows_ = 0, remote_rows_ = 0;
  std::vector<engine::placed_rank> members_;              ///< of the last view that came
  std::map<request_id, proto::assign_request> restoring_; ///< until KV_AGENT answers
  std::set<call_id> readers_; ///< of a failed step whose rows the own shard may still read
  bool work_sent_ = false, ask_armed_ = false, owes_installed_ = false;
  bool joined_ = false; ///< has been in a view
};

struct rank {
  static constexpr auto kind = "rank";
  using core = rank_actor;
  using protocol = di::protocol<reacts_to<proto::assign_request>,      // serve this
                                reacts_to<proto::withdraw_request>,    // stop serving this
                                reacts_to<proto::commit_accepted>,     // recorded up to here
                                reacts_to<proto::commit_refused>,      // another attempt counts
                                reacts_to<proto::drain_rank>,          // no new requests
                                reacts_to<proto::placement_published>, // where experts live
                                reacts_to<proto::view_committed>,      // who is in
                                reacts_to<proto::expert_rows>,         // an answer
                                reacts_to<proto::expert_moved>,        // ask elsewhere
                                reacts_to<proto::expert_failed>,       // a call that made no sense
                                reacts_to<proto::call_known>,          // what became of a late call
                                reacts_to<proto::pages_restored>,      // KV of a resumed attempt
                                reacts_to<proto::work_due>,            // go on
                                replies_to<proto::get_rank>::with<proto::rank_state>>;
};

/// Ready for system::spawn(). Made in serving.cpp.
std::unique_ptr<core_handle> make_rank(rank_parts parts);

} // namespace di::actors
