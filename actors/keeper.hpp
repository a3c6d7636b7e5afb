// SPDX-License-Identifier: Apache-2.0
// KEEPER: shell over keeper_core that writes changes of ranks into the log.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/keeper_core.hpp"

#include <map>

namespace di::actors {

/// keeper_core, and one line in the log for each rank that changes its state.
class logged_keeper_core {
public:
  explicit logged_keeper_core(engine::keeper_options options);

  template <class M>
  requires requires(engine::keeper_core& c, const M& m, instant now, outbox& out) {
    c.on(m, now, out);
  }
  void on(const M& m, instant now, outbox& out) {
    core_.on(m, now, out);
    note();
  }
  template <class M>
  requires requires(engine::keeper_core& c, const M& m, reply_to t, instant now, outbox& out) {
    c.on(m, t, now, out);
  }
  void on(const M& m, reply_to ticket, instant now, outbox& out) {
    core_.on(m, std::move(ticket), now, out);
    note();
  }
  result<proto::keeper_state> on(const proto::get_keeper& m, instant now, outbox& out) {
    return core_.on(m, now, out);
  }
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out) {
    core_.on_answer(tag, answer, now, out);
    note();
  }
  void on_due(timer which, instant now, outbox& out) {
    core_.on_due(which, now, out);
    note();
  }
  void check() const { core_.check(); }

private:
  void note();

  engine::keeper_core core_;
  std::map<rank_id, engine::kept_state> noted_;
};

struct keeper {
  static constexpr auto kind = "keeper";
  using core = logged_keeper_core;
  using protocol =
      di::protocol<reacts_to<proto::group_formed>,   // processes that are there
                   reacts_to<proto::view_committed>, // who is in
                   reacts_to<proto::member_lost>,    // who is dead or stuck
                   reacts_to<proto::rank_exited>,    // whose process is reaped
                   reacts_to<proto::process_ready>,  // who could join
                   replies_to<proto::scale_group>::with<proto::keeper_done>,   // operator
                   replies_to<proto::drain_member>::with<proto::keeper_done>,  // operator
                   replies_to<proto::join_member>::with<proto::keeper_done>,   // operator
                   replies_to<proto::upgrade_group>::with<proto::keeper_done>, // operator
                   replies_to<proto::kill_member>::with<proto::keeper_done>,   // operator
                   replies_to<proto::get_keeper>::with<proto::keeper_state>>;  // who is how
};

} // namespace di::actors
