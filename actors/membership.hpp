// SPDX-License-Identifier: Apache-2.0
// MEMBERSHIP: generic shell over membership_core.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/membership_core.hpp"

namespace di::actors {

struct membership {
  static constexpr auto kind = "membership";
  using core = engine::membership_core;
  using protocol =
      di::protocol<reacts_to<proto::group_formed>,                                 // all are there
                   replies_to<proto::get_view>::with<proto::view_committed>,       // who is in
                   replies_to<proto::check_member>::with<proto::member_confirmed>, // is this life
                                                                                   // in
                   reacts_to<proto::member_lost>,                                  // a certificate
                   reacts_to<proto::member_stuck>,     // no progress, as its node says
                   reacts_to<proto::member_suspected>, // a hint
                   reacts_to<proto::admit_member>,     // a fresh life is ready
                   reacts_to<proto::dismiss_member>,   // go on without
                   reacts_to<proto::replace_group>>;   // these lives from now on
};

} // namespace di::actors
