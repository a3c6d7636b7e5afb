// SPDX-License-Identifier: Apache-2.0
// Decisions of SCHEDULER: which requests are taken in, and which rank serves which when.
#pragma once

#include "engine/core/admission.hpp"
#include "engine/moe/placement.hpp" // placed_rank
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/rank.hpp"
#include "messaging/proto/scheduler.hpp"

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace di::engine {

struct scheduler_options {
  address journal = "/control/journal";
  std::vector<address> slow_to = {"/control/rebalancer"}; ///< get ranks_slow
  std::uint32_t queue_max = 16'384;           ///< requests without a rank; more are refused
  std::uint64_t tenant_choices_max = 0;       ///< [choices] open per tenant; 0: no bound
  std::uint64_t gateway_choices_max = 0;      ///< [choices] open per gateway; 0: no bound
  std::uint32_t assigned_per_rank_max = 256;  ///< [choices] given to one rank at a time
  std::uint32_t backlog_per_rank_max = 16;    ///< [choices] of them that may wait there
  std::uint32_t expected_output_tokens = 512; ///< [tokens] of a choice that KV room is kept for
  std::uint32_t kv_percent = 150; ///< [%] of a rank's KV room that may be promised; choices that
                                  ///< end early and shared prefixes make more than 100 safe
  duration priority_step = std::chrono::seconds{2}; ///< head start of one priority
  std::uint32_t overtakes_max = 64; ///< choices that may pass a request that finds no room
  work_weights weights;
  duration resend_after = std::chrono::milliseconds{500}; ///< assignments not yet taken
  duration retry_after = std::chrono::seconds{1};   ///< a rank that refused, if its report was lost
  duration remind_after = std::chrono::seconds{20}; ///< taken ones, in case their end was lost
};

/// States of a request:
///
// clang-format off
///   (unknown) --admit_request within queue and quotas-->                     queued, else refused
///   queued    --first in order with room on a rank-->                        assigned
///   assigned  --request_settled | release_request | its rank is gone-->      forgotten
///   queued, named for a life     --that life is in the view-->               assigned to it
///                                --it is not-->                              forgotten
///   assigned  --assignment_refused (another may)-->                          queued at its old place
///   queued | assigned --deadline | too large for all-->                      refused
// clang-format on
///
/// Order: see queue_place. A request that finds no room is passed by others that do, but by no more
/// than overtakes_max choices; then all wait for it. Requests that come back (attempt above 1) go
/// first, and no quota or bound of the queue refuses them.
///
/// Room on a rank: fewer than backlog_per_rank_max choices wait there, assigned_per_rank_max are
/// not passed, and the tokens of all that it was given fit kv_percent of its KV room. An idle rank
/// has room for anything. Among ranks with room the one with the least outstanding_work() gets it;
/// work of a rank that most others find slow counts as many times as it takes longer.
///
/// An assignment counts until its rank settles it, is released, or is gone from the view; JOURNAL
/// is told of the settled ones, as it opens the next attempt of what it still has open. What is
/// queued stays so over views, with its place, quota and deadline. Refusals by ranks that know
/// another view are not held against a request. Owned by one shell, used on its thread only.
class scheduler_core {
public:
  explicit scheduler_core(scheduler_options options);
  ~scheduler_core();

  /// A view took effect: requests of incarnations that are not in it are forgotten here (JOURNAL
  /// opens their next attempt).
  void install_view(epoch view, std::span<const placed_rank> ranks, instant now, outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::placement_settled& m, instant now, outbox& out);
  result<void> on(const proto::admit_request& m, instant now, outbox& out);
  result<void> on(const proto::rank_load& m, instant now, outbox& out);
  result<void> on(const proto::request_taken& m, instant now, outbox& out);
  result<void> on(const proto::request_settled& m, instant now, outbox& out);
  result<void> on(const proto::assignment_refused& m, instant now, outbox& out);
  result<void> on(const proto::release_request& m, instant now, outbox& out);
  result<proto::schedule> on(const proto::get_schedule&) const;
  result<void> on_due(timer which, instant now, outbox& out);
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1, deadline_due = 2 };
  struct request;
  struct rank_entry {
    placed_rank who;
    proto::rank_load load;         ///< report 0: none yet
    std::uint64_t choices = 0;     ///< assigned
    std::uint32_t requests = 0;    ///< assigned
    std::uint64_t kv_tokens = 0;   ///< [tokens] that the assigned may take
    std::uint64_t prompt_rows = 0; ///< [rows] of prompts of the assigned
    double prompt_squares = 0;     ///< [rows^2]
    std::uint64_t new_rows = 0;    ///< [rows] of prompts that no report counts yet
    std::uint64_t new_choices = 0; ///< that no report counts yet
    std::vector<request_id> taken; ///< that the next report will count
    double slowness = 1;           ///< [times the median] as most others find
  };
  using request_map = std::map<request_id, std::unique_ptr<request>>;

  rank_entry* entry_of(rank_id rank, incarnation life);
  request* serving(request_id id, std::uint32_t attempt, rank_id rank, incarnation life);
  std::size_t waiting_anywhere() const;
  bool take_in(const proto::admit_request& m, instant now, outbox& out);
  bool named_elsewhere(const request& r) const;
  bool refused_now(const rank_entry& rank, const request& r) const;
  bool refused_by_all(const request& r) const;
  bool has_room(const rank_entry& rank, const request& r) const;
  rank_work work_of(const rank_entry& rank) const;
  void judge_speeds(outbox& out);
  rank_entry* best_rank(const request& r);
  void place_queued(instant now, outbox& out);
  void assign(request& r, rank_entry& to, instant now, outbox& out);
  void send_assignment(request& r, instant now, outbox& out);
  void unassign(request& r);
  void counted(rank_entry& rank, request& r);
  void forget(request_map::iterator at, outbox& out);
  void refuse(const proto::admit_request& m, ec code, std::string what, outbox& out);
  void expire(request_id id, instant now, outbox& out);
  double balance() const;
  void arm(outbox& out);

  scheduler_options options_;
  epoch view_{};
  std::vector<rank_entry> ranks_; ///< ascending rank
  request_map requests_;
  admission_queue queue_;
  open_quota tenants_, gateways_;
  std::uint64_t rows_most_ = 0; ///< [rows] most that a rank has done
  bool armed_ = false;
};

} // namespace di::engine
