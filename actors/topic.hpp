// SPDX-License-Identifier: Apache-2.0
// TOPIC: generic shell over topic_core; everything that is not a subscription is passed on.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/topic_core.hpp"

namespace di::actors {

struct topic {
  static constexpr auto kind = "topic";
  using core = engine::topic_core;
  using protocol = di::protocol<reacts_to<proto::subscribe>,    // start listening to a fact
                                reacts_to<proto::unsubscribe>>; // stop
};

} // namespace di::actors
