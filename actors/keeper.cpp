// SPDX-License-Identifier: Apache-2.0
// The log of KEEPER.
#include "actors/keeper.hpp"

#include "messaging/base/log.hpp"

namespace di::actors {

logged_keeper_core::logged_keeper_core(engine::keeper_options options) : core_{std::move(options)} {
}

void logged_keeper_core::note() {
  outbox none;
  const auto state = core_.on(proto::get_keeper{}, {}, none);
  for (const auto& r : state->ranks) {
    const auto now_is = core_.state(r.rank);
    auto& was = noted_.try_emplace(r.rank, engine::kept_state::absent).first->second;
    if (was == now_is)
      continue;
    const bool trouble =
        now_is == engine::kept_state::fenced || now_is == engine::kept_state::quarantined;
    const bool quiet = was == engine::kept_state::absent && now_is == engine::kept_state::member
                       && r.starts == 0; // the first group
    was = now_is;
    if (quiet)
      continue;
    const auto level = trouble ? log::level::warn : log::level::info;
    if (log::enabled(level))
      log::write(level, "rank_state",
                 {{"rank", r.rank.v},
                  {"state", r.state},
                  {"view", state->view.v},
                  {"deaths", r.deaths},
                  {"starts", r.starts},
                  {"reason", r.last_reason}});
  }
}

} // namespace di::actors
