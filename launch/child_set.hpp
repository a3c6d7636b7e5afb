// SPDX-License-Identifier: Apache-2.0
// The children of one node process: started, listened to, certified dead.
#pragma once

#include "launch/child_link.hpp"
#include "launch/life_page.hpp"
#include "launch/poll_loop.hpp"
#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace di::launch {

/// One child as the node process starts it.
struct child_spec {
  std::string name;              ///< "control" or "rank 3"; unique in the cluster
  std::vector<std::string> argv; ///< without keys: other users can read it
  std::string boot;              ///< JSON for boot_fd
  int terminal = -1;             ///< handed on as terminal_fd
  std::vector<int> segments;     ///< handed on from segments_fd on (of a gateway: listening
                                 ///< sockets); only used by start()
  bool pipe_stdout = false;      ///< its output is taken with take_output()
  bool life_page = false;        ///< it holds a life page; its boot says so too
};

/// What happens to children, told on the loop's thread.
struct child_events {
  std::function<void(const std::string& child, const std::string& json)> status;
  std::function<void(const std::string& child, const std::string& line)> log;
  /// It is dead for certain, and may not be reaped yet: once, before `exited`.
  std::function<void(const std::string& child, const std::string& how)> lost;
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
  /// Says something to a child; nothing if it does not run.
  void tell(const std::string& name, const node_word& word, int descriptor = -1);
  /// To all that hold a life page, i.e. the ranks.
  void tell_ranks(const node_word& word, int descriptor = -1);
  void signal_all(int number);
  std::size_t running() const noexcept { return children_.size(); }
  bool runs(const std::string& name) const { return children_.contains(name); }
  std::vector<std::string> names() const;
  /// The reading end of its output, once; not blocking. Empty: there is none.
  unique_fd take_output(const std::string& name);
  /// For watchers of progress. Null: it does not run, or has no life page.
  const life_words* words_of(const std::string& name) const;
  pid_t pid_of(const std::string& name) const;
  int pidfd_of(const std::string& name) const;

private:
  struct child {
    std::string name;
    child_process process;
    std::unique_ptr<child_speaker> speaker;
    std::optional<life_page> page;
    std::unique_ptr<life_watch> watch; ///< after page; goes when the process is dead
    line_reader status_lines, log_lines;
    std::string last_line;
    bool lost = false;
  };
  void read_status(child& c);
  void read_log(child& c);
  void certified(child& c);
  void tell_lost(child& c, const std::string& how);
  void ended(const std::string& name);
  void forget(child& c);

  poll_loop& loop_;
  child_events events_;
  std::map<std::string, std::unique_ptr<child>> children_;
};

} // namespace di::launch
