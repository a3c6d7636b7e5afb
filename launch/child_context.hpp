// SPDX-License-Identifier: Apache-2.0
// What the children of all roles have in common: boot configuration, post office,
// status line, and the wait for an end.
#pragma once

#include "actors/registry.hpp"
#include "actors/system.hpp"
#include "launch/boot.hpp"
#include "launch/child_link.hpp"
#include "launch/life_page.hpp"
#include "launch/poll_loop.hpp"
#include "launch/process.hpp"
#include "launch/topology.hpp"
#include "messaging/base/result.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace di::launch {

/// The main thread's wait: ended by a signal, or by any thread with a verdict. The first verdict
/// counts.
class end_latch {
public:
  end_latch();
  /// Any thread. `why` is empty for an end that needs no words.
  void end(int code, std::string why = {});

  struct verdict {
    int code = 0;
    std::string why;
  };
  /// Main thread. Waits for a verdict; `drain` is called on each SIGINT; SIGTERM ends with
  /// exit_gave_up and nothing to say: whoever sent it knows why. What the node process tells goes
  /// to `heard`.
  verdict wait(const std::function<void()>& drain, node_word_fn heard = {});

private:
  unique_fd event_;
  std::mutex guard_;
  std::optional<verdict> verdict_;
};

/// One child's start, step by step.
struct child_context {
  boot_config boot;
  topology config;
  life_words* life = nullptr; ///< this rank's life page; null: it has none
  actors::registry types;
  std::unique_ptr<bus::post_office> office;
  std::unique_ptr<actors::system> system; ///< after office: it goes first

  address prefix() const;
  /// Reads boot_fd and the topology. @errors io_error, bad_format, bad_config
  static result<child_context> take();
  /// Loads plugins if this process has user actors, opens the post office, reports `bound`.
  /// @errors those of load_plugin and make_post_office
  result<void> open(bool with_plugins);
  /// If the topology wants it (log.counters): one line with all counters of this process.
  void log_counters() const;
};

int control_process(child_context& c, end_latch& latch);
int rank_process(child_context& c, end_latch& latch);
int gateway_process(child_context& c, end_latch& latch);

/// Code and report for a child that cannot go on.
int give_up(const error& why);

} // namespace di::launch
