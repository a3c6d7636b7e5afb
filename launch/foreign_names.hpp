// SPDX-License-Identifier: Apache-2.0
// DEEPINFER_* environment variables, so that a start script written for DeepInfer keeps its
// meaning: those whose feature is here become topology keys, between the file and --set; the others
// are named, and refused where leaving them out would change answers. Pure: the caller reads the
// environment, in the launching process only; children get the keys.
#pragma once

#include "launch/topology.hpp"
#include "messaging/base/result.hpp"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::launch {

/// What becomes of a DeepInfer switch here.
enum class foreign_kind : std::uint8_t {
  key,       ///< it sets a topology key
  no_effect, ///< a message, and it is left out
  refused,   ///< its feature is missing and shows in answers: an error unless it is off
};

struct foreign_row {
  std::string_view name; ///< without DEEPINFER_
  foreign_kind kind;
  std::string_view key; ///< key: what it sets
  std::string_view doc;
};

/// All names of DeepInfer, ascending.
std::span<const foreign_row> foreign_names();

/// The outcome for one environment.
struct foreign_switches {
  std::vector<std::string> sets;     ///< key=value, for load_topology() before the user's own
  std::vector<std::string> origins;  ///< [sets] NAME=VALUE that each came from
  std::vector<std::string> notes;    ///< one line each: what was set, what has no effect
  std::vector<std::string> problems; ///< one line each
};

/// @param variables  NAME, VALUE of the environment; names without DEEPINFER_ are skipped
foreign_switches read_foreign(std::span<const std::pair<std::string, std::string>> variables);

/// The process's environment, as read_foreign() takes it.
std::vector<std::pair<std::string, std::string>> process_environment();

/// load_topology() with the switches between the file and `sets`; errors of a switch's key are
/// located at the switch. @param all_sets  receives both, for children
/// @errors those of load_topology(); bad_config with the switches' problems
result<topology> load_topology(const std::string& file, const foreign_switches& foreign,
                               const std::vector<std::string>& sets,
                               std::vector<std::string>& all_sets);

/// Text of `dilaunch explain DEEPINFER_NAME`. @errors not_found, with a suggestion
result<std::string> explain_foreign(std::string_view name);
/// The section of doc/topology.md.
std::string foreign_markdown();

} // namespace di::launch
