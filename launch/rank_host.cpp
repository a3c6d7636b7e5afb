// SPDX-License-Identifier: Apache-2.0
// Start and end of ranks beside their neighbours.
#include "launch/rank_host.hpp"

#include <algorithm>
#include <utility>

namespace di::launch {

rank_host::rank_host(poll_loop& loop, child_events events, progress_watch::stuck_fn stuck)
    : children_{loop, events_with(std::move(events))}, watch_{loop, children_, std::move(stuck)} {
}

child_events rank_host::events_with(child_events events) {
  auto lost = std::move(events.lost);
  events.lost = [this, lost = std::move(lost)](const std::string& child, const std::string& how) {
    watch_.remove(child);
    lost(child, how);
  };
  auto exited = std::move(events.exited);
  events.exited = [this, exited = std::move(exited)](const std::string& child, exit_state state,
                                                     const std::string& words) {
    if (const auto at = lives_.find(child); at != lives_.end()) {
      const auto life = at->second;
      segments_.forget(life);
      lives_.erase(at);
      tell_gone(life);
    }
    exited(child, state, words);
  };
  return events;
}

/// Neighbours let go of its segment.
void rank_host::tell_gone(incarnation life) {
  node_word gone;
  gone.kind = node_word_kind::reaped;
  gone.life = life;
  children_.tell_ranks(gone);
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
    if (newcomer)
      tell_gone(boot.life);
    return started;
  }
  lives_[spec.name] = boot.life;
  if (boot.stuck_after_ms > 0) {
    stuck_options limits;
    limits.after = std::chrono::milliseconds{boot.stuck_after_ms};
    watch_.add(spec.name, limits);
  }
  return {};
}

result<void> rank_host::start_other(const child_spec& spec, std::chrono::milliseconds stopped_max) {
  DI_TRY_VOID(children_.start(spec));
  if (stopped_max.count() > 0) {
    stuck_options limits;
    limits.after = stopped_max;
    watch_.add(spec.name, limits);
  }
  return {};
}

} // namespace di::launch
