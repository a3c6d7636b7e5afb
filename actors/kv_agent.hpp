// SPDX-License-Identifier: Apache-2.0
// KV_AGENT: moves KV pieces between ranks. One per rank process, at /rank/<r>/kv_agent.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/kv_agent_core.hpp"

#include <memory>

namespace di::actors {

struct kv_agent {
  static constexpr auto kind = "kv_agent";
  using core = engine::kv_agent_core;
  using protocol = di::protocol<reacts_to<proto::view_committed>, // who is there
                                reacts_to<proto::pages_sealed>,   // keep copies of these elsewhere
                                reacts_to<proto::reserve_pages>,  // keep room for these
                                reacts_to<proto::pages_reserved>, // what a buddy wants
                                reacts_to<proto::push_pages>,     // keep these
                                reacts_to<proto::pages_landed>,   // what a buddy has
                                reacts_to<proto::release_pages>,  // an attempt is over
                                reacts_to<proto::pages_released>, // a buddy has forgotten it
                                reacts_to<proto::restore_pages>, // get what is held of this request
                                reacts_to<proto::fetch_pages>, // what is here of these, and give it
                                reacts_to<proto::pages_fetched>, // what a buddy had
                                replies_to<proto::get_kv_agent>::with<proto::kv_agent_state>>;
};

/// Ready for system::spawn().
std::unique_ptr<core_handle> make_kv_agent(engine::kv_agent_options options);

} // namespace di::actors
