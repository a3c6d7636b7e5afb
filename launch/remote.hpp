// SPDX-License-Identifier: Apache-2.0
// The launcher's side of a node process that is not its own: orders go out, reports come in.
#pragma once

#include "launch/node_link.hpp"
#include "launch/poll_loop.hpp"
#include "launch/process.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace di::launch {

/// Told on the loop's thread.
struct remote_events {
  std::function<void(std::uint32_t node, const node_report&)> report;
  /// The node process or the way to it is gone; once.
  std::function<void(std::uint32_t node, const std::string& words)> lost;
};

/// A node process elsewhere. Used on the loop's thread.
class remote_node {
public:
  virtual ~remote_node() = default;
  /// Never blocks; what cannot be sent now is sent later, in order.
  virtual void send(const node_order& order) = 0;
  /// Makes it end without manners.
  virtual void kill() = 0;
};

/// Starts a program that speaks on stdin and stdout: `dilaunch node`, or ssh to one.
/// @errors io_error
result<std::unique_ptr<remote_node>> start_remote(poll_loop& loop, std::uint32_t node,
                                                  std::vector<std::string> argv,
                                                  remote_events events);

/// One argument for a remote shell.
std::string shell_quoted(const std::string& word);

} // namespace di::launch
