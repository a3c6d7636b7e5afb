// SPDX-License-Identifier: Apache-2.0
// Messages of EXPERT_SHARD (0x04): expert calls and which experts live where.
#pragma once

#include "messaging/base/error.hpp"
#include "messaging/proto/message.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace di::proto {

struct expert_batch {
  static constexpr wire_id wire{0x0401};
  static constexpr std::string_view doc =
      "Call of RANK: routed experts of one layer for some rows. Pure and idempotent; answered by "
      "expert_rows, expert_moved or expert_failed. Overload: each call reserves room for its "
      "answer; "
      "open calls are bounded per rank.";
  call_id call;       ///< unique per caller incarnation
  rank_id caller;     ///< answers go to /rank/<caller>/rank
  incarnation life{}; ///< of the caller
  epoch placement{};  ///< version that the caller follows
  layer_id layer;
  bool decoding = false;             ///< rows somebody waits for token by token; they go first
  std::uint32_t rows = 0;            ///< rows in codes and scales
  std::uint32_t hidden = 0;          ///< width of a row
  std::vector<std::uint32_t> row;    ///< [entries] row of codes, [0, rows)
  std::vector<std::uint32_t> expert; ///< [entries] routed expert; ascending within a row
  std::vector<float> weight;         ///< [entries] routing weight
  shared_bytes codes;                ///< [rows, hidden] e4m3
  shared_bytes scales;               ///< [rows, hidden / 32] e8m0
  DI_FIELDS(expert_batch, m.call, m.caller, m.life, m.placement, m.layer, m.decoding, m.rows,
            m.hidden, m.row, m.expert, m.weight, m.codes, m.scales)
};

struct expert_rows {
  static constexpr wire_id wire{0x0402};
  static constexpr std::string_view doc =
      "Answer to expert_batch: one row per entry, in its order. Overload: room is reserved by the "
      "call.";
  call_id call;
  rank_id holder;     ///< who computed it
  incarnation life{}; ///< of the holder
  shared_bytes rows;  ///< [entries, hidden] bf16
  DI_FIELDS(expert_rows, m.call, m.holder, m.life, m.rows)
};

struct expert_moved {
  static constexpr wire_id wire{0x0403};
  static constexpr std::string_view doc = "Answer to expert_batch: an expert of it is not held "
                                          "here; nothing was computed. Overload: one "
                                          "per call.";
  call_id call;
  rank_id holder;                     ///< who answers
  incarnation life{};                 ///< of the one who answers
  epoch placement{};                  ///< version that it follows
  std::vector<std::uint32_t> missing; ///< experts of the call that are not held
  DI_FIELDS(expert_moved, m.call, m.holder, m.life, m.placement, m.missing)
};

struct expert_failed {
  static constexpr wire_id wire{0x0404};
  static constexpr std::string_view doc = "Answer to expert_batch that makes no sense (sizes, "
                                          "layer, expert numbers). Overload: one per "
                                          "call.";
  call_id call;
  rank_id holder;
  incarnation life{};
  ec code = ec::bad_argument;
  std::string what;
  DI_FIELDS(expert_failed, m.call, m.holder, m.life, m.code, m.what)
};

struct ask_call {
  static constexpr wire_id wire{0x0405};
  static constexpr std::string_view doc = "Question of RANK about a call that is late while its "
                                          "holder lives. Overload: one per call and "
                                          "interval.";
  call_id call;
  rank_id caller;
  incarnation life{}; ///< of the caller
  DI_FIELDS(ask_call, m.call, m.caller, m.life)
};

struct call_known {
  static constexpr wire_id wire{0x0406};
  static constexpr std::string_view doc = "Answer to ask_call. Overload: one per ask_call.";
  call_id call;
  bool queued = false; ///< it waits or runs; false: the call or its answer was lost, call again
  DI_FIELDS(call_known, m.call, m.queued)
};

/// Experts of one kind of layers over the ranks: slot s of rank i holds expert_of_slot[i * slots +
/// s].
struct placement_group {
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 0; ///< layers first_layer .. first_layer + layers - 1
  std::uint32_t experts = 0;
  std::uint32_t slots = 0;                   ///< per rank
  std::vector<std::uint32_t> expert_of_slot; ///< [layers or 1, ranks, slots]; 1: same for all
  DI_FIELDS(placement_group, m.first_layer, m.layers, m.experts, m.slots, m.expert_of_slot)
};

struct placement_published {
  static constexpr wire_id wire{0x0410};
  static constexpr std::string_view doc =
      "Fact of REBALANCER: which rank holds which expert from now on. Answered by "
      "placement_installed. Overload: the newest replaces older ones.";
  epoch placement{};              ///< version, rises
  epoch view{};                   ///< membership view that it was made for
  std::vector<rank_id> ranks;     ///< ascending
  std::vector<incarnation> lives; ///< one per rank
  std::vector<placement_group> groups;
  DI_FIELDS(placement_published, m.placement, m.view, m.ranks, m.lives, m.groups)
};

struct placement_installed {
  static constexpr wire_id wire{0x0411};
  static constexpr std::string_view doc = "Fact of RANK and EXPERT_SHARD: follows this placement. "
                                          "Overload: one per placement_published.";
  address who;
  epoch placement{};
  incarnation life{};
  DI_FIELDS(placement_installed, m.who, m.placement, m.life)
};

