// SPDX-License-Identifier: Apache-2.0
// Decisions of JOURNAL: which requests exist, which attempt counts, which tokens are settled and
// may be shown. In memory; accepts each (request, choice, index) once.
#pragma once

#include "engine/core/journal_image.hpp"
#include "engine/core/journal_sink.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/directory.hpp"
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
#include <string>
#include <utility>
#include <vector>

namespace di::engine {

struct journal_options {
  address scheduler = "/control/scheduler";
  std::uint32_t open_max = 65'536;     ///< requests; more are refused with unavailable
  std::uint32_t closed_kept = 1 << 20; ///< runs of numbers of closed requests remembered
  std::uint32_t left_kept = 4096;      ///< lives that left the view remembered
  duration resend_after = std::chrono::milliseconds{250}; ///< then twice as long, up to 8 s
  duration gap_after = std::chrono::seconds{5}; ///< tokens missing for so long are never sent
  journal_sink* sink = nullptr; ///< outlives the core; null: all is kept in memory alone
  run_identity run;             ///< for the records
  /// [bytes] A file that is larger than this and twice what still counts is replaced.
  std::uint64_t file_bytes_max = std::uint64_t{64} << 20;
  std::uint64_t live_bytes_max = std::uint64_t{4} << 30; ///< [bytes] more still counts: nothing is
                                                         ///< opened
  /// [bytes] of requests that are kept after their end for keep_ms; the oldest make way.
  std::uint64_t stored_bytes_max = std::uint64_t{1} << 30;
  /// A request of an earlier life of control that no gateway attaches to is cancelled after this,
  /// or after its detached_ms if that is longer.
  duration orphaned_after = std::chrono::seconds{30};
  std::optional<journal_image> recovered; ///< what an earlier life wrote
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
///   running             --its rank's tokens never fit-->                 admitting, attempt + 1
///   running             --its rank has settled it-->                     admitting, attempt + 1
///   closed              --all releases acknowledged-->                   forgotten (but its number)
///   closed, keep_ms     --keep_ms later | stored_bytes | forget-->       forgotten (but its number)
// clang-format on
///
/// One gateway follows a request: the one that opened it, then the last that attached. It is
/// detached while none does (its client left, or that life of the gateway ended): nothing is
/// released, and after detached_ms it is cancelled, or if closed forgotten.
///
/// An attempt has one owner: the life that SCHEDULER placed it on, or that sent tokens of it. Once
/// a view is without that life, attempts of it are refused and the next one goes on behind the
/// tokens that are recorded. That holds too if the placement becomes known only afterwards.
///
/// With a sink, nothing that another actor could rely on leaves before it is written: tokens to
/// GATEWAY, commit_accepted and commit_refused to RANK, admit_request and release_request,
/// view_recorded. While writing fails, requests are refused, and running ones wait or end at their
/// deadlines with what had been written.
///
/// What GATEWAY has acknowledged is forgotten token by token no later than the request. Owned by
/// one shell, used on its thread only.
class journal_core {
public:
  explicit journal_core(journal_options options);
  ~journal_core();

  /// Requests of an earlier life go on.
  void start(instant now, outbox& out);
  result<void> on(const proto::open_request& m, instant now, outbox& out);
  result<void> on(const proto::request_admitted& m, instant now, outbox& out);
  result<void> on(const proto::admission_refused& m, instant now, outbox& out);
  result<void> on(const proto::request_settled& m, instant now, outbox& out);
  result<void> on(const proto::tokens_committed& m, instant now, outbox& out);
  result<void> on(const proto::view_committed& m, instant now, outbox& out);
  result<void> on(const proto::release_acknowledged& m, const origin& from, instant now,
                  outbox& out);
  result<void> on(const proto::release_acknowledged& m, instant now, outbox& out) {
    return on(m, origin{}, now, out);
  }
  result<void> on(const proto::cancel_request& m, const origin& from, instant now, outbox& out);
  result<void> on(const proto::cancel_request& m, instant now, outbox& out) {
    return on(m, origin{}, now, out);
  }
  result<void> on(const proto::answer_delivered& m, instant now, outbox& out);
  result<void> on(const proto::record_view& m, reply_to ticket, instant now, outbox& out);
  result<void> on(const proto::journal_written& m, instant now, outbox& out);
  result<void> on(const proto::attach_request& m, reply_to ticket, instant now, outbox& out);
  result<proto::recorded_request> on(const proto::get_request& m, instant now, outbox& out) const;
  result<void> on(const proto::detach_request& m, instant now, outbox& out);
  result<void> on(const proto::end_choice& m, instant now, outbox& out);
  result<void> on(const proto::forget_request& m, reply_to ticket, instant now, outbox& out);
  result<void> on(const proto::gateway_started& m, instant now, outbox& out);
  result<void> on(const proto::withdrawn& m, instant now, outbox& out);
  result<proto::journal_state> on(const proto::get_journal&) const;
  result<void> on_due(timer which, instant now, outbox& out);
  void check() const;
  /// What a next attempt of an open request would be asked to compute; null: unknown or closed.
  const proto::request_spec* recorded(request_id id) const;
  /// All that counts now, as a later life would read it.
  journal_image image(instant now) const;

private:
  enum timer_kind : std::uint32_t {
    resend_due = 1,
    deadline_due = 2,
    detached_due = 3,
    stored_due = 4
  };
  struct choice;
  struct request;

