// SPDX-License-Identifier: Apache-2.0
// Decisions of JOURNAL: which requests exist, which attempt counts, which tokens are settled and
// may be shown. In memory; accepts each (request, choice, index) once.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/scheduler.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

namespace di::engine {

struct journal_options {
  address scheduler = "/control/scheduler";
  std::uint32_t open_max = 65'536;     ///< requests; more are closed with unavailable
  std::uint32_t closed_kept = 1 << 20; ///< numbers of closed requests remembered
  std::uint32_t left_kept = 4096;      ///< lives that left the view remembered
  duration resend_after = std::chrono::milliseconds{250}; ///< then twice as long, up to 8 s
};

/// States of a request:
///
// clang-format off
///   (unknown)           --open_request-->                                admitting
///   admitting           --request_admitted | tokens_committed-->         running
///   running             --all choices ended-->                           closed
///   admitting | running --cancel_request | deadline | corrupt tokens-->  closed
///   admitting | running --admission_refused-->                           closed
///   admitting | running --its rank's life left the view-->               admitting, attempt + 1
///   closed              --all releases acknowledged-->                   forgotten (but its number)
// clang-format on
///
/// An attempt has one owner: the life that SCHEDULER placed it on, or that sent tokens of it. Once
/// a view is without that life, attempts of it are refused and the next one goes on behind the
/// tokens that are recorded. That holds too if the placement becomes known only afterwards.
///
/// What GATEWAY has acknowledged is forgotten token by token no later than the request. Owned by
/// one shell, used on its thread only.
class journal_core {
public:
  explicit journal_core(journal_options options);
  ~journal_core();

  result<void> on(const proto::open_request& m, instant now, outbox& out);
  result<void> on(const proto::request_admitted& m, instant now, outbox& out);
  result<void> on(const proto::admission_refused& m, instant now, outbox& out);
  result<void> on(const proto::tokens_committed& m, instant now, outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::release_acknowledged& m, instant now, outbox& out);
  result<void> on(const proto::cancel_request& m, instant now, outbox& out);
  result<proto::journal_state> on(const proto::get_journal&) const { return counts_; }
  result<void> on_due(timer which, instant now, outbox& out);
  void check() const;
  /// What a next attempt of an open request would be asked to compute; null: unknown or closed.
  const proto::request_spec* recorded(request_id id) const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1, deadline_due = 2 };
  struct choice;
  struct request;

  request* find(request_id id);
  void admit(request& r, instant now, outbox& out);
  using life_of_rank = std::pair<rank_id, incarnation>;
  bool has_left(const life_of_rank& who) const { return left_.contains(who); }
  bool place(request& r, const life_of_rank& who, instant now, outbox& out);
  void next_attempt(request& r, instant now, outbox& out);
  void append(choice& c, const proto::tokens_committed& m, std::uint32_t skip);
  void release(request& r, std::uint32_t which, std::uint32_t from, instant now, outbox& out);
  void close(request& r, const proto::choice_end& rest, bool withdraw, instant now, outbox& out);
  void forget_if_done(request& r);
  void expire(request& r, instant now, outbox& out);
  void arm(outbox& out);

  journal_options options_;
  std::map<request_id, std::unique_ptr<request>> requests_;
  std::unordered_set<std::uint64_t> closed_;
  std::deque<std::uint64_t> closed_order_;
  epoch view_{};
  std::set<life_of_rank> members_;      ///< of the view
  std::set<life_of_rank> left_;         ///< were members, and are no more
  std::deque<life_of_rank> left_order_; ///< the oldest are forgotten
  proto::journal_state counts_;
  bool armed_ = false;
};

} // namespace di::engine
