// SPDX-License-Identifier: Apache-2.0
// From topology and model to what the HTTP side of a gateway is told.
#pragma once

#include "actors/serving_boot.hpp"
#include "launch/serve/serve_settings.hpp"
#include "launch/topology.hpp"
#include "messaging/http/options.hpp"

#include <cstdint>

namespace di::serve {

/// What `gateway.*` and the model say to the routes. `gateway`: number of the process.
serve_settings settings_of(const launch::topology& t, const actors::model_outline& model,
                           std::uint32_t gateway);
http::limits http_limits_of(const launch::gateway_keys& g);
http::timeouts http_timeouts_of(const launch::gateway_keys& g);
/// Everything of the public listener but its sockets.
http::options http_options_of(const launch::gateway_keys& g);

} // namespace di::serve
