// SPDX-License-Identifier: Apache-2.0
// The journal of `dilaunch run` as the launcher sees it: where it is kept, what it belongs to, and
// whether an interrupted run may go on with it.
#pragma once

#include "engine/core/journal_log.hpp"
#include "launch/boot.hpp"
#include "launch/run_arguments.hpp"
#include "launch/topology.hpp"
#include "messaging/base/result.hpp"

#include <string>

namespace di::launch {

/// Settles folder and identity, and checks what is in the folder already.
///
/// @param contract  of the checkpoint
/// @param files     their prompts are read; holds what keeps an abandoned run directory from being
///                  swept
/// @return          with an empty folder: the run directory's own is meant
/// @errors          bad_argument: nothing to resume, another run's journal, an answer is missing in
///                  the output; io_error, corrupt, bad_format
result<journal_boot> journal_of(const run_arguments& a, const topology& t,
                                const std::string& contract, run_files& files);

/// The same for `dilaunch up`, which goes on with whatever an earlier one left in the folder.
///
/// @param folder  of --journal; empty: journal.path, else the run directory
/// @errors        bad_argument: the journal of another checkpoint, of other keys or of a batch;
///                io_error, corrupt, bad_format
result<journal_boot> serving_journal_of(const std::string& folder, const topology& t,
                                        const std::string& contract);

/// In what two runs differ, in words; empty: in nothing that matters to their answers.
std::string differences(const engine::run_identity& found, const engine::run_identity& wanted);

} // namespace di::launch
