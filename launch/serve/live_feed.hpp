// SPDX-License-Identifier: Apache-2.0
// The event stream of the live page: reads the cluster at a bounded rate and tells every viewer.
#pragma once

#include "launch/serve/cluster_reader.hpp"
#include "launch/serve/live_core.hpp"
#include "messaging/http/exchange.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace di::serve {

struct live_feed_options {
  std::chrono::milliseconds period{500};         ///< between readings while somebody looks
  std::chrono::milliseconds period_alone{5'000}; ///< and while nobody does, for the log
  std::uint32_t heat_every = 4;                  ///< readings until heat is asked for again
  std::size_t viewers = 32;                      ///< at a time
  std::string topology, model;                   ///< shown
};

/// Events of a stream, in order: `hello` {"run", "topology", "model", "period_ms"} once; then
/// `state`, `heat` (live_core.hpp) and `log` (new events; at first all that are kept). `id` is
/// <run>:<number of the last log event>, so that a viewer who reconnects with Last-Event-ID gets
/// what it missed, and all from the feed of another process.
///
/// A viewer whose buffer is full gets no state and no heat until it has drained; of the log it
/// misses nothing that is still kept. Memory: live_core's bounds, and each viewer's HTTP buffer.
///
/// Thread-safe; a thread of its own reads and writes.
class live_feed {
public:
  /// @param reader  outlives the feed
  live_feed(cluster_reader& reader, live_feed_options options);
  ~live_feed();
  live_feed(const live_feed&) = delete;
  live_feed& operator=(const live_feed&) = delete;
  /// Ends all streams; add() refuses from now on. The first call counts.
  void stop();

  /// Streams to a viewer from now on. @param last_id  its Last-Event-ID; empty: it has nothing
  /// @return false: too many viewers, or it has stopped; the exchange is untouched
  bool add(http::exchange_ptr viewer, std::string_view last_id = {});
  std::size_t viewers() const;

private:
  using clock = std::chrono::steady_clock;
  struct viewer {
    http::exchange_ptr to;
    std::uint64_t after = 0;
    std::shared_ptr<std::atomic<bool>> full;
  };
  struct slot; ///< where a reading is put; outlives rounds that are late

  void run();
  bool wait_until_due(clock::time_point began);
  void tell(viewer& v, const std::string& state, const std::string& heat);
  void greet();
  static http::written say(viewer& v, const std::string& event);

  cluster_reader& reader_;
  live_feed_options options_;
  const std::string run_;    ///< tells this feed from others
  live_core core_;           ///< of the feed's thread
  std::string state_, heat_; ///< of the feed's thread
  std::shared_ptr<slot> slot_;
  mutable std::mutex guard_; ///< of what follows
  std::vector<viewer> viewers_;
  std::vector<viewer> arriving_;
  bool stopped_ = false;
  std::thread thread_;
};

} // namespace di::serve
