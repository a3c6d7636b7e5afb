// SPDX-License-Identifier: Apache-2.0
// Starting the actors of serving in a process: from a checkpoint folder and a few settings to
// spawned actors. Used by rank and control processes and by tests.
#pragma once

#include "actors/batch_gateway.hpp"
#include "actors/system.hpp"
#include "engine/core/journal_core.hpp"
#include "engine/core/rebalancer_core.hpp"
#include "engine/core/scheduler_core.hpp"
#include "engine/core/step_settings.hpp"
#include "engine/model/loaded_model.hpp"
#include "engine/text/tokenizer.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace di::actors {

/// What the control process must know of a model: no weights.
struct model_outline {
  engine::model_spec spec;
  std::shared_ptr<const engine::tokenizer> words; ///< null: the folder has no tokenizer.json
  std::vector<token_id> eos_ids;

  engine::batch_limits limits() const {
    return {words.get(), static_cast<std::size_t>(spec.vocab_size),
            static_cast<std::uint32_t>(spec.max_position_embeddings),
            static_cast<std::uint32_t>(spec.draft_layers() > 0 ? spec.dspark_block_size : 0)};
  }
};

/// Reads config.json of a checkpoint folder and its tokenizer.
/// @param tokenizer  another tokenizer file; empty: tokenizer.json of the folder, if there is one
/// @errors those of parse_model_spec() and tokenizer::load(); io_error
result<model_outline> read_model_outline(const std::filesystem::path& folder,
                                         const std::filesystem::path& tokenizer = {});

struct control_settings {
  std::uint32_t redundant_experts = 0;
  std::uint32_t ranks_min = 1; ///< min_ep: memory is reserved for the experts of so few ranks
  engine::rebalance_policy rebalance;
  engine::scheduler_options scheduler;
  engine::journal_options journal;
  std::vector<address> gateways = {"/gateway/0"}; ///< hear of settled placements; may be empty
  std::function<void(const error&)> ended;        ///< of each actor, once, when it ends
};

/// Spawns /control/rebalancer, /control/scheduler and /control/journal. They begin when MEMBERSHIP
/// sends view_committed to /control/rebalancer. @errors duplicate
result<void> spawn_control_serving(system& actors, const model_outline& model,
                                   const control_settings& settings);

struct batch_settings {
  address path = "/gateway/0";
  std::string prompts;           ///< the text of the file
  bool keep = false;             ///< gateway_options::keep: there is a journal on disk
  bool tell_delivered = true;    ///< see gateway_options
  bool resumable = false;        ///< see batch_parts
  std::size_t lines_written = 0; ///< see batch_parts
  std::size_t lines_failed = 0;
  std::uint32_t window = 128; ///< requests open at a time; 64 or more per rank keep all ranks busy
  engine::request_defaults defaults;
  std::function<result<void>(std::string_view)> write; ///< see batch_parts
  std::function<void(std::string_view)> show;
  duration show_every = std::chrono::milliseconds{200};
  std::function<void(const proto::batch_finished&)> finished;
  std::function<void(const engine::batch&)> read; ///< once, with what was read of `prompts`
  std::function<void(std::size_t, std::size_t)> broke_off; ///< see batch_parts
  std::function<void(const error&)> ended;  ///< once, when GATEWAY ends, whatever the reason
  std::function<std::uint64_t()> draw_seed; ///< for lines without a seed; empty: real_env()
};

/// Spawns the batch GATEWAY. It begins when the placement is settled. @errors duplicate
result<void> spawn_batch_gateway(system& actors, const model_outline& model,
                                 batch_settings settings);

struct rank_settings {
  rank_id rank;
  incarnation life{};
  unsigned threads = 1;           ///< of each of its two streams
  std::uint64_t kv_tokens = 0;    ///< [tokens]; 0: room for eight sequences of full context, at
                                  ///< most 512 Ki
  std::uint32_t step_rows = 256;  ///< [rows]
  std::uint32_t prefill_rows = 0; ///< [rows] of one prompt in one step; 0: step_rows
  std::uint32_t running_max = 64; ///< [sequences]
  engine::step_settings steps;
  engine::rebalance_policy rebalance;      ///< as REBALANCER has it
  std::uint32_t kv_replicas = 0;           ///< copies of sealed KV on other ranks
  std::uint64_t kv_replica_bandwidth = 0;  ///< [bytes/s] of them pushed; 0: as KV_AGENT has it
  std::uint64_t kv_replica_room = 0;       ///< [bytes] held for others; 0: as KV_AGENT has it
  address listeners = topic_address;       ///< gets step_finished
  std::function<void(const error&)> ended; ///< once, if RANK or EXPERT_SHARD ends
  progress_cell* rank_progress = nullptr;  ///< for the node process's watcher; outlives the actors
  progress_cell* shard_progress = nullptr;
};

/// Spawns /rank/<r>/rank and /rank/<r>/expert_shard, each on a thread of its own, and
/// /rank/<r>/kv_agent.
/// @errors duplicate, limit_exceeded (the KV pool does not fit)
result<void> spawn_rank_serving(system& actors, std::shared_ptr<const engine::loaded_model> weights,
                                const model_outline& model, const rank_settings& settings);

} // namespace di::actors
