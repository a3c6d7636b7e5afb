// SPDX-License-Identifier: Apache-2.0
// Rows of the key table. Adding a key = adding a row here and a field in topology.hpp.
#include "launch/explain.hpp"

#include "launch/explain_rows.hpp"
#include "launch/foreign_names.hpp"
#include "launch/units.hpp"
#include "messaging/base/limits.hpp"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <vector>

namespace di::launch {
namespace {

using t_ = topology;
using s_ = const scalar&;
using i_ = std::size_t;

constexpr std::int64_t ms = 1'000'000, second = 1'000 * ms;

launcher_kind launcher_of(const std::string& s) {
  return s == "local"   ? launcher_kind::local
         : s == "ssh"   ? launcher_kind::ssh
         : s == "agent" ? launcher_kind::agent
                        : launcher_kind::automatic;
}
rank_loss rank_loss_of(const std::string& s) {
  return s == "restart"           ? rank_loss::restart
         : s == "restart_smaller" ? rank_loss::restart_smaller
                                  : rank_loss::shrink;
}

proto::prefix_mode prefix_of(const std::string& s) {
  return s == "off"       ? proto::prefix_mode::off
         : s == "bounded" ? proto::prefix_mode::bounded
                          : proto::prefix_mode::exact;
}

// clang-format off
const key_row own_rows[] = {
  {"apiVersion", key_kind::choice, "", "Version of this file format.",
   [](t_&, i_, s_) {}, 0, 0, "di/v1", true},
  {"name", key_kind::text, "(the file's name)", "Name of the cluster in logs and status; letters, digits, - and _.",
   [](t_& t, i_, s_ v) { t.name = v.text; }},

  {"model", key_kind::section, "", "The checkpoint to serve.", nullptr, 0, 0, "", true},
  {"model.path", key_kind::file_path, "", "Folder with config.json and safetensors files; relative to this file.",
   [](t_& t, i_, s_ v) { t.model_path = v.text; t.model_at = v.at; }, 0, 0, "", true, "dir|checkpoint|weights"},
  {"model.tokenizer", key_kind::file_path, "(tokenizer.json in model.path)", "Tokenizer file; relative to this file.",
   [](t_& t, i_, s_ v) { t.tokenizer_path = v.text; }},

  {"cluster", key_kind::section, "", "Hosts and how processes get there.", nullptr, 0, 0, "", true},
  {"cluster.launcher", key_kind::choice, "auto",
   "How node processes of further hosts start: local (fork), ssh, or agent (`dilaunch agent --join` on each host). auto: local if every host is this one, else ssh.",
   [](t_& t, i_, s_ v) { t.launcher = launcher_of(v.text); }, 0, 0, "auto|local|ssh|agent"},
  {"cluster.nodes", key_kind::list, "", "Hosts; each gets one node process. The first one is where `dilaunch` runs.", nullptr, 1, 1024, "", true, "hosts|machines"},
  {"cluster.nodes[].host", key_kind::text, "localhost", "Host name, or a list like gpu[001-008]: one node each.",
   [](t_& t, i_ i, s_ v) { t.nodes[i].hosts = v.text; }, 0, 0, "", false, "name|hostname"},
  {"cluster.nodes[].ranks", key_kind::integer, "", "Ranks (processes) on each host of this entry.",
   [](t_& t, i_ i, s_ v) { t.nodes[i].ranks = v.u32(); }, 1, 1024, "", true, "gpus|slots|ranks_per_node"},
  {"cluster.nodes[].address", key_kind::text, "(the host's name; 127.0.0.1 if all are local)", "Name or IP address under which other hosts reach it.",
   [](t_& t, i_ i, s_ v) { t.nodes[i].address = v.text; }, 0, 0, "", false, "ip"},
  {"cluster.nodes[].cores", key_kind::integer, "(what the host has)", "Processor cores that its ranks share.",
   [](t_& t, i_ i, s_ v) { t.nodes[i].cores = v.u32(); }, 1, 4096, "", false, "cpus"},
  {"cluster.ports", key_kind::section, "", "TCP ports.", nullptr},
  {"cluster.ports.base", key_kind::integer, "29500", "First port between nodes, used when there is more than one: control takes two, then each rank two. 0: any free port.",
   [](t_& t, i_, s_ v) { t.port_base = v.u32(); }, 0, 65535},
  {"cluster.ports.range", key_kind::integer, "200", "Ports that may be used from the base on.",
   [](t_& t, i_, s_ v) { t.port_range = v.u32(); }, 4, 65536},
  {"cluster.ssh", key_kind::section, "", "For the ssh launcher.", nullptr},
  {"cluster.ssh.command", key_kind::texts, "[ssh, -o, BatchMode=yes]", "Program and options; host and command line follow.",
   [](t_& t, i_, s_ v) { t.ssh_command.push_back(v.text); }},
  {"cluster.ssh.program", key_kind::text, "(the path of this dilaunch)", "dilaunch on the remote host.",
   [](t_& t, i_, s_ v) { t.ssh_program = v.text; }},
  {"cluster.start_timeout", key_kind::time, "60s", "All processes must be ready within this time.",
   [](t_& t, i_, s_ v) { t.start_timeout = nanoseconds{v.number}; }, 100 * ms, 86'400 * second},
  {"cluster.shared_memory", key_kind::choice, "on", "on: ranks of one host pass rows through memory that they share; off: through sockets, as between hosts. The same bytes either way.",
   [](t_& t, i_, s_ v) { t.shared_memory = v.text == "on"; }, 0, 0, "on|off", false, "shm"},
  {"cluster.segment_size", key_kind::size, "16MiB", "Send segment of each rank in shared memory: rows on their way; taken as it is used. When it is full, rows go through sockets.",
   [](t_& t, i_, s_ v) { t.segment_bytes = static_cast<std::uint64_t>(v.number); }, limits::segment_bytes_min, limits::segment_bytes_max, "", false, "shm_size"},

  {"roles", key_kind::section, "", "What the ranks do.", nullptr},
  {"roles.decode", key_kind::section, "", "Ranks that prefill and decode.", nullptr},
  {"roles.decode.ep", key_kind::integer, "(sum of ranks of all nodes)", "Expert-parallel size; must equal the number of ranks.",
   [](t_& t, i_, s_ v) { t.ep = v.u32(); t.ep_at = v.at; }, 1, 4096, "", false, "dp|expert_parallel"},
  {"roles.decode.redundant_experts", key_kind::integer, "0", "Expert slots beyond one per expert, over all ranks, per layer.",
   [](t_& t, i_, s_ v) { t.redundant_experts = v.u32(); t.redundant_at = v.at; }, 0, 65536, "", false, "redundancy|spare_slots"},
  {"roles.decode.rebalance", key_kind::text, "off", "Moving experts between ranks while serving: off, observe (loads are counted for metrics and the live page, nothing moves), auto (by load, when a move gains enough) or forced:STEPS (at random every so many steps, a test). Tokens do not depend on it.",
   [](t_& t, i_, s_ v) { t.rebalance = v.text; t.rebalance_at = v.at; }, 0, 0, "", false, "eplb|load_balance|enable_eplb"},
  {"roles.decode.rebalance_window", key_kind::integer, "128", "Steps over which a rank counts its experts' rows before it reports them; forced: its STEPS.",
   [](t_& t, i_, s_ v) { t.rebalance_window = v.u32(); }, 1, 1'000'000, "", false, "window|count_window"},
  {"roles.decode.rebalance_interval", key_kind::integer, "512", "Steps of the busiest rank between two looks at the load; forced: its STEPS.",
   [](t_& t, i_, s_ v) { t.rebalance_interval = v.u32(); }, 1, 1'000'000'000, "", false, "rearrangement_interval"},
  {"roles.decode.rebalance_moves", key_kind::integer, "256", "Expert slots that one plan may load, over all ranks and layers.",
   [](t_& t, i_, s_ v) { t.rebalance_moves = v.u32(); }, 1, 1'000'000'000, "", false, "max_moves"},
  {"roles.decode.threads", key_kind::integer, "(max(1, cores / ranks of the host))", "Compute threads of each rank.",
   [](t_& t, i_, s_ v) { t.threads = v.u32(); }, 1, 1024},
  {"roles.decode.max_sequences", key_kind::integer, "32", "Sequences that one rank runs at the same time.",
   [](t_& t, i_, s_ v) { t.max_sequences = v.u32(); }, 1, 4096, "", false, "max_seqs_per_rank|max_num_seqs|batch"},
  {"roles.decode.step_rows", key_kind::integer, "128", "Rows (decode and prefill together) of one step.",
   [](t_& t, i_, s_ v) { t.step_rows = v.u32(); }, 2, 65536, "", false, "max_num_batched_tokens"},
  {"roles.decode.prefill_rows", key_kind::integer, "64", "Rows of one prefill chunk.",
   [](t_& t, i_, s_ v) { t.prefill_rows = v.u32(); }, 1, 65536, "", false, "chunk|prefill_chunk"},
  {"roles.decode.speculation", key_kind::text, "off", "Drafting ahead: off, fixed:N (verify N drafts in every step, 1 to the model's block) or varlen (as many as pay, none included). Tokens do not depend on it. A request may choose for itself.",
   [](t_& t, i_, s_ v) { t.speculation = v.text; t.speculation_at = v.at; }, 0, 0, "", false, "speculative"},

  {"roles.decode.step_time", key_kind::time, "100ms", "Time that a step should take: prompt chunks are cut to fit by a model of the costs, fitted while it runs. 0s: by prefill_rows alone.",
   [](t_& t, i_, s_ v) { t.step_time = nanoseconds{v.number}; }, 0, 600 * second, "", false, "budget|chunk_budget"},
  {"roles.decode.profile", key_kind::time, "40ms", "With speculation varlen: time that each rank spends at start on measuring what steps of some sizes cost. 0s: it learns from the first real steps alone. Tokens do not depend on it.",
   [](t_& t, i_, s_ v) { t.profile = nanoseconds{v.number}; }, 0, 60 * second, "", false, "warmup|profile_time"},
  {"roles.decode.steps_in_flight", key_kind::integer, "2", "2: a step's bookkeeping overlaps the next step. 1: one after the other. Tokens do not depend on it.",
   [](t_& t, i_, s_ v) { t.steps_in_flight = v.u32(); }, 1, 2, "", false, "async_scheduling|zero_overhead_scheduling"},
  {"roles.decode.prefill", key_kind::choice, "full", "Prompts: full (all rows through all layers) or compact (layers behind the last source of keys compute the last rows only; faster, an approximation). A request may choose for itself.",
   [](t_& t, i_, s_ v) { t.prefill = v.text == "compact" ? proto::prefill_mode::compact : proto::prefill_mode::full; }, 0, 0, "full|compact", false, "yoco|truncation"},
  {"roles.decode.prefill_keep", key_kind::integer, "(the model's default)", "Rows of a prompt that compact prefill computes in all layers; at least window + 6.",
   [](t_& t, i_, s_ v) { t.prefill_keep = v.u32(); }, 1, 1 << 20, "", false, "keep_tokens"},

  {"scheduler", key_kind::section, "", "Which requests are taken in, and in which order.", nullptr, 0, 0, "", false, "admission|router"},
  {"scheduler.queue", key_kind::integer, "16384", "Requests that may wait for a rank; more are refused as unavailable.",
   [](t_& t, i_, s_ v) { t.queue_max = v.u32(); }, 1, 1'000'000, "", false, "queue_max"},
  {"scheduler.tenant_choices", key_kind::integer, "(no bound)", "Choices that one tenant may have open; more are refused as limit_exceeded.",
   [](t_& t, i_, s_ v) { t.tenant_choices_max = v.u32(); }, 1, 1'000'000, "", false, "quota|quota_per_tenant"},
  {"scheduler.gateway_choices", key_kind::integer, "(no bound)", "The same for one gateway.",
   [](t_& t, i_, s_ v) { t.gateway_choices_max = v.u32(); }, 1, 1'000'000},
  {"scheduler.priority_step", key_kind::time, "2s", "Head start that one step of a request's priority gives; the time after which waiting makes up for it.",
   [](t_& t, i_, s_ v) { t.priority_step = nanoseconds{v.number}; }, 0, 3'600 * second},

  {"kv", key_kind::section, "", "Key/value state.", nullptr},
  {"kv.page_tokens", key_kind::integer, "128", "Tokens of one page. This build has 128 only.",
   [](t_& t, i_, s_ v) { t.page_tokens = v.u32(); }, 8, 4096, "", false, "block|block_size"},
  {"kv.room", key_kind::size, "(max_sequences of full context)", "Room for key/value state on each rank: a fixed part for each of roles.decode.max_sequences, and pages; at least the fixed parts and the pages of one full context. `dilaunch plan --json` shows the tokens that fit (kv_tokens).",
   [](t_& t, i_, s_ v) { t.kv_room_bytes = static_cast<std::uint64_t>(v.number); }, 65536, INT64_MAX, "", false, "size|host|hbm"},

  {"kv.prefix", key_kind::choice, "exact", "Reuse of an earlier prompt's state: off, exact (same bits as without) or bounded (windows are rebuilt from few rows: faster, an approximation). A request may choose for itself.",
   [](t_& t, i_, s_ v) { t.prefix = prefix_of(v.text); }, 0, 0, "off|exact|bounded", false, "prefix_cache|enable_prefix_caching"},
  {"kv.snapshots", key_kind::size, "16MiB", "Memory of each rank for window snapshots, which make exact prefix hits cheap. 0B: none.",
   [](t_& t, i_, s_ v) { t.snapshot_bytes = static_cast<std::uint64_t>(v.number); }, 0, INT64_MAX},
  {"kv.replicas", key_kind::integer, "0", "Other ranks that keep copies of a running request's sealed pages, so that it need not compute them again when its rank dies; they go there in the background.",
   [](t_& t, i_, s_ v) { t.kv_replicas = v.u32(); }, 0, 2},
  {"kv.replica_bandwidth", key_kind::size, "256MiB", "Copies that each rank sends per second, at most.",
   [](t_& t, i_, s_ v) { t.kv_replica_bandwidth = static_cast<std::uint64_t>(v.number); }, 65536, INT64_MAX},
  {"kv.replica_room", key_kind::size, "256MiB", "Memory of each rank for copies of others, if kv.replicas is not 0; what does not fit is not kept.",
   [](t_& t, i_, s_ v) { t.kv_replica_room = static_cast<std::uint64_t>(v.number); }, 65536, INT64_MAX},

  {"supervisor", key_kind::section, "", "What happens when something dies.", nullptr, 0, 0, "", false, "supervise"},
  {"supervisor.on_rank_loss", key_kind::choice, "shrink", "shrink: survivors go on without it, a replacement may join later; restart: the group waits until the same rank is back, and shrinks when its restarts are used up; restart_smaller: all ranks restart, one fewer.",
   [](t_& t, i_, s_ v) { t.on_rank_loss = rank_loss_of(v.text); }, 0, 0, "shrink|restart_smaller|restart", false, "on_gpu_loss"},
  {"supervisor.min_ep", key_kind::integer, "1", "Fewer ranks than this wait for others to come back; the run gives up when none can.",
   [](t_& t, i_, s_ v) { t.min_ep = v.u32(); }, 1, 4096},
  {"supervisor.rejoin", key_kind::choice, "auto", "auto: a replacement joins in the background; manual: on command only (`dilaunch rejoin`, `scale`).",
   [](t_& t, i_, s_ v) { t.rejoin = v.text == "auto"; }, 0, 0, "auto|manual"},
  {"supervisor.evidence_window", key_kind::time, "2ms", "Losses within this time of the first are one change of the group.",
   [](t_& t, i_, s_ v) { t.evidence_window = nanoseconds{v.number}; }, 0, second},
  {"supervisor.stuck_after", key_kind::time, "250ms", "A rank that could run and makes no progress for this long, and for six times what is usual, is expelled; 0s: never.",
   [](t_& t, i_, s_ v) { t.stuck_after = nanoseconds{v.number}; }, 0, 3'600 * second},
  {"supervisor.join_timeout", key_kind::time, "60s", "Time for a replacement from its start until it takes part; a slower one is ended and counts as dead.",
   [](t_& t, i_, s_ v) { t.join_timeout = nanoseconds{v.number}; }, 100 * ms, 86'400 * second},
  {"supervisor.restart", key_kind::section, "", "How often a rank that died is started again.", nullptr},
  {"supervisor.restart.max", key_kind::integer, "3", "Starts of one rank within the window: a bucket that fills up evenly. Without one left the rank is quarantined.",
   [](t_& t, i_, s_ v) { t.restart_max = v.u32(); }, 0, 1'000'000},
  {"supervisor.restart.window", key_kind::time, "10m", "The window.",
   [](t_& t, i_, s_ v) { t.restart_window = nanoseconds{v.number}; }, second, 86'400 * second},
  {"supervisor.restart.backoff", key_kind::time, "1s", "Wait before the first start after a death; doubles with each death in a row.",
   [](t_& t, i_, s_ v) { t.restart_backoff = nanoseconds{v.number}; }, 0, 86'400 * second},
  {"supervisor.restart.backoff_max", key_kind::time, "300s", "Longest wait; up to a quarter is added by chance.",
   [](t_& t, i_, s_ v) { t.restart_backoff_max = nanoseconds{v.number}; }, 0, 86'400 * second},
  {"supervisor.restart.quarantine", key_kind::time, "10m", "Time that a quarantined rank stays away; 0s: until `dilaunch rejoin`.",
   [](t_& t, i_, s_ v) { t.quarantine = nanoseconds{v.number}; }, 0, 86'400 * second},
  {"supervisor.drain_timeout", key_kind::time, "60s", "Time that running requests get after the first SIGTERM, and those of a rank that is drained before others take them over.",
   [](t_& t, i_, s_ v) { t.drain_timeout = nanoseconds{v.number}; }, 0, 86'400 * second},
  {"supervisor.heartbeat", key_kind::section, "", "Between hosts only.", nullptr},
  {"supervisor.heartbeat.every", key_kind::time, "100ms", "Interval.",
   [](t_& t, i_, s_ v) { t.heartbeat_every = nanoseconds{v.number}; }, ms, 3'600 * second},
  {"supervisor.heartbeat.suspect", key_kind::time, "500ms", "Silence after which a host is suspected; more than the interval.",
   [](t_& t, i_, s_ v) { t.heartbeat_suspect = nanoseconds{v.number}; }, 2 * ms, 3'600 * second},
  {"supervisor.lease", key_kind::time, "1s", "A node process of another host that is silent for this time counts as lost, with its ranks.",
   [](t_& t, i_, s_ v) { t.lease = nanoseconds{v.number}; }, 10 * ms, 3'600 * second},
  {"supervisor.lease_renew", key_kind::time, "200ms", "Not used yet (for several control processes); less than the lease.",
   [](t_& t, i_, s_ v) { t.lease_renew = nanoseconds{v.number}; }, ms, 3'600 * second},

  {"journal", key_kind::section, "", "Requests and their tokens on disk, so that a control process that died goes on where it was.", nullptr, 0, 0, "", false, "log|wal"},
  {"journal.path", key_kind::file_path, "(in the run directory, gone at the end)", "Folder for it; relative to this file. One that is kept can be resumed: `dilaunch run --resume`. `--journal DIR` overrides it.",
   [](t_& t, i_, s_ v) { t.journal_path = v.text; }, 0, 0, "", false, "dir|folder"},
  {"journal.on_error", key_kind::choice, "pause", "While the disk is full or fails, new requests are refused and running ones wait for it (pause) or go on without it (memory: a control process that dies meanwhile loses them).",
   [](t_& t, i_, s_ v) { t.journal_on_error = v.text == "memory" ? journal_loss::memory : journal_loss::pause; }, 0, 0, "pause|memory"},
  {"journal.sync", key_kind::choice, "none", "none: what was written survives any process; a power cut may take the last seconds. group: each group of records is on disk (fsync) before anyone relies on it.",
   [](t_& t, i_, s_ v) { t.journal_sync = v.text == "group"; }, 0, 0, "none|group", false, "fsync"},
  {"journal.segment_size", key_kind::size, "64MiB", "A file larger than this and twice what still counts is replaced by one with what still counts.",
   [](t_& t, i_, s_ v) { t.journal_segment_bytes = static_cast<std::uint64_t>(v.number); }, 65536, INT64_MAX, "", false, "file_size"},
  {"journal.size", key_kind::size, "4GiB", "Open requests may take so much of it; above, new ones are refused as unavailable.",
   [](t_& t, i_, s_ v) { t.journal_size_bytes = static_cast<std::uint64_t>(v.number); }, 65536, INT64_MAX, "", false, "limit|max_size"},

  {"determinism", key_kind::section, "", "The bit contract.", nullptr},
  {"determinism.batch_invariant", key_kind::boolean, "true", "Always true on CPU: the same tokens whatever runs beside a request.",
   [](t_& t, i_, s_ v) { t.batch_invariant = v.truth; }},

  {"log", key_kind::section, "", "Logs of all processes.", nullptr, 0, 0, "", false, "observability|logging"},
  {"log.level", key_kind::choice, "info", "Least level that is written.",
   [](t_& t, i_, s_ v) { t.log_level = v.text; }, 0, 0, "debug|info|warn|error|off"},
  {"log.counters", key_kind::boolean, "false", "Each process logs its counters when it ends (event process_counters).",
   [](t_& t, i_, s_ v) { t.log_counters = v.truth; }, 0, 0, "", false, "metrics"},

  {"plugins", key_kind::paths, "", "Shared objects with actor types, loaded by the control process; relative to this file.",
   [](t_& t, i_, s_ v) { t.plugins.push_back(v.text); }},
  {"actors", key_kind::list, "", "Actors of your own types, spawned in the control process.", nullptr, 0, 256},
  {"actors[].kind", key_kind::text, "", "Registered name of the actor type.",
   [](t_& t, i_ i, s_ v) { t.actors[i].kind = v.text; }, 0, 0, "", true, "type"},
  {"actors[].at", key_kind::text, "", "Its path, e.g. /cluster/meter.",
   [](t_& t, i_ i, s_ v) { t.actors[i].at = v.text; }, 0, 0, "", true, "path|address"},
  {"actors[].listen", key_kind::texts, "", "Names of messages of which it gets a copy.",
   [](t_& t, i_ i, s_ v) { t.actors[i].listen.push_back(v.text); }, 0, 0, "", false, "subscribe"},
  {"actors[].config", key_kind::free_map, "", "Handed to the actor as it is; nested keys are joined with dots.", nullptr},
  {"actors[].restart", key_kind::section, "", "Restart budget; used up = the run ends with exit code 3.", nullptr},
  {"actors[].restart.max", key_kind::integer, "5", "Restarts within the window.",
   [](t_& t, i_ i, s_ v) { t.actors[i].restart_max = v.u32(); }, 0, 1'000'000},
  {"actors[].restart.window_ms", key_kind::integer, "60000", "The window in milliseconds.",
   [](t_& t, i_ i, s_ v) { t.actors[i].restart_window_ms = v.u32(); }, 1, 86'400'000, "", false, "window"},
};
// clang-format on

/// All rows, parts of other files behind their last sibling.
std::vector<key_row> joined() {
  std::vector<key_row> all{std::begin(own_rows), std::end(own_rows)};
  const auto put = [&all](std::string_view head, std::span<const key_row> part) {
    auto at = all.end();
    while (at != all.begin() && !std::prev(at)->key.starts_with(head))
      --at;
    all.insert(at, part.begin(), part.end());
  };
  put("cluster.ports.", port_keys());
  put("roles.decode.", gateway_role_keys());
  put("journal.", gateway_section_keys());
  return all;
}

std::string describe_bounds(const key_row& r) {
  const auto show = [&](std::int64_t n) {
    return r.kind == key_kind::time   ? format_time(nanoseconds{n})
           : r.kind == key_kind::size ? format_size(static_cast<std::uint64_t>(n))
                                      : std::to_string(n);
  };
  if (r.kind == key_kind::choice)
    return std::string{r.choices};
  if (r.kind != key_kind::integer && r.kind != key_kind::time && r.kind != key_kind::size)
    return "";
  return r.max == INT64_MAX ? fmt::format("at least {}", show(r.min))
                            : fmt::format("{} to {}", show(r.min), show(r.max));
}

std::string default_of(const key_row& r) {
  if (r.required)
    return "required";
  return r.fallback.empty() ? "none" : std::string{r.fallback};
}

std::string without_indexes(std::string_view key) {
  std::string pattern;
  for (std::size_t i = 0; i < key.size(); ++i) {
    pattern += key[i];
    if (key[i] == '[')
      while (i + 1 < key.size() && key[i + 1] >= '0' && key[i + 1] <= '9')
        ++i;
  }
  return pattern;
}

/// Is `child` directly or deeper below `parent`?
bool below(std::string_view child, std::string_view parent) {
  return child.size() > parent.size() && child.starts_with(parent)
         && (child[parent.size()] == '.' || child[parent.size()] == '[');
}

} // namespace

std::span<const key_row> all_keys() {
  static const std::vector<key_row> rows = joined();
  return rows;
}

const key_row* find_key(std::string_view pattern) {
  for (const auto& r : all_keys())
    if (r.key == pattern)
      return &r;
  return nullptr;
}

std::string_view to_string(key_kind kind) noexcept {
  constexpr std::array<std::string_view, 12> names{
      "section",       "list of sections", "text", "path", "integer",
      "boolean",       "choice",           "time", "size", "list",
      "list of paths", "any keys"};
  return names[static_cast<std::size_t>(kind)];
}

result<std::string> explain(std::string_view key) {
  std::string out;
  if (key.empty()) {
    for (const auto& r : all_keys())
      out += fmt::format("{:34} {:16} {}\n", r.key, to_string(r.kind), default_of(r));
    return out + "\n`dilaunch explain KEY` says more.\n";
  }
  if (key.starts_with("DEEPINFER_"))
    return explain_foreign(key);
  const auto pattern = without_indexes(key);
  const key_row* row = find_key(pattern);
  if (!row) {
    std::vector<std::string> names;
    for (const auto& r : all_keys())
      names.emplace_back(r.key);
    auto hint = nearest(pattern, names);
    const auto last = pattern.substr(pattern.rfind('.') + 1);
    for (const auto& r : all_keys())
      if (r.key.substr(r.key.rfind('.') + 1) == last)
        hint = r.key;
    return fail(ec::not_found, "no topology key {}{}", key,
                hint.empty() ? "; `dilaunch explain` lists them" : "; did you mean " + hint + "?");
  }
  out = fmt::format("{}\n  type     {}\n", row->key, to_string(row->kind));
  if (const auto bounds = describe_bounds(*row); !bounds.empty())
    out += fmt::format("  values   {}\n", bounds);
  out += fmt::format("  default  {}\n  {}\n", default_of(*row), row->doc);
  for (const auto& f : foreign_names())
    if (f.kind == foreign_kind::key && f.key == row->key)
      out += fmt::format("  also     DEEPINFER_{} in the environment: {}\n", f.name, f.doc);
  for (const auto& r : all_keys())
    if (below(r.key, row->key))
      out += fmt::format("    {:32} {}\n", r.key, r.doc);
  return out;
}

std::string topology_markdown() {
  std::string out =
      "# Topology file\n\n"
      "Generated by `dilaunch explain --markdown`; a test compares it. Five lines are "
      "enough:\n\n"
      "```yaml\napiVersion: di/v1\nname: local4\nmodel: {path: ../models/demo}\n"
      "cluster: {nodes: [{host: localhost, ranks: 4}]}\nroles: {decode: {ep: 4}}\n"
      "```\n\n"
      "Unknown keys are errors. Units are mandatory for times (ns us ms s m h d) and "
      "sizes (B KiB MiB GiB TiB KB MB GB TB). Booleans are `true` and `false`. "
      "`--set key=value` overrides a key, `--set cluster.nodes[0].ranks=2` one of a "
      "list. All errors of a file are reported at once, with file:line:column.\n\n"
      "| key | type | values | default | meaning |\n|---|---|---|---|---|\n";
  for (const auto& r : all_keys()) {
    std::string bounds = describe_bounds(r);
    for (std::size_t at = 0; (at = bounds.find('|', at)) != std::string::npos; at += 2)
      bounds.replace(at, 1, ", ");
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", r.key, to_string(r.kind), bounds,
                       default_of(r), r.doc);
  }
  return out + foreign_markdown();
}

} // namespace di::launch
