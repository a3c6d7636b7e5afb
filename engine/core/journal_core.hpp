// SPDX-License-Identifier: Apache-2.0
// Decisions of JOURNAL: which requests exist, which attempt counts, which tokens are settled and
// may be shown. In memory; accepts each (request, choice, index) once.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/scheduler.hpp"

#include <deque>
#include <map>
#include <memory>
#include <unordered_set>
#include <vector>

namespace di::engine {

struct journal_options {
  address scheduler = "/control/scheduler";
  std::uint32_t open_max = 65'536;     ///< requests; more are closed with unavailable
  std::uint32_t closed_kept = 1 << 20; ///< numbers of closed requests remembered
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
///   closed              --all releases acknowledged-->                   forgotten (but its number)
// clang-format on
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
  proto::journal_state counts_;
  bool armed_ = false;
};

} // namespace di::engine
