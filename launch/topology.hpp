// SPDX-License-Identifier: Apache-2.0
// The topology file: which model runs on which hosts with how many ranks. Pure: reads text, starts
// nothing.
#pragma once

#include "launch/gateway_keys.hpp"
#include "launch/yaml_tree.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/sampling.hpp"

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::launch {

using std::chrono::nanoseconds;

enum class launcher_kind : std::uint8_t { automatic, local, ssh, agent };
enum class journal_loss : std::uint8_t { pause, memory };
enum class rank_loss : std::uint8_t { shrink, restart_smaller, restart };

std::string_view to_string(launcher_kind kind) noexcept;
std::string_view to_string(rank_loss policy) noexcept;

/// One entry of `cluster.nodes`; a range of hosts is still one entry.
struct node_entry {
  std::string hosts;       ///< as written: localhost, gpu[001-008]
  std::string address;     ///< where other hosts reach it; empty: the host's name
  std::uint32_t ranks = 0; ///< on each host
  std::uint32_t cores = 0; ///< 0: what the host has
  place at;
};

/// One entry of `actors`: a user's actor type, spawned in the control process.
struct actor_entry {
  std::string kind;                                        ///< as registered, e.g. token_meter
  std::string at;                                          ///< its path, e.g. /cluster/meter
  std::vector<std::string> listen;                         ///< message names it is subscribed to
  std::vector<std::pair<std::string, std::string>> config; ///< nested keys joined with dots
  std::uint32_t restart_max = 0;                           ///< restarts within the window
  std::uint32_t restart_window_ms = 0;
  place where;
};

/// A checked topology. Every field is documented by `dilaunch explain`; the defaults stand there
/// only. Plain data.
struct topology {
  std::string file; ///< as given; named in errors
  std::string name;

  std::string model_path;     ///< absolute, or relative to the working directory like `file`
  std::string tokenizer_path; ///< empty: tokenizer.json beside the model

  launcher_kind launcher = launcher_kind::automatic;
  std::vector<node_entry> nodes;
  std::uint32_t port_base = 0, port_range = 0;
  std::vector<std::string> ssh_command;
  std::string ssh_program;
  nanoseconds start_timeout{};
  bool shared_memory = true; ///< between ranks of one host
  std::uint64_t segment_bytes = 0;

  std::uint32_t ep = 0; ///< ranks in all; always set
  std::uint32_t redundant_experts = 0;
  std::string rebalance; ///< engine::parse_rebalance() takes it
  std::uint32_t rebalance_window = 0, rebalance_interval = 0, rebalance_moves = 0;
  std::uint32_t threads = 0; ///< 0: max(1, cores / ranks of the host)
  std::uint32_t max_sequences = 0;
  std::uint32_t step_rows = 0;
  std::uint32_t prefill_rows = 0;
  std::string speculation; ///< engine::parse_speculation() takes it
  nanoseconds step_time{}; ///< 0: prompt chunks go by rows alone
  nanoseconds profile{};   ///< of steps at start, with varlen; 0: none
  std::uint32_t steps_in_flight = 0;
  proto::prefill_mode prefill = proto::prefill_mode::full;
  std::uint32_t prefill_keep = 0; ///< [rows] of compact prefill; 0: the model's default

  std::uint32_t queue_max = 0;           ///< [requests] without a rank
  std::uint64_t tenant_choices_max = 0;  ///< [choices] open; 0: no bound
  std::uint64_t gateway_choices_max = 0; ///< [choices] open; 0: no bound
  nanoseconds priority_step{};

  std::uint32_t page_tokens = 0;
  std::uint64_t kv_room_bytes = 0; ///< 0: max_sequences of full context
  proto::prefix_mode prefix = proto::prefix_mode::off;
  std::uint64_t snapshot_bytes = 0;
  std::uint32_t kv_replicas = 0;
  std::uint64_t kv_replica_bandwidth = 0; ///< [bytes/s]
  std::uint64_t kv_replica_room = 0;

  rank_loss on_rank_loss = rank_loss::shrink;
  std::uint32_t min_ep = 0;
  bool rejoin = false;
  nanoseconds evidence_window{}, join_timeout{}, stuck_after{};
  std::uint32_t restart_max = 0;
  nanoseconds restart_window{}, restart_backoff{}, restart_backoff_max{}, quarantine{};
  nanoseconds drain_timeout{}, heartbeat_every{}, heartbeat_suspect{}, lease{}, lease_renew{};

  std::string journal_path; ///< like model_path; empty: in the run directory
  journal_loss journal_on_error = journal_loss::pause;
  bool journal_sync = false; ///< fsync per group
  std::uint64_t journal_segment_bytes = 0, journal_size_bytes = 0;

  gateway_keys gateway;

  bool batch_invariant = true;
  std::string log_level;
  bool log_counters = false;

  std::vector<std::string> plugins; ///< like model_path
  std::vector<actor_entry> actors;

  std::vector<std::string> sets;       ///< as given; named in errors
  std::map<std::string, place> places; ///< where each key that was given stands, e.g. kv.room
  place ep_at, speculation_at, rebalance_at, model_at,
      redundant_at; ///< for checks against the model

  /// Where to look for a contradiction of several keys: the last `--set` among them, else the first
  /// that was given at all, else `fallback`.
  place blame(std::initializer_list<std::string> keys, const place& fallback) const;
};

/// What reading a topology gave: a value exactly if there are no problems.
struct topology_outcome {
  std::optional<topology> value;
  std::vector<problem> problems; ///< all of them, in the order of their places
};

/// Reads and checks a topology. Never throws; text is untrusted.
///
/// @param text  the file's content
/// @param file  its path: base of relative paths, and named in errors
/// @param sets  overrides `key=value`, e.g. `roles.decode.ep=2`, `cluster.nodes[0].ranks=2`
topology_outcome read_topology(std::string_view text, const std::string& file,
                               const std::vector<std::string>& sets = {});

/// One line per problem: `file:line:column: what`, or `--set key=value: what`.
std::string render(const std::vector<problem>& problems, const std::string& file,
                   const std::vector<std::string>& sets);

/// The same of one defect that was found later, e.g. in the model.
std::string located(const topology& t, const place& at, const std::string& what);
std::string located(const topology& t, const place& at, const std::vector<std::string>& sets,
                    const std::string& what);
/// The place alone: `file:line:column` or `--set key=value`.
std::string shown_place(const topology& t, const place& at);

/// read_topology of a file; all problems in one error, as render() writes them.
/// @errors io_error, bad_config
result<topology> load_topology(const std::string& file, const std::vector<std::string>& sets = {});

} // namespace di::launch
