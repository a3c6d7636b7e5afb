// SPDX-License-Identifier: Apache-2.0
// Decisions of SCHEDULER: which rank serves which request. The least loaded one, for now.
#pragma once

#include "engine/moe/placement.hpp" // placed_rank
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/rank.hpp"
#include "messaging/proto/scheduler.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace di::engine {

struct scheduler_options {
  address journal = "/control/journal";
  std::uint32_t queue_max = 16'384;          ///< requests without a rank; more are refused
  std::uint32_t assigned_per_rank_max = 256; ///< [choices] given to one rank at a time
  duration resend_after = std::chrono::milliseconds{500}; ///< assignments not yet taken
  duration remind_after = std::chrono::seconds{20}; ///< taken ones, in case their end was lost
};

/// States of a request: queued --rank with room--> assigned --request_settled | release_request-->
/// forgotten; assigned --assignment_refused (another may)--> queued, else refused to JOURNAL.
///
/// An assignment counts until its rank settles it, is released, or is gone from the view. Owned by
/// one shell, used on its thread only.
class scheduler_core {
public:
  explicit scheduler_core(scheduler_options options);
  ~scheduler_core();

  /// A view took effect: requests of incarnations that are not in it are forgotten here (JOURNAL
  /// opens their next attempt).
  void install_view(epoch view, std::span<const placed_rank> ranks, instant now, outbox& out);
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
  enum timer_kind : std::uint32_t { resend_due = 1 };
  struct request;
  struct rank_entry {
    placed_rank who;
    proto::rank_load load;      ///< report 0: none yet
    std::uint64_t choices = 0;  ///< assigned
    std::uint64_t rows = 0;     ///< [rows] of prompts and outputs assigned
    std::uint32_t requests = 0; ///< assigned
  };

  rank_entry* entry_of(rank_id rank, incarnation life);
  rank_entry* least_loaded(const request& r);
  void place_queued(instant now, outbox& out);
  void assign(request& r, rank_entry& to, instant now, outbox& out);
  void send_assignment(request& r, instant now, outbox& out);
  void unassign(request& r);
  void refuse(const request& r, ec code, std::string what, outbox& out);
  void arm(outbox& out);

  scheduler_options options_;
  epoch view_{};
  std::vector<rank_entry> ranks_; ///< ascending rank
  std::map<request_id, std::unique_ptr<request>> requests_;
  std::deque<request_id> queue_; ///< in order of arrival
  bool armed_ = false;
};

} // namespace di::engine
