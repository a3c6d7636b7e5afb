// SPDX-License-Identifier: Apache-2.0
// Which experts an EXPERT_SHARD holds while placements change: what it follows, what is being
// loaded for the next one, and what it may let go of. Loads nothing itself.
#pragma once

#include "engine/moe/placement.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace di::engine {

/// An expert of a layer.
struct layer_expert {
  layer_id layer;
  std::uint32_t expert = 0;
  friend constexpr auto operator<=>(const layer_expert&, const layer_expert&) = default;
};

/// States of an expert here:
///
// clang-format off
///   absent   --proposed-->                       loading
///   loading  --loaded-->                         loaded     (calls of ranks that switch first are taken)
///   loading, absent --placement installed-->     held
///   loaded   --placement installed-->            held
///   held     --no placement that is followed
///              by anyone has it-->               draining   (calls at hand are computed, new ones refused)
///   loaded   --another placement is proposed-->  draining
///   draining --no call on it is open-->          released, absent
///   draining --proposed or installed again-->    loading or held
// clang-format on
///
/// Used by expert_shard_core on its thread only.
class expert_slots {
public:
  explicit expert_slots(rank_id self) : self_{self} {}

  /// The placement that comes next. An older or known one changes nothing.
  void propose(std::shared_ptr<const placement> p);
  /// Followed from now on; those before are held until they are retired. @return false: not newer
  bool install(std::shared_ptr<const placement> p);
  /// Every rank follows this version, and no call made under an older one is open.
  void retire(epoch settled);

  const placement* current() const noexcept { return kept_.empty() ? nullptr : kept_.back().get(); }
  /// Whether a placement that somebody may still follow has it here.
  bool holds(layer_id layer, std::uint32_t expert) const;

  /// Whether it is at hand: held, draining, or loaded for what is proposed.
  bool has(layer_id layer, std::uint32_t expert) const;

  /// An expert to load next; none if the proposal is complete or there is none.
  std::optional<layer_expert> next_load() const;
  const std::deque<layer_expert>& loads() const noexcept { return loads_; } ///< in order
  /// next_load() is loaded.
  void loaded();
  /// The proposal that is complete since the last call, if one is.
  struct prepared {
    epoch version{};
    std::uint32_t loaded = 0; ///< experts that had to be
  };
  std::optional<prepared> take_prepared();

  /// Experts to let go of, given once. @param is_open  whether a call on it is open
  template <class F>
  std::vector<layer_expert> take_released(F&& is_open) {
    std::vector<layer_expert> out;
    for (auto at = draining_.begin(); at != draining_.end();)
      if (is_open(*at)) {
        ++at;
      } else {
        out.push_back(*at);
        at = draining_.erase(at);
      }
    return out;
  }
  std::size_t draining() const noexcept { return draining_.size(); }
  std::size_t followed() const noexcept { return kept_.size(); }

private:
  static constexpr std::size_t kept_max = 8; ///< placements that are not retired
  std::vector<layer_expert> held_by(const placement& p) const;
  void let_go(const placement& p);

  rank_id self_;
  std::vector<std::shared_ptr<const placement>> kept_; ///< versions rise; the last is followed
  std::shared_ptr<const placement> proposed_;
  std::deque<layer_expert> loads_; ///< of the proposal, not yet loaded
  std::uint32_t loaded_ = 0;
  bool prepared_ = false; ///< and not yet taken
  std::set<layer_expert> draining_;
};

} // namespace di::engine
