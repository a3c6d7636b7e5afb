// SPDX-License-Identifier: Apache-2.0
// SCHEDULER, JOURNAL and REBALANCER: generic shells over their cores, spawned in the control
// process with options made from the topology.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/journal_core.hpp"
#include "engine/core/rebalancer_core.hpp"
#include "engine/core/scheduler_core.hpp"

#include <memory>

namespace di::actors {

struct scheduler {
  static constexpr auto kind = "scheduler";
  using core = engine::scheduler_core;
  using protocol = di::protocol<reacts_to<proto::view_committed>,     // who is in
                                reacts_to<proto::placement_settled>,  // ranks that may be used
                                reacts_to<proto::admit_request>,      // find a rank
                                reacts_to<proto::rank_load>,          // how busy a rank is
                                reacts_to<proto::request_taken>,      // a rank has it
                                reacts_to<proto::request_settled>,    // a rank is done with it
                                reacts_to<proto::assignment_refused>, // a rank will not
                                reacts_to<proto::release_request>,    // nobody needs it any more
                                replies_to<proto::get_schedule>::with<proto::schedule>>;
};

struct journal {
  static constexpr auto kind = "journal";
  using core = engine::journal_core;
  using protocol = di::protocol<reacts_to<proto::open_request>,         // a request begins
                                reacts_to<proto::request_admitted>,     // SCHEDULER keeps it
                                reacts_to<proto::admission_refused>,    // nobody serves it
                                reacts_to<proto::request_settled>,      // its rank is done with it
                                reacts_to<proto::tokens_committed>,     // computed
                                reacts_to<proto::view_committed>,       // who is in
                                reacts_to<proto::release_acknowledged>, // shown
                                reacts_to<proto::cancel_request>,       // the client left
                                reacts_to<proto::answer_delivered>,     // for good
                                reacts_to<proto::detach_request>,       // may come back
                                reacts_to<proto::end_choice>,           // found in the text
                                reacts_to<proto::gateway_started>,      // who follows
                                reacts_to<proto::withdrawn>,            // who does no more
                                reacts_to<proto::journal_written>,      // the disk has it, or not
                                replies_to<proto::record_view>::with<proto::view_recorded>,
                                replies_to<proto::attach_request>::with<proto::request_attached>,
                                replies_to<proto::get_request>::with<proto::recorded_request>,
                                replies_to<proto::forget_request>::with<proto::request_forgotten>,
                                replies_to<proto::get_journal>::with<proto::journal_state>>;
};

struct rebalancer {
  static constexpr auto kind = "rebalancer";
  using core = engine::rebalancer_core;
  using protocol = di::protocol<reacts_to<proto::view_committed>,      // who is in
                                reacts_to<proto::placement_prepared>,  // who has loaded
                                reacts_to<proto::placement_installed>, // who follows
                                reacts_to<proto::expert_load>,         // who asks for what
                                reacts_to<proto::ranks_slow>,          // who takes long
                                replies_to<proto::get_heat>::with<proto::expert_heat>>;
};

/// Cores behind the kit's face, ready for system::spawn(). Made in serving.cpp, so that callers
/// instantiate nothing.
std::unique_ptr<core_handle> make_scheduler(engine::scheduler_options options);
std::unique_ptr<core_handle> make_journal(engine::journal_options options);
std::unique_ptr<core_handle> make_rebalancer(engine::rebalancer_options options);

} // namespace di::actors
