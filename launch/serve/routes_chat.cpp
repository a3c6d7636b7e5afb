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

using counted = std::variant<std::size_t, api_error>;

// As the request would be tokenized, whether or not it says max_tokens.
counted count(const service& home, const call& c) {
  auto body = read_body(home, c);
  if (const auto* no = std::get_if<api_error>(&body))
    return *no;
  auto& j = std::get<json>(body);
  if (!j.contains("max_tokens"))
    j["max_tokens"] = 1;
  const auto prepared = engine::prepare_request(api::messages, j, home.rules(true));
  if (const auto* no = std::get_if<engine::request_error>(&prepared))
    return to_api_error(*no);
  const auto ids =
      engine::encode_segments(std::get<engine::prepared_request>(prepared).segments, *home.words());
  if (!ids)
    return from_cluster(ec::internal, ids.error().what, 0);
  return ids->size();
}

void count_tokens(service& home, call_ptr c) {
  make_aside<counted>(
      home, c, [&home, c] { return count(home, *c); },
      [&home, c](counted n) {
        if (const auto* no = std::get_if<api_error>(&n))
          return home.refuse(*c, *no);
        home.answer(*c, 200, json{{"input_tokens", std::get<std::size_t>(n)}}.dump());
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
    to.add("POST", path, [&home](call_ptr c) { count_tokens(home, std::move(c)); },
           {dialect::anthropic, true, served_route::count_tokens});
}

} // namespace di::serve
