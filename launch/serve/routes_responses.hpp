// SPDX-License-Identifier: Apache-2.0
// Responses of OpenAI: made, kept, shown again, continued, cancelled, deleted.
#pragma once

#include "launch/serve/public_id.hpp"
#include "launch/serve/router.hpp"

namespace di::serve {

/// POST /v1/responses, GET and DELETE /v1/responses/{id}, POST .../cancel, GET .../input_items; the
/// same below /responses.
///
/// A response is kept for settings.timeouts.stored_ttl_ms behind its end unless it says
/// `store: false`, and belongs to its tenant: of another's nobody learns that it exists. A client
/// that leaves cancels it, unless it is a background one or has an Idempotency-Key.
void add_responses_routes(router& to, service& home);

/// POST of a new one.
void create_response(service& home, call_ptr c);
/// Answers with a response of this client, as far as it is recorded.
void show_response(service& home, const call_ptr& c, const public_id& id);

} // namespace di::serve