  request* find(request_id id);
  void admit(request& r, instant now, outbox& out);
  using life_of_rank = std::pair<rank_id, incarnation>;
  bool has_left(const life_of_rank& who) const { return left_.contains(who); }
  bool place(request& r, const life_of_rank& who, instant now, outbox& out);
  void next_attempt(request& r, instant now, outbox& out);
  bool goes_astray(request& r, const proto::tokens_committed& m, instant now, outbox& out);
  void append(request& r, const proto::tokens_committed& m, std::uint32_t skip, instant now);
  void release(request& r, std::uint32_t which, std::uint32_t from, instant now, outbox& out);
  void release(request& r, std::uint32_t which, std::uint32_t from, std::uint32_t to, instant now,
               outbox& out);
  void close(request& r, const proto::choice_end& rest, bool withdraw, instant now, outbox& out);
  void expire(request& r, instant now, outbox& out);
  void arm(outbox& out);

  // journal_follow.cpp: who follows a request, and how long one is kept.
  request& make_request(const proto::open_request& m, instant now);
  void take_over_dedup(request& r);
  bool answer_known(const proto::open_request& m, outbox& out);
  void attach(request& r, const address& gateway, const std::vector<std::uint32_t>& from,
              instant now, outbox& out);
  void detach(request& r, instant now, outbox& out);
  template <class F>
  void detach_all(F&& of, instant now, outbox& out);
  void detached_too_long(request& r, instant now, outbox& out);
  void store(request& r, instant now, outbox& out);
  void unstore(request& r);
  void forget_if_done(request& r, instant now);
  void resume_following(instant now, outbox& out);

  // journal_record.cpp: what is written, and what waits for it.
  void take_over(const journal_image& image, instant now);
  void reopen(request& r, const proto::open_request& m, instant now, outbox& out);
  std::string cannot_open() const;
  bool stalled() const noexcept { return failing_ && !in_memory_; }
  std::uint64_t elapsed_ms(instant now) const;
  std::uint64_t record(any_record body, instant now);
  void record_opened(request& r, instant now);
  void record_attempt(request& r, instant now);
  void record_tokens(request& r, std::uint32_t which, std::uint32_t from, instant now);
  void record_closed(request& r, const proto::choice_end& rest, instant now);
  void record_forgotten(request& r, instant now);
  void drop_unwritten(request& r);
  void settle(outbox& out);
  void begin_file(instant now);
  void hold(std::uint64_t position, request_id id, any_effect effect, outbox& out);
  /// Sends a message as soon as all up to a position is written.
  template <message M>
  void send_when(std::uint64_t position, request_id id, const address& to, M m, outbox& out) {
    hold(position, id, effect::send{to, parcel::of(std::move(m))}, out);
  }

  journal_options options_;
  std::map<request_id, std::unique_ptr<request>> requests_;
  std::map<std::string, request_id, std::less<>> dedup_;  ///< of requests_
  std::map<address, incarnation> gateways_;               ///< that said gateway_started
  std::set<std::pair<std::uint64_t, request_id>> stored_; ///< closed_ms first: the oldest
  std::uint64_t stored_bytes_ = 0;
  number_ranges forgotten_; ///< closed requests that are gone
  epoch view_{};
  std::set<life_of_rank> members_;      ///< of the view
  std::set<life_of_rank> left_;         ///< were members, and are no more
  std::deque<life_of_rank> left_order_; ///< the oldest are forgotten
  /// Waits for its position to be written.
  struct held_effect {
    std::uint64_t position = 0;
    request_id request;
    any_effect effect;
  };
  struct writing_tokens {
    std::uint64_t position = 0;
    request_id request;
    std::uint32_t choice = 0, next = 0;
    bool ended = false;
  };
  std::uint64_t position_ = 0; ///< of the last record
  std::uint64_t written_ = 0;  ///< all up to here is
  std::deque<held_effect> held_;
  std::deque<writing_tokens> writing_;
  bool failing_ = false, in_memory_ = false;
  std::string why_;
  std::uint64_t file_ = 0, file_bytes_ = 0;
  std::uint64_t next_file_at_ = 0;      ///< [bytes] of the file before another is begun
  std::uint64_t live_bytes_ = 0;        ///< [bytes] about so much would a new file begin with
  std::uint64_t elapsed_before_ms_ = 0; ///< of earlier lives
  std::optional<instant> began_;
  std::optional<proto::view_committed> recorded_view_;

  proto::journal_state counts_;
  bool armed_ = false;
};

} // namespace di::engine
