// SPDX-License-Identifier: Apache-2.0
// What a child process is told at its start, and what it tells its node process: JSON, over
// inherited descriptors, so that no key stands in a command line or an environment.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/bus/post_office.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

enum class process_role : std::uint8_t { control, rank, gateway };
std::string_view to_string(process_role role) noexcept;

/// Keys of one process on tcp (Z85, 40 characters each).
struct curve_boot {
  std::string public_key, secret_key;
  std::vector<std::string> allowed; ///< public keys of all processes of the run
  friend bool operator==(const curve_boot&, const curve_boot&) = default;
};

/// Work of `dilaunch run`; for the control process.
struct batch_boot {
  std::string prompts;      ///< absolute path of the JSONL file
  std::string prompts_name; ///< what messages call it
  std::string output;       ///< absolute path; empty: standard output
  std::string trace;        ///< absolute path of the file for the rings; empty: none is kept
  bool progress = false;    ///< terminal_fd is a terminal
  std::uint32_t window = 0; ///< requests open at a time; 0: as many as fill every rank
  std::uint64_t seed = 0;   ///< drawn once per run, the same in all lives of control
  friend bool operator==(const batch_boot&, const batch_boot&) = default;
};

/// Where the control process keeps its journal, and of what.
struct journal_boot {
  std::string folder;   ///< absolute path
  bool keep = false;    ///< it outlives the run
  bool resume = false;  ///< it holds the journal of an interrupted run, which goes on
  std::string contract; ///< these three: see engine::run_identity
  std::string prompts;
  std::string settings;
  friend bool operator==(const journal_boot&, const journal_boot&) = default;
};

/// What a gateway process inherits: listening sockets from segments_fd on, first those for clients.
struct gateway_boot {
  std::uint32_t http_sockets = 0, admin_sockets = 0;
  std::uint32_t http_port = 0, admin_port = 0; ///< where they listen
  bool recovering = false;                     ///< an earlier life of it has served
  friend bool operator==(const gateway_boot&, const gateway_boot&) = default;
};

/// A rank process that runs while the control process starts again.
struct live_rank {
  std::uint32_t rank = 0, node = 0;
  incarnation life;
  bool ready = false; ///< it had joined once; else it still loads
  friend bool operator==(const live_rank&, const live_rank&) = default;
};

/// What a control process that is started again must know besides the journal on disk.
struct recovering_boot {
  std::uint32_t lives = 0;         ///< of control before this one
  std::uint64_t lines_written = 0; ///< complete lines of the batch's output that are out
  std::uint64_t lines_failed = 0;  ///< of them, of requests that failed
  std::vector<live_rank> ranks;    ///< in order of their ranks
  friend bool operator==(const recovering_boot&, const recovering_boot&) = default;
};

/// Everything a child needs. The topology travels as text and is read again: the same reader, the
/// same result.
struct boot_config {
  process_role role = process_role::rank;
  std::uint32_t index = 0; ///< number of the rank or gateway; 0 for control
  std::uint32_t node = 0;
  incarnation life;

  std::string topology_file, topology_text;
  std::vector<std::string> sets;

  std::string run_dir;             ///< of its node process, mode 0700
  std::string control_endpoint;    ///< to bind: ipc:// or tcp://
  std::string bulk_endpoint;       ///< to bind
  std::optional<curve_boot> curve; ///< tcp only
  /// Lives of all ranks of its host that share memory, in the order of the descriptors from
  /// segments_fd on; empty: none do.
  std::vector<incarnation> segment_lives;
  std::uint64_t segment_bytes = 0;
  bool life_page = false;             ///< life_fd is there
  std::uint32_t stuck_after_ms = 250; ///< [ms] for its node process's watcher; 0: nobody watches
  std::optional<bus::peer> control;   ///< absent in the control process
  std::uint32_t threads = 1;          ///< compute threads of a rank
  std::uint32_t trace_spans = 0;      ///< size of the ring; 0: nothing is traced
  std::string log_level = "info";
  std::optional<batch_boot> batch;
  std::optional<journal_boot> journal;       ///< control only; absent: it is kept in memory alone
  std::optional<recovering_boot> recovering; ///< control only; absent in its first life
  std::optional<gateway_boot> gateway;       ///< gateways only
  friend bool operator==(const boot_config&, const boot_config&) = default;
};

std::string to_json(const boot_config& boot);
/// @errors bad_format, naming the field
result<boot_config> parse_boot(std::string_view json);

/// What a child reports on status_fd, one line each.
enum class status_kind : std::uint8_t {
  bound,      ///< sockets are open; `self` is how others reach it
  ready,      ///< takes part
  failed,     ///< ends because of `what`
  finished,   ///< control: the batch is done
  notice,     ///< for the user, whatever is logged: `what`
  unanswered, ///< control: the batch broke off; `what` counts the prompts without an answer
  serving,    ///< gateway: a request of its own was answered; clients are from now on
  drained,    ///< gateway: nobody waits for an answer any more
};
struct child_status {
  status_kind kind = status_kind::ready;
  bus::peer self;   ///< bound
  std::string what; ///< failed, notice, unanswered
  friend bool operator==(const child_status&, const child_status&) = default;
};
std::string to_json(const child_status& status); ///< without a line end
/// @errors bad_format
result<child_status> parse_status(std::string_view json);

/// A process's place as JSON, for other lines of the launch protocols.
std::string to_json(const bus::peer& p);
/// @errors bad_format
result<bus::peer> parse_peer(std::string_view json);

} // namespace di::launch
