// SPDX-License-Identifier: Apache-2.0
// The groups of routes that add_public_routes() puts together.
#pragma once

#include "launch/serve/router.hpp"

namespace di::serve {

void add_chat_routes(router& to, service& home);        ///< POST /v1/chat/completions ...
void add_messages_routes(router& to, service& home);    ///< POST /v1/messages, count_tokens
void add_completions_routes(router& to, service& home); ///< POST /v1/completions, FIM
void add_model_routes(router& to, service& home);       ///< models, tokenize, detokenize
void add_health_routes(router& to, service& home);      ///< health, version, metrics

} // namespace di::serve
