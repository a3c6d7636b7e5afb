// SPDX-License-Identifier: Apache-2.0
// The other end of admin_server: finds runs of this user and asks one of them.
#pragma once

#include "messaging/base/result.hpp"

#include <chrono>
#include <string>

namespace di::launch {

/// The run directory that `wanted` names: a directory, or the process id of its `dilaunch`. Empty:
/// the one run of this user that is under way.
/// @errors not_found: none; bad_argument: several, all are named
result<std::string> find_run(const std::string& wanted);

/// Sends one line and waits for the answer.
/// @param limit  for each part of the answer; zero: however long it takes
/// @errors not_found: nobody listens there; io_error; unavailable: it ended without an answer;
/// deadline_exceeded
result<std::string> ask_run(const std::string& run_dir, const std::string& line,
                            std::chrono::seconds limit = {});

} // namespace di::launch
