// SPDX-License-Identifier: Apache-2.0
// Hands facts on to those who listen, by the name of the message.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/topic.hpp"

#include <map>
#include <string>
#include <vector>

namespace di::engine {

/// Example: /rank/0 and /rank/1 publish step_finished, /cluster/meter listens to it:
///
///   /rank/0/rank ──step_finished──▶ /control/topic ──step_finished──▶ /cluster/meter
///   /rank/1/rank ──step_finished──▶      │
///                  child_restarted       └─ nobody listens: counted, dropped
///
/// The body is shared, not copied. A subscriber stays until it unsubscribes: one that is down at
/// the moment misses facts and gets them again after its restart.
class topic_core {
public:
  static constexpr std::size_t subscribers_max = 1'024; ///< per fact
  static constexpr std::size_t facts_max = 4'096;

  void on(const proto::subscribe& m, instant now, outbox& out);
  void on(const proto::unsubscribe& m);
  void on_any(const parcel& fact, const origin& from, instant now, outbox& out) const;

private:
  std::map<std::string, std::vector<address>, std::less<>> subscribers_; ///< name of fact -> paths
};

} // namespace di::engine
