// SPDX-License-Identifier: Apache-2.0
// KEEPER: which rank processes shall run. It starts, fences and ends them through their node
// processes, has them admitted and dismissed by MEMBERSHIP, and carries out the operator's orders.
#pragma once

#include "engine/core/membership_core.hpp"
#include "messaging/proto/keeper.hpp"
#include "messaging/proto/node.hpp"
#include "messaging/proto/rank.hpp"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// Where a rank of the topology lives.
struct rank_home {
  rank_id rank;
  node_id node;
};

struct keeper_options {
  std::vector<rank_home> ranks; ///< of the topology, ascending; all are wanted at first
  on_loss loss = on_loss::shrink;
  std::uint32_t members_min = 1;
  bool rejoin = true;             ///< false: lost ranks come back on the operator's word only
  std::uint32_t restarts_max = 3; ///< starts of a rank after deaths: a bucket of so many …
  duration restart_window = std::chrono::minutes{10}; ///< … that fills up evenly in this time
  duration backoff_first = std::chrono::seconds{1};   ///< hold-off before a start; doubles with
                                                      ///< each death in a row …
  duration backoff_max = std::chrono::seconds{300};   ///< … up to this; a quarter more by chance
  duration quarantine = std::chrono::minutes{10}; ///< of a rank whose bucket is empty; 0: for ever
  duration start_timeout = std::chrono::seconds{10}; ///< for the node's answer to start_rank
  duration join_timeout = std::chrono::seconds{60};  ///< from start_rank to the view that has it
  duration drain_timeout =
      std::chrono::seconds{60}; ///< then a drained rank's requests are handed over
  duration end_timeout = std::chrono::seconds{5};      ///< from SIGTERM to SIGKILL
  duration ask_every = std::chrono::milliseconds{100}; ///< a draining rank, whether it is empty
  duration resend_after = std::chrono::seconds{1}; ///< kill_rank and admit_member without effect
  address membership = "/control/membership";
  std::uint64_t seed = 1; ///< of the jitter
};

/// How a rank is.
enum class kept_state : std::uint8_t {
  absent,      ///< not wanted, and no process runs
  waiting,     ///< wanted; started when its hold-off is over and nobody else joins
  starting,    ///< start_rank is asked
  proving,     ///< its process runs, loads, proves itself and makes itself known
  admitting,   ///< MEMBERSHIP is told to admit it
  member,      ///< in the view
  draining,    ///< member; takes no new requests, finishes those at hand
  leaving,     ///< dismissed, or out of the view as ordered; its process is to end
  fenced,      ///< lost, stuck or too slow to join; its process is killed until it is reaped
  quarantined, ///< died too often; comes back after a time, or on the operator's word
};
std::string_view to_string(kept_state s) noexcept;

// clang-format off
///   state        view with its life   view without it,        rank_exited            others
///                                     or member_lost
///   absent       member (recovered)   - (unheard: fenced)     -                      join | scale: waiting
///   waiting      member               -                       -                      due, nobody joins: starting
///   starting     member               -                       waiting (strike)       rank_started: proving; refused: waiting (strike);
///                                                                                    an unheard life runs: fenced
///   proving      member               -                       waiting (strike)       process_ready: admitting; late: fenced (strike)
///   admitting    member               -                       waiting (strike)       late: fenced (strike)
///   member       -                    fenced                  waiting (strike)       drain | scale | upgrade: draining
///   draining     -                    leaving                 as leaving             empty or late: dismiss_member, leaving
///   leaving      -                    kill_rank politely      absent (upgrade:       late: kill_rank
///                                                             waiting; no strike)
///   fenced       -                    -                       waiting (strike)       kill_rank again and again
///   quarantined  -                    - (unheard: fenced)     -                      time | join: waiting
// clang-format on
///
/// A strike takes a token from the rank's bucket; without one left it is quarantined (under
/// `restart`
/// also dismissed). With `rejoin` false or a rank that is not wanted it becomes absent. Only one
/// rank
/// is starting, proving or admitting at a time; under restart and restart_smaller, where the group
/// stands still, all are. A joiner that fails leaves the view as it is.
///
/// Fewer live members than members_min, and no rank that comes back by itself: the actor fails with
/// ec::gave_up and the last reason, which ends the run.
///
/// restart_smaller: a loss kills all others; when all are reaped, as many as survived are started
/// anew (the lowest that are not quarantined) and replace the group when all are ready.
///
/// Orders (scale, drain, join, upgrade): one at a time, each answered when it is done.
///
/// Owned by one shell, used on its thread only.
class keeper_core {
public:
  explicit keeper_core(keeper_options options);

  void on(const proto::group_formed& m, instant now, outbox& out);
  void on(const proto::view_committed& m, instant now, outbox& out);
  void on(const proto::member_lost& m, instant now, outbox& out);
  void on(const proto::rank_exited& m, instant now, outbox& out);
  void on(const proto::process_ready& m, instant now, outbox& out);
  void on(const proto::scale_group& m, reply_to ticket, instant now, outbox& out);
  void on(const proto::drain_member& m, reply_to ticket, instant now, outbox& out);
  void on(const proto::join_member& m, reply_to ticket, instant now, outbox& out);
  void on(const proto::upgrade_group& m, reply_to ticket, instant now, outbox& out);
  void on(const proto::kill_member& m, reply_to ticket, instant now, outbox& out);
  result<proto::keeper_state> on(const proto::get_keeper& m, instant now, outbox& out) const;
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out);
  void on_due(timer which, instant now, outbox& out);
  kept_state state(rank_id rank) const;
  void check() const;

