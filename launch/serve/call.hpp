// SPDX-License-Identifier: Apache-2.0
// One HTTP request on its way through a route: who asks, in which dialect, and what is known of it.
#pragma once

#include "launch/serve/api_error.hpp"
#include "launch/serve/api_keys.hpp"
#include "launch/serve/request_record.hpp"
#include "launch/serve/serving_metrics.hpp"
#include "messaging/base/env.hpp"
#include "messaging/http/exchange.hpp"

#include <memory>
#include <string>
#include <vector>

namespace di::serve {

/// Owned by whoever has the request at the moment; used on the thread of its connection only.
/// Answered exactly once, by service::answer(), service::refuse() or a session.
struct call {
  http::request asked;
  http::exchange_ptr client;
  dialect shape = dialect::openai;
  std::vector<std::string> captures;    ///< what the `{...}` of the route's pattern stood for
  std::shared_ptr<const key_grant> who; ///< never null in a handler
  request_record record;                ///< id, route, tenant, trace are set
  instant began;                        ///< when the handler got it
  std::vector<std::string> warnings;    ///< go out in `x-di-warnings`
  served_route metric = served_route::other;
  bool head = false; ///< HEAD: a body is not sent
};
using call_ptr = std::shared_ptr<call>;

} // namespace di::serve
