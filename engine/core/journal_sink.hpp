// SPDX-License-Identifier: Apache-2.0
// Where journal_core writes: a file behind a thread, the simulator's disk, or nothing.
#pragma once

#include "engine/core/journal_log.hpp"

#include <cstdint>
#include <vector>

namespace di::engine {

/// Takes records and writes them later, in order. It answers with proto::journal_written to the
/// core (as mail, in the order of positions, never from within a call): up to which position all is
/// written, or that writing fails and why. Called on the core's thread; neither blocks nor fails.
///
/// While it fails it keeps what it was given and tries again by itself; a part of a record that got
/// out is cut off first. After that, or at once if records were lost to the log (`needs_snapshot`),
/// journal_written says so and the core calls begin_file().
class journal_sink {
public:
  virtual ~journal_sink() = default;

  /// @param position    1, 2, 3, …: counts calls of append() over this life
  /// @param elapsed_ms  [ms] for the frame
  virtual void append(std::uint64_t position, std::uint64_t elapsed_ms, any_record record) = 0;
  /// Begins a new file with the state so far, in place of all files before it. The records contain
  /// everything up to `position`; all that was appended and is not yet written need not be.
  virtual void begin_file(std::uint64_t position, std::uint64_t elapsed_ms,
                          std::vector<any_record> snapshot) = 0;
};

} // namespace di::engine
