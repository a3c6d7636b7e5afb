// SPDX-License-Identifier: Apache-2.0
// A fault plan: which work runs, which faults happen when to whom, and what must hold. YAML,
// strict; faults never stand in a topology. The keys are listed in doc/failure.md.
#pragma once

#include "launch/yaml_tree.hpp"
#include "messaging/base/result.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::chaos {

using launch::place;
using launch::problem;
using std::chrono::nanoseconds;

enum class fault_kind : std::uint8_t {
  kill,       ///< SIGKILL
  stop,       ///< SIGSTOP; with `for`, SIGCONT after it
  cont,       ///< SIGCONT
  slow,       ///< runs 1/factor of the time, by short stops
  crash,      ///< the process kills or stops itself at a named point
  hang,       ///< a thread of the process never leaves a named point
  point,      ///< a named point misbehaves as the product code knows how
  cut,        ///< nothing passes between target and peer
  delay,      ///< frames come later
  drop,       ///< frames vanish
  duplicate,  ///< frames come twice
  corrupt,    ///< a bit of a frame is turned
  disk_full,  ///< the journal's disk takes nothing
  disk_error, ///< the journal's disk answers with I/O errors
  ballast,    ///< the process holds so much more memory
  memory,     ///< something else on the host takes memory
  hog,        ///< something else on the host burns processors
  clock_jump, ///< the wall clock jumps
  command,    ///< an operator's command: dilaunch <command>
};
std::string_view to_string(fault_kind kind) noexcept;

enum class target_kind : std::uint8_t { none, rank, random_rank, all_ranks, control, node };
/// Who it happens to: `rank 3`, `random rank`, `all ranks`, `control`, `node 1`.
struct fault_target {
  target_kind kind = target_kind::none;
  std::uint32_t index = 0;
  friend bool operator==(const fault_target&, const fault_target&) = default;
};
std::string to_string(const fault_target& target);

enum class trigger_kind : std::uint8_t {
  at,       ///< time since the batch began
  tokens,   ///< more than so many tokens were given out
  finished, ///< more than so many requests have ended
  view,     ///< this view or a later one is committed
  event,    ///< a log event of this name was seen since the fault before
  whole,    ///< a view with all ranks is committed, other than the first
  in_step,  ///< the target waits in the middle of a step (kill and stop only)
};
struct fault_trigger {
  trigger_kind kind = trigger_kind::at;
  nanoseconds at{};
  std::uint64_t count = 0;
  std::string event;
  friend bool operator==(const fault_trigger&, const fault_trigger&) = default;
};

struct fault {
  fault_kind kind = fault_kind::kill;
  fault_target target, peer; ///< peer none: everyone
  fault_trigger trigger;
  nanoseconds after{};           ///< on top of the trigger
  nanoseconds lasts{};           ///< `for`; 0: until the end, or by nature at once
  std::uint32_t times = 1;       ///< repeated ...
  nanoseconds every{};           ///< ... with so much between
  double factor = 3;             ///< slow
  double rate = 1;               ///< [0, 1] of frames, or of visits to a point
  nanoseconds delay{}, jitter{}; ///< delay
  bool one_way = false;          ///< links: only from target to peer
  std::string point;             ///< crash, hang, point
  std::uint64_t skip = 0;        ///< visits that pass first
  std::uint64_t size_bytes = 0;  ///< ballast, memory
  std::uint32_t threads = 1;     ///< hog
  nanoseconds jump{};            ///< clock_jump
  std::string command;           ///< command
  place where;
};

/// Inclusive.
struct range {
  std::uint32_t low = 0, high = 0;
  friend bool operator==(const range&, const range&) = default;
};

struct workload {
  std::uint32_t requests = 24; ///< phase `during`
  std::uint32_t after = 8;     ///< more, sent when all of the first have ended
  range prompt_tokens{4, 60};  ///< of random ids; sentences come in between if there are words
  range output_tokens{60, 160};
  range choices{1, 1};               ///< n
  bool mixed = true;                 ///< every kind of sampling; false: greedy
  bool stop = true, logprobs = true; ///< some requests have them
  std::uint32_t window = 0;          ///< requests open at a time; 0: as dilaunch run
  std::uint64_t seed = 1;
};

/// What must hold. Times are reported, never expected.
struct expectations {
  std::optional<std::uint32_t> exit; ///< of dilaunch; default 0
  bool late_faults =
      false; ///< faults whose trigger never came, or that met no process, are no defect
  std::uint32_t failed_max = 0;  ///< requests with an error
  bool identical = true;         ///< all that did not fail, byte for byte
  bool others_leave = false;     ///< lives may leave the view though nothing had happened to them
  std::optional<range> views;    ///< committed after the first one
  std::optional<range> expelled; ///< lives that left the view
  std::optional<range> joined;   ///< lives that came into it later
  std::optional<std::uint32_t> members;       ///< of the last view
  std::optional<std::uint32_t> members_min;   ///< no view has fewer
  std::vector<std::string> events, no_events; ///< log events that must, must not be there
  std::vector<std::string> counters; ///< that some process must have counted, with log.counters
};

struct plan {
  std::string file, name, doc;
  std::vector<std::string> covers;               ///< F1 … F28, C01 … C47, I1 … I20
  std::vector<std::string> sets;                 ///< overrides of the topology
  std::uint64_t seed = 1;                        ///< of random targets
  nanoseconds limit = std::chrono::seconds{120}; ///< the run is ended after it, and has failed
  workload work;
  std::vector<fault> faults;
  expectations expect;
};

struct plan_outcome {
  std::optional<plan> value;     ///< exactly if there are no problems
  std::vector<problem> problems; ///< all of them, in order of their places
};

/// Never throws; text is untrusted.
plan_outcome read_plan(std::string_view text, const std::string& file);
/// read_plan of a file; all problems in one error, a line each. @errors io_error, bad_config
result<plan> load_plan(const std::string& file);

} // namespace di::chaos
