// SPDX-License-Identifier: Apache-2.0
// Decisions of the online GATEWAY: which requests are opened, followed, left and cancelled, and
// what their clients are told. Knows no client; actors/stream_gateway.hpp hands its news to them.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/outbox.hpp"

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace di::engine {

struct stream_gateway_options {
  address self = "/gateway/0";
  incarnation life{}; ///< of its process
  address journal = "/control/journal";
  std::uint32_t window = 4096;      ///< requests of submit() that are opened and not ended
  std::uint32_t waiting_max = 4096; ///< requests of submit() that wait for that
  duration resend_after = std::chrono::milliseconds{250};
  /// A request past its deadline is ended here if JOURNAL, which ends it first, is not heard of for
  /// so long.
  duration deadline_grace = std::chrono::milliseconds{500};
  /// A request of which nothing is heard for so long is attached to again: JOURNAL may be another
  /// life that knows nothing of who follows it.
  duration quiet_after = std::chrono::seconds{10};
  duration answer_within = std::chrono::seconds{2};     ///< one question
  duration questions_within = std::chrono::seconds{20}; ///< one that is asked again and again
};

/// What clients are told, in order.
namespace stream_news {
struct opened {
  request_id request;
};
/// The last of `request`.
struct known {
  request_id request, known;
  bool same = false;
};
/// Each index once and in order per choice; the last end of a choice is the last of the request.
struct tokens {
  proto::tokens_released m;
  bool last = false; ///< all choices have ended
};
/// The request as a whole. The last of it.
struct ended {
  request_id request;
  proto::choice_end why;
  std::uint32_t ask_again_ms = 0;
};
/// Answers to questions, by their tickets; an error if there is none. attached: followed by tokens.
struct attached {
  std::uint64_t ticket = 0;
  request_id request;
  result<proto::request_attached> answer;
};
struct recorded {
  std::uint64_t ticket = 0;
  result<proto::recorded_request> answer;
};
struct forgotten {
  std::uint64_t ticket = 0;
  result<proto::request_forgotten> answer;
};
} // namespace stream_news

using any_stream_news =
    std::variant<stream_news::opened, stream_news::known, stream_news::tokens, stream_news::ended,
                 stream_news::attached, stream_news::recorded, stream_news::forgotten>;

struct stream_counts {
  std::size_t waiting = 0;         ///< submitted and not opened
  std::size_t open = 0;            ///< opened, or being attached to
  std::uint64_t finished = 0;      ///< to the end, whatever it was
  std::uint64_t failed = 0;        ///< of them or instead of that: with an error
  std::uint64_t cancelled = 0;     ///< withdrawn by the client
  std::uint64_t output_tokens = 0; ///< [tokens] told
};

/// States of a request:
///
// clang-format off
///   (unknown)  --submit-->                    waiting
///   waiting    --window-->                    submitted
///   submitted  --request_opened | tokens-->   open
///   (unknown) | open  --attach-->             attaching --request_attached--> open
///   any        --cancel | deadline-->         cancelling --request_closed-->  gone
///   open       --stop-->                      open, until JOURNAL has ended it
///   submitted | open | attaching  --leave-->  gone (cancelling if it may not go on alone)
///   open       --all choices ended | request_closed | request_taken_over-->   gone
// clang-format on
///
/// Whatever is said to JOURNAL is said again until it answers. After a restart of control it hears
/// what is still open here, and sends what is missing. Tokens of a request that nobody here knows
/// are answered with detach_request. Owned by one shell, used on its thread only.
class stream_gateway_core {
public:
  explicit stream_gateway_core(stream_gateway_options options);

  void start(instant now, outbox& out);
  /// @pre m.spec.request is new, m.spec.sampling.n > 0
  void submit(proto::open_request m, instant now, outbox& out);
  void cancel(request_id id, instant now, outbox& out);
  /// As cancel; but who follows it here hears the rest, and the end as JOURNAL recorded it.
  void stop(request_id id, instant now, outbox& out);
  void leave(request_id id, instant now, outbox& out);
  void end_choice(proto::end_choice m, instant now, outbox& out);
  /// @param ticket  not 0, and not the ticket of another question
  void attach(std::uint64_t ticket, request_id id, std::vector<std::uint32_t> from, instant now,
              outbox& out);
  void get(std::uint64_t ticket, request_id id, instant now, outbox& out);
  void forget(std::uint64_t ticket, request_id id, instant now, outbox& out);
  void drain() noexcept { draining_ = true; }

  result<void> on(const proto::request_opened& m, instant now, outbox& out);
  result<void> on(const proto::request_known& m, instant now, outbox& out);
  result<void> on(const proto::request_closed& m, instant now, outbox& out);
  result<void> on(const proto::tokens_released& m, instant now, outbox& out);
  result<void> on(const proto::request_taken_over& m, instant now, outbox& out);
  result<void> on(const proto::control_moved& m, instant now, outbox& out);
  result<void> on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out);
  result<void> on_due(timer which, instant now, outbox& out);

  /// What happened since the last call.
  std::vector<any_stream_news> take_news() { return std::exchange(news_, {}); }
  stream_counts counts() const;
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1, deadline_due = 2, announce_due = 3 };
  enum class phase : std::uint8_t { waiting, submitted, open, attaching, cancelling };
  struct choice {
    std::uint32_t have = 0; ///< output index that comes next
    bool ended = false;
    std::optional<proto::end_choice> ending; ///< found by the client, not yet confirmed
  };
  struct entry {
    proto::open_request order; ///< its prompt is dropped with the first token
    phase state = phase::waiting;
    std::vector<choice> choices;
    instant submitted, sent, heard;
    bool windowed = false;      ///< counts in the window
    bool left = false;          ///< its client has gone before it was opened
    bool shown = false;         ///< a token was told
    bool stopping = false;      ///< open, and cancelled: JOURNAL has not said so yet
    std::uint64_t question = 0; ///< tag of an attach_request that is out; 0: none
  };
  enum class kind : std::uint8_t { attach, follow, get, forget };
  struct question {
    kind what = kind::get;
    request_id request;
    std::uint64_t ticket = 0;
    instant since;
    bool out = false; ///< else it waits to be asked again
  };
  using entries = std::map<request_id, entry>;

  entry* find(request_id id);
  entry& make(request_id id, phase state, instant now);
  void become(entry& e, phase next);
  std::size_t count(phase p) const { return in_phase_[static_cast<std::size_t>(p)]; }
  static bool all_ended(const entry& e);
  void open_more(instant now, outbox& out);
  void send_open(entry& e, instant now, outbox& out);
  void send_cancel(request_id id, entry& e, instant now, outbox& out);
  void withdraw(request_id id, entry& e, instant now, outbox& out);
  void end(request_id id, const proto::choice_end& why, std::uint32_t ask_again_ms, instant now,
           outbox& out);
  void drop(request_id id, instant now, outbox& out);
  void let_go(request_id id, instant now, outbox& out);
  void take(entry& e, const proto::tokens_released& m, instant now, outbox& out);
  void follow_again(request_id id, entry& e, instant now, outbox& out);
  void lost(request_id id, entry& e, instant now, outbox& out);
  std::uint64_t ask(question q, instant now, outbox& out);
  void ask_now(std::uint64_t tag, question& q, instant now, outbox& out);
  void attach_answered(question& q, const result<parcel>& answer, instant now, outbox& out);
  void resend(request_id id, entry& e, bool at_once, instant now, outbox& out);
  void drop_question(std::uint64_t tag) { questions_.erase(tag); }
  void refuse(const question& q, error why);
  void arm(outbox& out);
  void announce(outbox& out);
  void heard(outbox& out);

  stream_gateway_options options_;
  entries entries_;
  std::deque<request_id> waiting_;              ///< may name some that are gone
  std::array<std::size_t, 5> in_phase_{};       ///< entries
  std::size_t windowed_ = 0;                    ///< entries
  std::map<std::uint64_t, question> questions_; ///< by tag
  std::uint64_t last_tag_ = 0;
  std::vector<any_stream_news> news_;
  stream_counts counts_;
  bool draining_ = false, armed_ = false;
  bool heard_ = false; ///< of JOURNAL, in its present life
  duration announce_wait_{};
};

} // namespace di::engine
