// SPDX-License-Identifier: Apache-2.0
// Messages of JOURNAL (0x05): which requests exist, which tokens of them are settled.
#pragma once

#include "messaging/proto/membership.hpp"
#include "messaging/proto/sampling.hpp"

#include <string>
#include <vector>

namespace di::proto {

struct open_request {
  static constexpr wire_id wire{0x0501};
  static constexpr std::string_view doc =
      "Command of GATEWAY: a request begins to exist. Answered to spec.gateway by request_opened, "
      "request_known or request_closed; sent again until one of them comes. Overload: GATEWAY's "
      "window.";
  request_spec spec;
  bool keep = false;   ///< its tokens are kept until answer_delivered, for another life of GATEWAY
  std::string note{};  ///< of GATEWAY for itself, at most note_bytes_max; JOURNAL keeps it unread
  std::string dedup{}; ///< requests with the same one are the same request; empty: none is
  std::string dedup_digest{}; ///< of what was asked: whether it is the same question too
  std::uint64_t keep_ms = 0;  ///< [ms] it is kept after its end; 0: as `keep` says
  /// [ms] it goes on without a gateway, and is kept after its end at least; 0: cancelled at once
  std::uint64_t detached_ms = 0;
  static constexpr std::size_t note_bytes_max = std::size_t{1} << 20;
  DI_FIELDS(open_request, m.spec, m.keep, m.note, m.dedup, m.dedup_digest, m.keep_ms, m.detached_ms)
};

struct request_opened {
  static constexpr wire_id wire{0x0502};
  static constexpr std::string_view doc = "Fact for GATEWAY: the request is recorded and will be "
                                          "served. Overload: one per open_request.";
  request_id request;
  DI_FIELDS(request_opened, m.request)
};

struct tokens_committed {
  static constexpr wire_id wire{0x0503};
  static constexpr std::string_view doc =
      "Fact of RANK: these tokens of a choice are computed. Sent again from the last acknowledged "
      "index until commit_accepted covers them. Overload: bounded unacknowledged tokens per "
      "choice.";
  request_id request;
  std::uint32_t choice = 0;
  std::uint32_t attempt = 0;               ///< from 1; an older one is refused
  rank_id rank;                            ///< sender
  incarnation life{};                      ///< of the sender
  epoch view{};                            ///< view that the sender works under
  std::uint32_t first_index = 0;           ///< output index of tokens[0]
  std::vector<token_id> tokens;            ///< may be empty if `end` says that it ended
  std::vector<position_logprobs> logprobs; ///< one per token if asked for, else empty
  choice_end end;                          ///< reason none: more will come
  choice_timings timings;                  ///< complete when it ended
  std::uint32_t prefix_tokens = 0; ///< [tokens] of the attempt's bounded hit; later attempts get it
  std::uint32_t cached_tokens = 0; ///< [tokens] of the prompt that the attempt did not compute
  DI_FIELDS(tokens_committed, m.request, m.choice, m.attempt, m.rank, m.life, m.view, m.first_index,
            m.tokens, m.logprobs, m.end, m.timings, m.prefix_tokens, m.cached_tokens)
};

struct commit_accepted {
  static constexpr wire_id wire{0x0504};
  static constexpr std::string_view doc =
      "Answer of JOURNAL to RANK: all indices below next_index are recorded. Overload: one per "
      "tokens_committed.";
  request_id request;
  std::uint32_t choice = 0;
  std::uint32_t attempt = 0;
  std::uint32_t next_index = 0; ///< output index that JOURNAL expects next
  bool ended = false; ///< the end of the choice is recorded too; RANK drops it if it goes on there
  DI_FIELDS(commit_accepted, m.request, m.choice, m.attempt, m.next_index, m.ended)
};

struct commit_refused {
  static constexpr wire_id wire{0x0505};
  static constexpr std::string_view doc = "Answer of JOURNAL to RANK: this attempt is no more "
                                          "(another has it, or the request is closed); "
                                          "drop its sequences. Overload: one per tokens_committed.";
  request_id request;
  std::uint32_t attempt = 0; ///< that was refused
  std::uint32_t current = 0; ///< attempt that counts; 0: the request is closed or unknown
  DI_FIELDS(commit_refused, m.request, m.attempt, m.current)
};

struct cancel_request {
  static constexpr wire_id wire{0x0506};
  static constexpr std::string_view doc =
      "Command of GATEWAY: the client is gone. JOURNAL closes the request as cancelled and tells "
      "SCHEDULER; the sender hears request_closed if there is nothing to close. Sent again until "
      "the request is known to be closed. Overload: one per request.";
  request_id request;
  DI_FIELDS(cancel_request, m.request)
};

struct release_acknowledged {
  static constexpr wire_id wire{0x0507};
  static constexpr std::string_view doc = "Fact of GATEWAY: has all released tokens below "
                                          "next_index. Overload: one per tokens_released.";
  request_id request;
  std::uint32_t choice = 0;
  std::uint32_t next_index = 0;
  bool ended = false; ///< the end came too
  DI_FIELDS(release_acknowledged, m.request, m.choice, m.next_index, m.ended)
};

struct get_journal {
  static constexpr wire_id wire{0x0508};
  static constexpr std::string_view doc = "Question: how much does JOURNAL hold. Overload: none.";
  DI_FIELDS(get_journal)
};

struct journal_state {
  static constexpr wire_id wire{0x0509};
  static constexpr std::string_view doc = "Answer to get_journal.";
  std::uint64_t open = 0;         ///< requests that have not ended
  std::uint64_t closed = 0;       ///< requests that have
  std::uint64_t tokens = 0;       ///< [tokens] accepted
  std::uint64_t repeated = 0;     ///< [tokens] offered again after they had been accepted
  std::uint64_t refused = 0;      ///< commits of old attempts
  std::uint64_t unwritten = 0;    ///< records on their way to disk
  std::uint64_t file_bytes = 0;   ///< [bytes] of the log; 0: it is kept in memory alone
  bool failing = false;           ///< the last write did not go through
  std::string what;               ///< why, if failing
  std::uint64_t stored = 0;       ///< requests that are kept after their end for keep_ms
  std::uint64_t stored_bytes = 0; ///< [bytes] of them, about
  std::uint64_t detached = 0;     ///< requests that go on, or wait, without a gateway
  DI_FIELDS(journal_state, m.open, m.closed, m.tokens, m.repeated, m.refused, m.unwritten,
            m.file_bytes, m.failing, m.what, m.stored, m.stored_bytes, m.detached)
};

struct record_view {
  static constexpr wire_id wire{0x050A};
  static constexpr std::string_view doc =
      "Question of MEMBERSHIP: write this view down before it takes effect. Overload: one per "
      "change.";
  view_committed next;
  DI_FIELDS(record_view, m.next)
};

struct view_recorded {
  static constexpr wire_id wire{0x050B};
  static constexpr std::string_view doc = "Answer to record_view: a later life of the control "
                                          "process will know it.";
  epoch view{};
  DI_FIELDS(view_recorded, m.view)
};

struct answer_delivered {
  static constexpr wire_id wire{0x050C};
  static constexpr std::string_view doc =
      "Fact of GATEWAY: the answer is with its client for good (its line is written); no life of "
      "GATEWAY will ask for it again. For requests opened with keep. Overload: one per request.";
  request_id request;
  DI_FIELDS(answer_delivered, m.request)
};

struct journal_written {
  static constexpr wire_id wire{0x050D};
  static constexpr std::string_view doc =
      "Fact of JOURNAL's writer, inside its process: all records up to a position are written, or "
      "why they are not. Overload: one per group of records, and one per change of `failing`.";
  std::uint64_t position = 0;   ///< all up to here is written, or is to be taken as if it were
  std::uint64_t file = 0;       ///< counts the files of a journal
  std::uint64_t file_bytes = 0; ///< [bytes] of that one
  bool failing = false;         ///< nothing behind position gets out for now
  bool needs_snapshot = false;  ///< the file misses records: begin another
  bool in_memory = false;       ///< journal.on_error memory: goes on without the disk
  std::string what;             ///< of failing and in_memory
  DI_FIELDS(journal_written, m.position, m.file, m.file_bytes, m.failing, m.needs_snapshot,
            m.in_memory, m.what)
};

struct request_known {
  static constexpr wire_id wire{0x050E};
  static constexpr std::string_view doc =
      "Answer to open_request whose dedup another request has: nothing was opened; attach to that "
      "one. Overload: one per open_request.";
  request_id request; ///< that was to be opened
  request_id known;   ///< that has the same dedup
  bool same = false;  ///< dedup_digest is the same too
  DI_FIELDS(request_known, m.request, m.known, m.same)
};

struct attach_request {
  static constexpr wire_id wire{0x050F};
  static constexpr std::string_view doc =
      "Question of GATEWAY: let me have this request's tokens, whoever had them. Answered by "
      "request_attached and followed by tokens_released from `from` on; the gateway before hears "
      "request_taken_over. Repeating it changes nothing. Overload: one per client that comes back.";
  request_id request;
  address gateway;                 ///< who gets the tokens from now on
  std::vector<std::uint32_t> from; ///< output index per choice; missing: 0
  /// It has followed the request before: takes it from nobody; spec and note of the answer stay
  /// empty.
  bool brief = false;
  DI_FIELDS(attach_request, m.request, m.gateway, m.from, m.brief)
};

struct request_attached {
  static constexpr wire_id wire{0x0510};
  static constexpr std::string_view doc =
      "Answer to attach_request. Not a refusal if there is no such request: that would look like a "
      "JOURNAL that is not there yet.";
  request_id request;
  request_spec spec;
  std::string note;         ///< open_request::note
  std::uint64_t age_ms = 0; ///< [ms] since it was opened, as far as JOURNAL was running
  bool closed = false;      ///< all tokens are there
  bool known = true;        ///< false: there is no such request, and nothing else is set
  DI_FIELDS(request_attached, m.request, m.spec, m.note, m.age_ms, m.closed, m.known)
};

struct request_taken_over {
  static constexpr wire_id wire{0x0511};
  static constexpr std::string_view doc =
      "Fact of JOURNAL for a GATEWAY: another one has the request from now on. Overload: one per "
      "attach_request.";
  request_id request;
  DI_FIELDS(request_taken_over, m.request)
};

struct get_request {
  static constexpr wire_id wire{0x0512};
  static constexpr std::string_view doc =
      "Question: what is recorded of a request; takes it from nobody. Overload: none.";
  request_id request;
  DI_FIELDS(get_request, m.request)
};

/// A choice as far as it is written down.
struct recorded_choice {
  std::vector<token_id> tokens;
  std::vector<position_logprobs> logprobs; ///< as tokens, or empty
  choice_end end;                          ///< reason none: it goes on
  choice_timings timings;                  ///< complete when it ended
  DI_FIELDS(recorded_choice, m.tokens, m.logprobs, m.end, m.timings)
};

struct recorded_request {
  static constexpr wire_id wire{0x0513};
  static constexpr std::string_view doc = "Answer to get_request.";
  request_id request;
  request_spec spec;
  std::string note;         ///< open_request::note
  std::uint64_t age_ms = 0; ///< [ms] since it was opened, as far as JOURNAL was running
  bool closed = false;
  std::vector<recorded_choice> choices; ///< [spec.sampling.n]
  std::uint32_t cached_tokens = 0;      ///< as tokens_released has it
  bool known = true;                    ///< as request_attached has it
  DI_FIELDS(recorded_request, m.request, m.spec, m.note, m.age_ms, m.closed, m.choices,
            m.cached_tokens, m.known)
};

struct detach_request {
  static constexpr wire_id wire{0x0514};
  static constexpr std::string_view doc =
      "Command of GATEWAY: the client left and may come back. Nothing is released until somebody "
      "attaches; after open_request::detached_ms it is cancelled. Overload: one per request.";
  request_id request;
  address gateway; ///< of whom; ignored if another has the request
  DI_FIELDS(detach_request, m.request, m.gateway)
};

struct end_choice {
  static constexpr wire_id wire{0x0515};
  static constexpr std::string_view doc =
      "Command of GATEWAY: it found the end of a choice in its text. JOURNAL ends the choice as "
      "stopped, and RANK drops it. Sent again until the end is released. Overload: one per choice.";
  request_id request;
  std::uint32_t choice = 0;
  std::uint32_t kept_tokens = 0; ///< [tokens] of the answer
  std::int32_t stop_index = -1;  ///< which stop string matched
  DI_FIELDS(end_choice, m.request, m.choice, m.kept_tokens, m.stop_index)
};

struct forget_request {
  static constexpr wire_id wire{0x0516};
  static constexpr std::string_view doc =
      "Question of GATEWAY: cancel it if it goes on, and keep nothing of it. Overload: none.";
  request_id request;
  DI_FIELDS(forget_request, m.request)
};

struct request_forgotten {
  static constexpr wire_id wire{0x0517};
  static constexpr std::string_view doc = "Answer to forget_request: nothing of it is left.";
  request_id request;
  bool existed = false;
  DI_FIELDS(request_forgotten, m.request, m.existed)
};

struct gateway_started {
  static constexpr wire_id wire{0x0518};
  static constexpr std::string_view doc =
      "Fact of GATEWAY: this life of it begins, or is still there after a restart of control. "
      "Requests of its earlier lives are detached. Overload: one per life of GATEWAY or control.";
  address gateway;
  incarnation life{}; ///< of its process
  DI_FIELDS(gateway_started, m.gateway, m.life)
};

using journal_messages =
    type_list<open_request, request_opened, tokens_committed, commit_accepted, commit_refused,
              cancel_request, release_acknowledged, get_journal, journal_state, record_view,
              view_recorded, answer_delivered, journal_written, request_known, attach_request,
              request_attached, request_taken_over, get_request, recorded_request, detach_request,
              end_choice, forget_request, request_forgotten, gateway_started>;

} // namespace di::proto
