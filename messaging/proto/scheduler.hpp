// SPDX-License-Identifier: Apache-2.0
// Messages of SCHEDULER (0x02): which rank serves which request.
#pragma once

#include "messaging/proto/sampling.hpp"

namespace di::proto {

struct admit_request {
  static constexpr wire_id wire{0x0201};
  static constexpr std::string_view doc =
      "Command of JOURNAL: find a rank for this attempt. Answered by request_admitted or "
      "admission_refused; sent again until then. Overload: bounded queue, then admission_refused.";
  request_spec spec;
  std::uint32_t attempt = 0;             ///< from 1
  std::vector<choice_progress> progress; ///< empty for a first attempt
  std::uint64_t deadline_left_ms = 0;    ///< [ms] until its deadline; 0: it has none
  rank_id placed_rank{};                 ///< who serves this attempt already, if placed_life is set
  incarnation placed_life{};             ///< after a restart of control: nobody else may get it
  DI_FIELDS(admit_request, m.spec, m.attempt, m.progress, m.deadline_left_ms, m.placed_rank,
            m.placed_life)
};

struct request_admitted {
  static constexpr wire_id wire{0x0202};
  static constexpr std::string_view doc =
      "Fact for JOURNAL: SCHEDULER keeps the attempt, on `rank` if placed. Overload: twice per "
      "attempt.";
  request_id request;
  std::uint32_t attempt = 0;
  bool placed = false;
  rank_id rank;       ///< if placed
  incarnation life{}; ///< of that rank
  DI_FIELDS(request_admitted, m.request, m.attempt, m.placed, m.rank, m.life)
};

struct admission_refused {
  static constexpr wire_id wire{0x0203};
  static constexpr std::string_view doc =
      "Fact for JOURNAL: no rank will serve this attempt, and why: unavailable (the queue is full, "
      "or no rank will), limit_exceeded (a quota), kv_exhausted (it fits no rank), "
      "deadline_exceeded, or the refusal of a rank. Overload: one per attempt.";
  request_id request;
  std::uint32_t attempt = 0;
  ec code = ec::unavailable;
  std::string what;
  DI_FIELDS(admission_refused, m.request, m.attempt, m.code, m.what)
};

struct rank_load {
  static constexpr wire_id wire{0x0204};
  static constexpr std::string_view doc =
      "Fact of RANK: how busy it is; when it changed, at most once per step. Overload: the newest "
      "replaces older ones.";
  rank_id rank;
  incarnation life{};
  std::uint64_t report = 0;          ///< rises; an older report is ignored
  std::uint32_t running = 0;         ///< sequences with rows in steps
  std::uint32_t waiting = 0;         ///< sequences that wait for room
  std::uint64_t rows_pending = 0;    ///< [rows] of prompts not yet computed
  std::uint64_t kv_tokens_free = 0;  ///< [tokens] that still fit
  std::uint64_t kv_tokens_total = 0; ///< [tokens]
  bool draining = false;             ///< takes no new requests
  std::uint64_t rows_done = 0;       ///< [rows] computed in this life
  std::vector<rank_id> slow;         ///< other ranks whose expert calls take much longer than most
  std::vector<std::uint32_t> slow_percent; ///< [%] how long, of the median; as `slow`
  DI_FIELDS(rank_load, m.rank, m.life, m.report, m.running, m.waiting, m.rows_pending,
            m.kv_tokens_free, m.kv_tokens_total, m.draining, m.rows_done, m.slow, m.slow_percent)
};

struct request_settled {
  static constexpr wire_id wire{0x0205};
  static constexpr std::string_view doc =
      "Fact of RANK: all choices of the attempt ended there and are acknowledged, or were dropped; "
      "nothing of it is left. Overload: one per attempt.";
  request_id request;
  std::uint32_t attempt = 0;
  rank_id rank;
  incarnation life{};
  DI_FIELDS(request_settled, m.request, m.attempt, m.rank, m.life)
};

struct assignment_refused {
  static constexpr wire_id wire{0x0206};
  static constexpr std::string_view doc =
      "Answer of RANK to assign_request that it will not serve. Overload: one per assign_request.";
  request_id request;
  std::uint32_t attempt = 0;
  rank_id rank;
  incarnation life{};
  ec code = ec::unavailable; ///< unavailable, stale_epoch: another rank may; else it is final
  std::string what;
  DI_FIELDS(assignment_refused, m.request, m.attempt, m.rank, m.life, m.code, m.what)
};

struct release_request {
  static constexpr wire_id wire{0x0207};
  static constexpr std::string_view doc =
      "Command of JOURNAL: the request is closed (ended, cancelled or failed); forget it, and "
      "withdraw it from its rank if `withdraw`. Overload: one per request.";
  request_id request;
  bool withdraw = false;
  DI_FIELDS(release_request, m.request, m.withdraw)
};

struct get_schedule {
  static constexpr wire_id wire{0x0208};
  static constexpr std::string_view doc = "Question: who serves what. Overload: none.";
  DI_FIELDS(get_schedule)
};

struct schedule {
  static constexpr wire_id wire{0x0209};
  static constexpr std::string_view doc = "Answer to get_schedule.";
  epoch view{};
  std::uint64_t queued = 0;            ///< requests without a rank
  std::vector<rank_load> ranks;        ///< in order of rank
  std::vector<std::uint32_t> assigned; ///< requests per rank, as `ranks`
  double balance = 0;                  ///< most rows_done of a rank over their mean; 0: none done
  DI_FIELDS(schedule, m.view, m.queued, m.ranks, m.assigned, m.balance)
};

struct request_taken {
  static constexpr wire_id wire{0x020A};
  static constexpr std::string_view doc =
      "Answer of RANK to assign_request that it serves the attempt. Overload: one per "
      "assign_request.";
  request_id request;
  std::uint32_t attempt = 0;
  rank_id rank;
  incarnation life{};
  DI_FIELDS(request_taken, m.request, m.attempt, m.rank, m.life)
};

struct ranks_slow {
  static constexpr wire_id wire{0x020B};
  static constexpr std::string_view doc =
      "Fact of SCHEDULER to REBALANCER: the ranks that most others find slow; all others are not. "
      "They get less to do, and stay members. Overload: one per change.";
  std::vector<rank_id> ranks;         ///< ascending
  std::vector<incarnation> lives;     ///< one per rank
  std::vector<std::uint32_t> percent; ///< [%] how long their expert calls take, of the median
  DI_FIELDS(ranks_slow, m.ranks, m.lives, m.percent)
};

using scheduler_messages = type_list<admit_request, request_admitted, admission_refused, rank_load,
                                     request_settled, assignment_refused, release_request,
                                     get_schedule, schedule, request_taken, ranks_slow>;

} // namespace di::proto
