// SPDX-License-Identifier: Apache-2.0
// A node process that is not the launcher's own: takes orders, starts children, reports. When the
// launcher is gone, its children end too.
#pragma once

#include "launch/line_backlog.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace di::launch {

/// How a node process hears and speaks. Used on the main thread.
class node_voice {
public:
  virtual ~node_voice() = default;
  /// A descriptor that is readable when read() has something, or the end, to say.
  virtual int fd() const = 0;
  /// Calls `line` for each order that is there. @return false: the launcher is gone
  virtual bool read(const std::function<void(const std::string&)>& line) = 0;
  /// Never waits for a launcher that is slow, if the voice can keep lines.
  virtual void write(const std::string& line, line_worth worth) = 0;
  /// Sends what write() kept. @return false: some of it still waits; call again later
  virtual bool flush() { return true; }
  /// Spare lines dropped since the last call.
  virtual std::uint64_t take_dropped() { return 0; }
};

struct node_options {
  std::uint32_t node = 0;
  std::string program; ///< runs `child <role> <index>`
};

/// Serves orders until told to leave or the launcher is gone. Returns the exit code. Call on the
/// main thread of a process without children.
int serve_node(const node_options& options, node_voice& voice);

/// The voice over stdin and stdout, for `dilaunch node`.
std::unique_ptr<node_voice> make_pipe_voice();

} // namespace di::launch
