// SPDX-License-Identifier: Apache-2.0
// Placements for another group of ranks: what to do at once when some are lost or come, and what to
// aim at afterwards. Pure functions, so every process would compute the same.
#pragma once

#include "engine/moe/eplb.hpp"
#include "engine/moe/placement.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// The group that a repaired placement is for.
struct repair_wish {
  std::span<const placed_rank> ranks; ///< ascending by number, at least one
  epoch version{}, view{};            ///< of the new placement
  std::uint32_t redundant = 0;        ///< copies beyond one per expert; sizes the slots
};

/// A placement for other ranks in which nobody who stays loses or moves anything needlessly.
///
///   4 ranks, 8 experts, 2 slots:   0 1 | 2 3 | 4 5 | 6 7
///   rank 3 is lost (3 slots now):  0 1 6 | 2 3 7 | 4 5 -
///   it comes back:                 0 1 6 | 2 3 7 | 4 5 - | - - -
///
/// - A rank of `old` that is in the group keeps its slots as they are; so does the next life of a
///   rank that is replaced in its place. Ranks that `old` does not know begin empty.
/// - An expert that nobody holds any more gets a free slot on the rank with the fewest rows;
/// without
///   a free slot the copy with the fewest rows makes room, never the last of an expert.
/// - Slots per rank never shrink here, and grow to slots_per_rank() of the group where it has
/// become
///   smaller. Memory for them is reserved as of the smallest group that is allowed.
///
/// @param old    of any group
/// @param loads  [groups] rows that experts got lately; empty, or empty ones: all alike
/// @errors       bad_argument, limit_exceeded: as placement::from
result<placement> repaired(const placement& old, const repair_wish& wish,
                           std::span<const load_view> loads = {});

/// How many experts of a layer each rank may hold: slots_per_rank() on all alike, or less on slow
/// ones and more on others, as far as `slots_max` lets them.
/// @param slowness   [ranks] how many times as long a rank takes; empty: all alike
/// @param slots_max  that memory is reserved for on each rank
std::vector<std::uint32_t> slots_by_speed(std::uint32_t experts, std::uint32_t redundant,
                                          std::uint32_t ranks, std::span<const double> slowness,
                                          std::uint32_t slots_max);

/// Where experts should move once a repaired placement is in effect: ranks with more than they may
/// hold, or than others, give to those with fewer, and copies are made until there are as many as
/// `redundant` says, the busiest experts first. Copies beyond that stay where there is room. A
/// rank's experts end up in its first slots.
///
/// @param group  of the placement
/// @param most   [ranks] of slots_by_speed(); the group has as many slots
/// @param load   as above, of this group
/// @return       [layers, ranks, slots] with the slots that the placement has now; equal to what is
///               there if nothing is to be done
std::vector<std::uint32_t> levelled(const placement& p, std::size_t group, std::uint32_t redundant,
                                    std::span<const std::uint32_t> most,
                                    const load_view& load = {});

/// Gives every rank empty slots, until it has `slots`. @return whether it had fewer
bool widen(proto::placement_group& group, std::uint32_t slots);
/// Cuts slots that no rank uses off the end of every rank. @param slots  to keep at least
/// @return whether anything was cut
bool narrow(proto::placement_group& group, std::uint32_t slots);

} // namespace di::engine
