// SPDX-License-Identifier: Apache-2.0
// The children of one node process: started, listened to, certified dead.
#pragma once

#include "launch/poll_loop.hpp"
#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace di::launch {

/// One child as the node process starts it.
struct child_spec {
  std::string name;              ///< "control" or "rank 3"; unique in the cluster
  std::vector<std::string> argv; ///< without keys: other users can read it
  std::string boot;              ///< JSON for boot_fd
  int terminal = -1;             ///< handed on as terminal_fd
  bool share_stdout = false;     ///< it writes the output of the whole run
  std::vector<int> segments;     ///< handed on from segments_fd on; only used by start()
};

/// What happens to children, told on the loop's thread.
struct child_events {
  std::function<void(const std::string& child, const std::string& json)> status;
  std::function<void(const std::string& child, const std::string& line)> log;
  /// After its last status and log line. `words` says how it ended, for people.
  std::function<void(const std::string& child, exit_state state, const std::string& words)> exited;
};

/// Owns the children of this process. Used on the loop's thread, which must be the main thread.
/// Destruction kills what still runs.
class child_set {
public:
  child_set(poll_loop& loop, child_events events) : loop_{loop}, events_{std::move(events)} {}
  ~child_set();
  child_set(const child_set&) = delete;
  child_set& operator=(const child_set&) = delete;

  /// @errors duplicate, io_error
  result<void> start(const child_spec& spec);
  void signal(const std::string& name, int number);
  void signal_all(int number);
  std::size_t running() const noexcept { return children_.size(); }
  std::vector<std::string> names() const;

private:
  struct child {
    std::string name;
    child_process process;
    line_reader status_lines, log_lines;
    std::string last_line;
  };
  void read_status(child& c);
  void read_log(child& c);
  void ended(const std::string& name);

  poll_loop& loop_;
  child_events events_;
  std::map<std::string, std::unique_ptr<child>> children_;
};

} // namespace di::launch
