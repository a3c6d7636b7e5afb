// SPDX-License-Identifier: Apache-2.0
// The rings of all processes of a run, while it goes on, as the text of a trace file.
#pragma once

#include "launch/serve/asker.hpp"
#include "messaging/http/exchange.hpp"

namespace di::serve {

/// Streams what the tracers of all processes hold (those that this one has a route to, and its own)
/// to a client: a file for `dilaunch trace`. One part at a time, and only as fast as the client
/// takes it; recording goes on meanwhile. 404 if nothing is recorded (`up --trace-spans`).
/// @param office, from  outlive the exchange
void send_rings(bus::post_office& office, asker& from, const address& self,
                http::exchange_ptr client);

} // namespace di::serve
