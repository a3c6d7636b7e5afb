// SPDX-License-Identifier: Apache-2.0
// What the commands for operators have in common: one order, its answer or why there is none.
#pragma once

#include "messaging/base/result.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace di::launch {

/// Sends an order to the run that `run` names (see find_run()).
/// @errors those of find_run() and ask_run(); what the run refused, with its code
result<nlohmann::json> ask_order(const std::string& run, const nlohmann::json& order);

/// State, gateways, ranks and requests of a run. Without its control process: what node 0 knows.
/// @errors those of ask_order()
result<nlohmann::json> read_status(const std::string& run);
/// The same for people.
std::string status_table(const nlohmann::json& status);

/// Prints why, to stderr. @return the exit code
int complain_of(const error& e);

} // namespace di::launch