struct get_shard {
  static constexpr wire_id wire{0x0412};
  static constexpr std::string_view doc = "Question: what does the shard do. Overload: none.";
  DI_FIELDS(get_shard)
};

struct shard_state {
  static constexpr wire_id wire{0x0413};
  static constexpr std::string_view doc = "Answer to get_shard.";
  rank_id rank;
  epoch placement{};
  std::uint64_t calls = 0;   ///< answered
  std::uint64_t entries = 0; ///< expert rows computed
  std::uint64_t batches = 0; ///< grouped GEMMs run
  std::uint32_t queued = 0;  ///< calls not yet answered
  DI_FIELDS(shard_state, m.rank, m.placement, m.calls, m.entries, m.batches, m.queued)
};

struct placement_settled {
  static constexpr wire_id wire{0x0414};
  static constexpr std::string_view doc = "Fact of REBALANCER: all ranks and shards follow this "
                                          "placement; SCHEDULER may use its ranks, "
                                          "the batch GATEWAY begins. Overload: one per placement.";
  epoch placement{};
  epoch view{};
  std::vector<rank_id> ranks;     ///< ascending
  std::vector<incarnation> lives; ///< one per rank
  DI_FIELDS(placement_settled, m.placement, m.view, m.ranks, m.lives)
};

struct work_due {
  static constexpr wire_id wire{0x0415};
  static constexpr std::string_view doc = "Note of RANK or EXPERT_SHARD to itself: go on once the "
                                          "mail at hand is read. Never leaves the "
                                          "process. Overload: one at a time.";
  std::uint64_t turn = 0;
  DI_FIELDS(work_due, m.turn)
};

/// Layers with the same number of experts in an expert_load.
struct load_group {
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  DI_FIELDS(load_group, m.first_layer, m.layers, m.experts)
};

struct expert_load {
  static constexpr wire_id wire{0x0416};
  static constexpr std::string_view doc =
      "Fact of RANK to REBALANCER: how many rows it routed to each expert in its last steps. "
      "Overload: one per window of steps; a lost one is missed by nobody.";
  rank_id rank;
  incarnation life{};
  epoch placement{};        ///< version that the window ended under
  std::uint64_t window = 0; ///< number of the window, from 1, per incarnation
  std::uint32_t steps = 0;  ///< in the window
  std::uint32_t bins = 0;   ///< equal parts of the window, in order
  std::vector<load_group> groups;
  std::string rows; ///< [groups][bins, layers, experts] as engine/moe/load_window.hpp packs them
  DI_FIELDS(expert_load, m.rank, m.life, m.placement, m.window, m.steps, m.bins, m.groups, m.rows)
};

struct placement_proposed {
  static constexpr wire_id wire{0x0417};
  static constexpr std::string_view doc =
      "Command of REBALANCER to EXPERT_SHARD: load what the next placement gives you beside what "
      "you hold. Answered by placement_prepared. Overload: the newest replaces older ones.";
  placement_published next;
  DI_FIELDS(placement_proposed, m.next)
};

struct placement_prepared {
  static constexpr wire_id wire{0x0418};
  static constexpr std::string_view doc =
      "Fact of EXPERT_SHARD: all experts of a proposed placement are loaded. Overload: one per "
      "placement_proposed.";
  rank_id rank;
  incarnation life{};
  epoch placement{};
  std::uint32_t loaded = 0; ///< slots that were loaded for it
  DI_FIELDS(placement_prepared, m.rank, m.life, m.placement, m.loaded)
};

struct get_heat {
  static constexpr wire_id wire{0x0419};
  static constexpr std::string_view doc =
      "Question to REBALANCER: which experts have been busy. Overload: none.";
  DI_FIELDS(get_heat)
};

/// Layers with the same number of experts in an expert_heat.
struct heat_group {
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::vector<std::uint32_t> rows;   ///< [layers, experts] rows of late; older ones count less
  std::vector<std::uint32_t> copies; ///< [layers, experts] slots that hold it
  DI_FIELDS(heat_group, m.first_layer, m.layers, m.experts, m.rows, m.copies)
};

struct expert_heat {
  static constexpr wire_id wire{0x041A};
  static constexpr std::string_view doc =
      "Answer to get_heat. Without windows of loads (rebalancing is off) all rows are 0.";
  epoch placement{};
  epoch view{};
  bool counted = false;                 ///< false: nobody reports loads
  std::vector<rank_id> ranks;           ///< ascending
  std::vector<std::uint64_t> rank_rows; ///< [ranks] rows of the experts that a rank holds, a row of
                                        ///< several copies shared evenly
  std::vector<heat_group> groups;
  DI_FIELDS(expert_heat, m.placement, m.view, m.counted, m.ranks, m.rank_rows, m.groups)
};

using expert_shard_messages =
    type_list<expert_batch, expert_rows, expert_moved, expert_failed, ask_call, call_known,
              placement_published, placement_installed, get_shard, shard_state, placement_settled,
              work_due, expert_load, placement_proposed, placement_prepared, get_heat, expert_heat>;

} // namespace di::proto
