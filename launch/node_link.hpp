// SPDX-License-Identifier: Apache-2.0
// What the launcher and a node process on another host say to each other: JSON, one object per
// line, over any pipe (stdin and stdout of `dilaunch node`, ssh, or an agent's socket).
#pragma once

#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

/// Launcher to node process.
enum class order_kind : std::uint8_t {
  start,  ///< start a child: name, role arguments, boot
  signal, ///< send `number` to child `name`, or to all if that is empty
  leave,  ///< all is done: end when no child runs
  tell,   ///< say `boot` (a node_word as JSON) to child `name`, or to all ranks if that is empty
  beat,   ///< the launcher is there; answered by report beat
};
struct node_order {
  order_kind kind = order_kind::leave;
  std::string name;
  std::vector<std::string> role; ///< start: arguments after `dilaunch child`, e.g. rank 3
  std::string boot; ///< start: `run_dir` in it is replaced by the node's own; tell: the word
  int number = 0;   ///< signal
};
std::string to_json(const node_order& order);
result<node_order> parse_order(std::string_view line);

/// Node process to launcher.
enum class report_kind : std::uint8_t {
  hello,  ///< is there: host, cores
  status, ///< a child's status line: name, text
  log,    ///< a child's log line: name, text
  exited, ///< name, state, text says it in words
  failed, ///< a child could not be started, or the node cannot go on: name (or empty), text
  lost,   ///< a child is dead for certain and not reaped yet: name, text says how that is known
  stuck,  ///< a rank makes no progress: name, text, phase, stuck_ms
  beat,   ///< answer to an order beat
};
struct node_report {
  report_kind kind = report_kind::hello;
  std::string name{};
  std::string text{};
  exit_state state{};
  std::string host{};         ///< hello
  std::uint32_t cores = 0;    ///< hello
  std::string phase{};        ///< stuck
  std::uint32_t stuck_ms = 0; ///< stuck
};
std::string to_json(const node_report& report);
result<node_report> parse_report(std::string_view line);

} // namespace di::launch