private:
  enum class order_kind : std::uint8_t { none, scale, drain, join, upgrade };
  enum timer_kind : std::uint32_t { wake_due = 1 };
  struct kept {
    rank_home home;
    kept_state state = kept_state::absent;
    bool wanted = true;
    bool returns = false;     ///< draining, leaving: is started again (upgrade)
    bool ending = false;      ///< leaving: its process was told to end
    bool blameless = false;   ///< fenced: its end is no strike (restart_smaller)
    incarnation life{};       ///< of its process; 0: none, or not known yet
    incarnation over{};       ///< its last life that ended
    incarnation unheard{};    ///< lost by MEMBERSHIP, never known here; may still run. 0: none
    proto::view_member ready; ///< admitting: as it announced itself
    instant due{};            ///< start, deadline of the state, or end of quarantine
    instant again{};          ///< next kill_rank, admit_member, dismiss_member or get_rank
    std::uint64_t asked = 0;  ///< tag of start_rank or get_rank; 0: none is under way
    std::uint32_t deaths = 0, starts = 0, deaths_in_row = 0;
    duration credit{}; ///< of the bucket; a start costs restart_window / restarts_max
    instant credit_at{}, member_since{};
    std::string last_reason;
  };
  struct order {
    order_kind kind = order_kind::none;
    reply_to ticket;
    std::string words;         ///< for keeper_state and refusals
    std::uint32_t ranks = 0;   ///< scale
    std::vector<rank_id> todo; ///< drain, join, upgrade: still to go through, the next first
    bool begun = false;        ///< upgrade: the next is on its way out or back
  };

  kept* find(rank_id rank);
  const proto::view_member* member(const kept& k) const;
  const proto::view_member* of_rank(rank_id rank) const;
  std::size_t living() const;
  bool comes_back(const kept& k) const noexcept;
  bool is_possible(const kept& k) const noexcept;
  bool may_be_late() const;
  bool joining_now() const;
  // The ways of one rank (keeper_ways.cpp).
  void look(kept& k, bool first, instant now, outbox& out);
  void lost_unheard(kept& k, incarnation life, const std::string& reason, instant now, outbox& out);
  void exited(kept& k, const std::string& words, instant now, outbox& out);
  void strike(kept& k, instant now, outbox& out);
  void dismiss(kept& k, instant now, outbox& out);
  void rest(kept& k, instant due, outbox& out);
  void fence(kept& k, std::string reason, instant now, outbox& out);
  void kill(const kept& k, bool politely, const std::string& reason, outbox& out) const;
  void start(kept& k, instant now, outbox& out);
  void start_answered(kept& k, const result<parcel>& answer, instant now, outbox& out);
  void admit(kept& k, instant now, outbox& out);
  void drain(kept& k, bool returns, instant now, outbox& out);
  void leave(kept& k, instant now, outbox& out);
  void end_process(kept& k, instant now, outbox& out);
  bool spend(kept& k, instant now);
  duration hold_off(kept& k, instant now);
  void further(kept& k, instant now, outbox& out);
  void further_out(kept& k, instant now, outbox& out);
  std::optional<instant> next_of(const kept& k) const;
  /// What time and all that became free allow; then the timer.
  void proceed(instant now, outbox& out);
  void give_up_if_hopeless(outbox& out);
  std::uint64_t random();
  // The whole group, restart_smaller (keeper_orders.cpp).
  void regroup(instant now, outbox& out);
  void regroup_further(instant now, outbox& out);
  // Orders (keeper_orders.cpp).
  bool begin(order o, outbox& out);
  void order_further(instant now, outbox& out);
  void scale_further(instant now, outbox& out);
  void rank_order_further(instant now, outbox& out);
  void upgrade_further(instant now, outbox& out);
  void summon(kept& k, instant now, outbox& out);
  void order_failed(ec code, std::string what, outbox& out);
  void order_done(outbox& out);
  result<void> may_leave(const kept& k) const;
  bool anyone_comes() const;

  keeper_options options_;
  std::map<rank_id, kept> ranks_;
  proto::view_committed view_; ///< epoch 0: none yet
  order order_;
  bool formed_ = false;                        ///< group_formed told which processes are there
  bool regrouping_ = false;                    ///< restart_smaller is under way
  std::uint32_t regroup_ranks_ = 0;            ///< that the new group shall have
  instant regroup_again_{};                    ///< next replace_group
  std::map<std::uint64_t, rank_id> questions_; ///< tag -> rank of start_rank or get_rank
  std::uint64_t last_tag_ = 0;
  std::string last_reason_; ///< of the last loss, for giving up
  bool gave_up_ = false;
};

} // namespace di::engine
