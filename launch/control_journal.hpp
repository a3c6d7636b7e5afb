// SPDX-License-Identifier: Apache-2.0
// The control process and its journal: read before any actor starts, then written by JOURNAL.
#pragma once

#include "actors/journal_file.hpp"
#include "engine/core/batch_io.hpp"
#include "engine/core/journal_core.hpp"
#include "launch/child_context.hpp"

#include <memory>
#include <optional>

namespace di::launch {

/// Outlives the actors.
struct control_journal {
  std::unique_ptr<actors::journal_file> file;     ///< null: there is no journal on disk
  engine::journal_options options;                ///< for JOURNAL
  std::optional<proto::view_committed> last_view; ///< of an earlier life, for MEMBERSHIP
};

/// Opens the journal of the boot configuration, after the post office; takes over what an earlier
/// life of the control process, or of the run, left there.
///
/// @errors io_error; unavailable: another run uses the folder; corrupt, bad_format: it cannot be
/// read, with name and offset; bad_argument: it belongs to another run, says in what
result<control_journal> open_control_journal(child_context& c);

/// Checks that an output with so many lines can be gone on with.
/// @errors bad_argument: the journal has forgotten an answer that is not in the output
result<void> check_delivered(const engine::journal_options& journal, const engine::batch& work,
                             std::uint64_t lines);

} // namespace di::launch
