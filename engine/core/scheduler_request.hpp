// SPDX-License-Identifier: Apache-2.0
// One request as SCHEDULER follows it; for the sources of scheduler_core only.
#pragma once

#include "engine/core/scheduler_core.hpp"

#include <algorithm>

namespace di::engine {

struct scheduler_core::request {
  proto::admit_request what;
  queue_place place;
  std::optional<placed_rank> assigned;
  bool confirmed = false;      ///< the rank has shown that it has it
  bool reported = false;       ///< the rank's reports count it
  bool ahead = false;          ///< the rank knows a newer view: asked again with that one
  epoch sent_view{};           ///< view of the last assignment
  std::uint32_t overtaken = 0; ///< choices that were placed while this found no room
  instant sent;
  duration wait{}; ///< until it is sent again, unless it is confirmed
  std::optional<instant> deadline;
  struct refusal {
    incarnation life{};       ///< of the rank; a later one is asked again
    std::uint64_t report = 0; ///< until which it counts; for_ever: it is too large for this rank
    bool stale = false;       ///< it knows another view; counts until SCHEDULER's next at most
    instant at;
    static constexpr std::uint64_t for_ever = ~std::uint64_t{0};
    bool final() const { return report == for_ever; }
  };
  std::map<rank_id, refusal> refused_by;
  error last_refusal{ec::unavailable, "no rank serves"};

  /// Forgets those that are not final and older than `age`. @return whether such are left
  bool forget_refusals(duration age, instant now) {
    std::erase_if(refused_by,
                  [&](const auto& x) { return !x.second.final() && now - x.second.at >= age; });
    return std::any_of(refused_by.begin(), refused_by.end(),
                       [](const auto& x) { return !x.second.final(); });
  }
  /// The life that has the attempt already.
  placed_rank named() const { return {what.placed_rank, what.placed_life}; }
  bool is_named() const { return what.placed_life != incarnation{}; }
  std::uint64_t choices() const { return what.spec.sampling.n; }
  std::uint64_t prompt_rows() const { return choices() * what.spec.prompt.size(); }
  double prompt_squares() const {
    const auto rows = static_cast<double>(what.spec.prompt.size());
    return static_cast<double>(choices()) * rows * rows;
  }
  std::uint64_t kv_tokens(std::uint32_t expected_output) const {
    return choices()
           * (what.spec.prompt.size() + std::min(what.spec.sampling.max_tokens, expected_output));
  }
};

} // namespace di::engine
