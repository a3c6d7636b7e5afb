// SPDX-License-Identifier: Apache-2.0
// Faults on purpose in one process: what dichaos writes to <folder>/rules is done to frames that
// arrive, and to the fault points of the process. There is no gate unless the environment has
// DI_FAULTS=<folder>; then the bus asks it once per frame.
//
//   link from=/rank/3 to=/rank/5 drop=1
//   link from=/rank/* to=/control delay_us=20000 jitter_us=5000 duplicate=0.1 corrupt=0.01
//   point process=/rank/3 name=rank.step_in_flight signal=9 skip=20 times=1 probability=1
//   ballast process=/rank/3 bytes=1073741824
//
// One rule a line; `*` at the end of a name stands for any rest. The file is put in place by a
// rename and holds all rules that are in force: a rule that is gone is over.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/result.hpp"
#include "messaging/bus/link.hpp"
#include "messaging/bus/zmq_socket.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace di::bus {

/// What happens on one direction between two processes. Several rules for one direction add up.
struct link_fault {
  std::string from, to;                        ///< prefixes of the sender and of the receiver
  double drop = 0, duplicate = 0, corrupt = 0; ///< [0, 1] of each frame
  std::uint64_t delay_us = 0;                  ///< frames stay in their order
  std::uint64_t jitter_us = 0; ///< on top, drawn per frame: frames overtake each other
};

/// A named place in product code (messaging/base/probe.hpp).
struct point_fault {
  std::string process, name;
  double probability = 1;
  std::uint64_t skip = 0, times = 1;
  int signal = 0; ///< that the process sends itself there; 0: the place misbehaves as it knows how
  friend bool operator==(const point_fault&, const point_fault&) = default;
};

struct fault_rules {
  std::vector<link_fault> links;
  std::vector<point_fault> points;
  std::map<std::string, std::uint64_t> ballast_bytes; ///< by process
};

/// @errors bad_format with the number of the line
result<fault_rules> parse_fault_rules(std::string_view text);
std::string to_text(const fault_rules& rules);
/// True if `name` is `pattern`, or begins with what stands before its final `*`.
bool matches_process(std::string_view pattern, std::string_view name) noexcept;

/// Used by the bus thread alone.
class fault_gate {
public:
  /// What the bus does with a frame that has arrived.
  struct verdict {
    bool drop = false, twice = false;
    std::optional<std::size_t> flip; ///< bit to turn in its first part
    duration hold{};                 ///< 0: now
  };
  struct held {
    instant due;
    lane which = lane::control;
    std::string routing_id;
    std::vector<part> parts;
  };

  /// Null unless DI_FAULTS names a folder. @param self  prefix of this process
  static std::unique_ptr<fault_gate> from_environment(std::string self);
  fault_gate(std::string self, std::string folder);
  ~fault_gate();
  fault_gate(const fault_gate&) = delete;
  fault_gate& operator=(const fault_gate&) = delete;

  /// Readable when the rules have changed; negative if they cannot be watched.
  int descriptor() const noexcept { return watch_; }
  /// Reads the rules again; says in the log what is in force now.
  void reload();
  void put_in_force(const fault_rules& rules);

  bool touches_links() const noexcept { return !links_.empty() || !held_.empty(); }
  /// @param bits  size of the frame's first part
  verdict judge(std::string_view routing_id, std::size_t bits);
  /// Keeps a frame until its time. Frames with the same delay stay in order.
  void hold(held frame);
  std::optional<instant> next_due() const noexcept;
  /// The next frame whose time has come.
  std::optional<held> take_due(instant now);

private:
  std::string self_, folder_;
  int watch_ = -1;
  std::vector<link_fault> links_;   ///< to this process
  std::vector<point_fault> points_; ///< armed
  std::multimap<instant, held> held_;
  std::mt19937_64 random_;
  std::uint64_t ballast_bytes_ = 0;
};

} // namespace di::bus
