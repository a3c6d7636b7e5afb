// SPDX-License-Identifier: Apache-2.0
// Reads how the cluster is: questions to the actors of the control process, and their answers
// together.
#pragma once

#include "messaging/bus/post_office.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/keeper.hpp"
#include "messaging/proto/scheduler.hpp"
#include "messaging/proto/telemetry.hpp"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace di::serve {

/// Answers to one round of questions; what did not answer in time is missing.
struct cluster_reading {
  std::optional<proto::keeper_state> keeper;
  std::optional<proto::schedule> schedule;
  std::optional<proto::journal_state> journal;
  std::optional<proto::snapshot> counters;
  std::optional<proto::expert_heat> heat; ///< only if asked for
  std::string missing;                    ///< why KEEPER did not answer; empty if it did
};

/// Thread-safe. Sits at a path of the post office until it is destroyed.
class cluster_reader {
public:
  using done_fn = std::function<void(cluster_reading)>;
  static constexpr duration timeout = std::chrono::seconds{2};
  static constexpr std::size_t rounds_max = 64; ///< under way at a time; further ones get nothing

  /// @param office  outlives the reader  @param path  free there, e.g. "/gateway/0/reader"
  /// @errors duplicate
  static result<std::unique_ptr<cluster_reader>> open(bus::post_office& office, address path);
  ~cluster_reader();
  cluster_reader(const cluster_reader&) = delete;
  cluster_reader& operator=(const cluster_reader&) = delete;

  /// Asks all. @param done  called once within the timeout, on any thread, also on the caller's;
  /// it must not wait
  void read(bool with_heat, done_fn done);

private:
  struct desk; ///< shared with the post office, which may deliver for a moment after unbind()
  explicit cluster_reader(std::shared_ptr<desk> d) : desk_{std::move(d)} {}
  std::shared_ptr<desk> desk_;
};

} // namespace di::serve
