// SPDX-License-Identifier: Apache-2.0
// Chat completions of OpenAI and Messages of Anthropic.
#include "launch/serve/generations.hpp"
#include "launch/serve/routes.hpp"

#include <utility>

namespace di::serve {
namespace {

using engine::api;
using engine::json;

void generate(service& home, call_ptr c, api protocol) {
  run_generation(home, std::move(c), protocol, [&home, protocol](call& of, json body) {
    return make_generation(home, of, protocol, std::move(body));
  });
}

} // namespace

void add_chat_routes(router& to, service& home) {
  for (const auto* path : {"/v1/chat/completions", "/chat/completions", "/beta/chat/completions"})
    to.add("POST", path, [&home](call_ptr c) { generate(home, std::move(c), api::chat); },
           {dialect::openai, true, served_route::chat});
}

void add_messages_routes(router& to, service& home) {
  for (const auto* path : {"/v1/messages", "/anthropic/v1/messages"})
    to.add("POST", path, [&home](call_ptr c) { generate(home, std::move(c), api::messages); },
           {dialect::anthropic, true, served_route::messages});
  for (const auto* path : {"/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"})
    to.add("POST", path,
           [&home](call_ptr c) { answer_count(home, c, api::messages, json::object()); },
           {dialect::anthropic, true, served_route::count_tokens});
}

} // namespace di::serve
