// SPDX-License-Identifier: Apache-2.0
// The parts of one gateway process, and the order in which they start and end.
#pragma once

#include "actors/serving_boot.hpp"
#include "actors/stream_gateway.hpp"
#include "launch/child_context.hpp"
#include "launch/serve/admin_listener.hpp"
#include "launch/serve/gateway_pages.hpp"
#include "launch/serve/readiness.hpp"
#include "launch/serve/router.hpp"
#include "launch/serve/service.hpp"
#include "launch/serve/serving_metrics.hpp"
#include "messaging/http/server.hpp"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace di::launch {

/// Used on the main thread. Later members go first: the HTTP server before what its handlers use.
class gateway_host {
public:
  /// @param c      outlives this; its system stops after stop()
  /// @param latch  hears of an end: drained, or an actor failed
  /// @errors those of the parts; bad_config: no tokenizer, wrong keys or TLS files
  result<void> start(child_context& c, end_latch& latch);
  /// What node 0 says.
  void hear(const node_word& word);
  /// Refuses new requests; the latch ends when the open ones have.
  void drain();
  /// Cuts off what is left; after a drain only who does not read his answer.
  void stop();

private:
  result<void> start_actors();
  result<void> start_http(const std::vector<int>& sockets);
  result<void> start_admin(const std::vector<int>& sockets);
  result<void> reload(const std::string& text);

  child_context* context_ = nullptr;
  end_latch* latch_ = nullptr;
  actors::model_outline model_;
  std::shared_ptr<serve::readiness> state_;
  std::shared_ptr<serve::serving_metrics> metrics_;
  std::shared_ptr<actors::gateway_desk> desk_;
  std::unique_ptr<serve::service> service_;
  std::unique_ptr<serve::router> router_;
  std::unique_ptr<http::server> http_;
  std::unique_ptr<serve::metrics_desk> metrics_desk_;
  std::unique_ptr<serve::admin_listener> admin_;
  std::atomic<bool> drained_{false};
  std::jthread drainer_;
};

} // namespace di::launch
