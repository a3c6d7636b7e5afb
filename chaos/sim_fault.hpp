// SPDX-License-Identifier: Apache-2.0
// Faults of a simulated run as data: made from a seed, printed, dropped one by one.
#pragma once

#include "chaos/sim_random.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/message.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::sim {

enum class fault_kind : std::uint8_t {
  kill,      ///< SIGKILL of a rank process
  crash,     ///< SIGKILL at a message: of the process that sends or gets the nth of a type
  stop,      ///< SIGSTOP of a rank process, SIGCONT later
  slow,      ///< a rank process and its links are slower
  node,      ///< all rank processes of a node at once
  loss,      ///< frames between processes are lost
  delay,     ///< they are late
  repeat,    ///< they arrive twice
  reorder,   ///< they overtake each other
  corrupt,   ///< they fail their checksum
  partition, ///< nothing passes between two groups of ranks; what is sent meanwhile is lost or late
  one_way,   ///< nothing passes from some ranks to others
  disk,      ///< the journal's disk is full, fails or is slow
  control,   ///< SIGKILL of the control process
  order,     ///< an operator drains a rank and lets it join again
  gateway,   ///< SIGKILL of the online gateway; runs without it have none
};
inline constexpr std::uint32_t fault_kinds = 16;
std::string_view to_string(fault_kind k) noexcept;

/// A set of kinds, as the command line names them.
using fault_mask = std::uint32_t;
constexpr fault_mask mask_of(fault_kind k) noexcept {
  return 1U << static_cast<std::uint32_t>(k);
}
/// Every kind.
inline constexpr fault_mask all_faults = (1U << fault_kinds) - 1;
/// "all", "none", or kinds with commas. @errors bad_argument
result<fault_mask> parse_faults(std::string_view words);

struct fault {
  fault_kind kind = fault_kind::kill;
  duration at{};           ///< since the group began to serve
  duration lasting{};      ///< of faults that end
  std::uint32_t rank = 0;  ///< whom it hits; node: number of the node
  std::uint32_t other = 0; ///< one_way, partition: the group begins here
  std::uint32_t count = 1; ///< size of the group
  double amount = 0;       ///< probability or factor; disk: which failure
  duration delay{};        ///< of delay
  bool hold = false;       ///< partition: what is sent arrives late
  wire_id on;              ///< crash: the message
  std::uint32_t nth = 0;   ///< crash: of that type, since the group began to serve
  bool sender = false;     ///< crash: who sent it, else who gets it
  friend bool operator==(const fault&, const fault&) = default;
};
std::string words_of(const fault& f);

/// Each seed has some of the kinds, each of them with rates of its own.
std::vector<fault> make_faults(std::uint64_t seed, std::uint32_t ranks, std::uint32_t nodes,
                               fault_mask kinds);
/// When the last of them is over, at the latest. Crashes count as `crash_within`.
duration end_of(std::span<const fault> faults, duration crash_within);

} // namespace di::sim
