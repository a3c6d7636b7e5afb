// SPDX-License-Identifier: Apache-2.0
// The processes of a run, found in /proc by the environment they share, whoever their parent is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace di::chaos {

enum class process_kind : std::uint8_t { launcher, control, rank, node, other };

struct process_entry {
  pid_t pid = 0;
  process_kind kind = process_kind::other;
  std::uint32_t index = 0;
  char state = '?';          ///< as in /proc/<pid>/stat
  std::uint64_t started = 0; ///< [ticks] since boot
};

/// All that runs with `DI_FAULTS=<folder>` in its environment; zombies are not listed.
std::vector<process_entry> find_processes(const std::string& fault_folder);

/// Open descriptors of a process; 0 if it is gone.
std::size_t open_descriptors(pid_t pid);

} // namespace di::chaos
