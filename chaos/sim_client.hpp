// SPDX-License-Identifier: Apache-2.0
// A gateway of the simulator around a core that somebody else owns and looks into.
#pragma once

#include "actors/batch_gateway.hpp"
#include "actors/kit.hpp"
#include "engine/core/gateway_core.hpp"

namespace di::sim {

/// The gateway's core outlives its process: what a client has seen stays seen.
class client_core {
public:
  explicit client_core(engine::gateway_core* core) : core_{core} {}
  template <class M>
  result<void> on(const M& m, instant now, outbox& out) {
    return core_->on(m, now, out);
  }
  result<proto::gateway_state> on(const proto::get_gateway& m, instant, outbox&) {
    return core_->on(m);
  }
  result<void> on_due(timer which, instant now, outbox& out) {
    return core_->on_due(which, now, out);
  }
  void check() const { core_->check(); }

private:
  engine::gateway_core* core_;
};
struct client_type {
  static constexpr auto kind = "client";
  using core = client_core;
  using protocol = actors::batch_gateway::protocol;
};

} // namespace di::sim
