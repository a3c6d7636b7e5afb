// SPDX-License-Identifier: Apache-2.0
// Start and end of ranks beside their neighbours.
#include "launch/rank_host.hpp"

#include <algorithm>
#include <utility>

namespace di::launch {

rank_host::rank_host(poll_loop& loop, child_events events)
    : children_{loop, events_with(std::move(events))} {
}

child_events rank_host::events_with(child_events events) {
  auto exited = std::move(events.exited);
  events.exited = [this, exited = std::move(exited)](const std::string& child, exit_state state,
                                                     const std::string& words) {
    if (const auto at = lives_.find(child); at != lives_.end()) {
      node_word gone;
      gone.kind = node_word_kind::reaped;
      gone.life = at->second;
      segments_.forget(at->second);
      lives_.erase(at);
      children_.tell_ranks(gone);
    }
    exited(child, state, words);
  };
  return events;
}

result<void> rank_host::start_rank(child_spec spec, boot_config boot) {
  if (children_.runs(spec.name))
    return fail(ec::duplicate, "{} runs already", spec.name);
  boot.life_page = true;
  spec.life_page = true;
  spec.boot = to_json(boot);
  const bool newcomer = !boot.segment_lives.empty() && !segments_.has(boot.life);
  DI_TRY(spec.segments, segments_.descriptors_for(boot));
  if (newcomer) {
    node_word here;
    here.kind = node_word_kind::segment;
    here.life = boot.life;
    children_.tell_ranks(here, segments_.reader_of(boot.life));
  }
  if (const auto started = children_.start(spec); !started.ok()) {
    segments_.forget(boot.life);
    return started;
  }
  lives_[spec.name] = boot.life;
  return {};
}

} // namespace di::launch
