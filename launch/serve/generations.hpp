// SPDX-License-Identifier: Apache-2.0
// From a body to a generation: what all routes that generate have in common.
#pragma once

#include "launch/serve/session.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace di::serve {

/// Names of the fields that a test may use (gateway.test_hooks).
inline constexpr std::string_view forced_ids_field = "di_forced_ids";
inline constexpr std::string_view forced_text_field = "di_forced_text";

/// What engine/chat refuses, for the client.
api_error to_api_error(const engine::request_error& e);

/// A body as JSON whose model, if it names one, is served here (else 404 `model_not_found`).
std::variant<engine::json, api_error> read_body(const service& home, const call& c);

/// Takes the test fields out of a body: the ids that the ranks are to emit; empty: none. A 400
/// where the gateway has no test hooks. Text may spell special tokens; an end token follows it
/// unless it spells one.
std::variant<std::vector<token_id>, api_error> take_forced(const service& home, engine::json& body);

/// Checks, renders, tokenizes; fills everything of the generation that follows from body, headers,
/// key and settings. Warnings go to the call.
/// @param body  of read_body()
std::variant<generation, api_error> make_generation(const service& home, call& c,
                                                    engine::api protocol, engine::json body);

/// The same of a request that is prepared already.
std::variant<generation, api_error> make_generation(const service& home, call& c,
                                                    const engine::prepared_request& request);

/// Keeps a request resumable as its headers (Idempotency-Key) and the settings say.
std::optional<api_error> add_return(const service& home, const call& c, generation& g);

/// [ms] of `x-di-deadline-ms` or the settings, whichever is sooner; 0: none.
std::variant<std::uint64_t, api_error> deadline_of(const service& home, const call& c);

/// Who of the same tenant sends this Idempotency-Key again asks for the same request; empty: no
/// key.
std::string dedup_of(const call& c);

/// [bytes] of a client's text from which on it is worked on aside.
inline constexpr std::size_t aside_bytes = 64u << 10;

/// Makes something, and hands it on, on the thread of the call's connection. `make` uses nothing of
/// the call's client; it runs beside the HTTP threads if it reads much. If too much waits there,
/// what is handed on is a 503.
/// @param bytes  that `make` reads: of the body, of what is stored
template <class Made>
void make_aside(service& home, const call_ptr& c, std::size_t bytes, std::function<Made()> make,
                std::function<void(Made)> then) {
  if (bytes < aside_bytes)
    return then(make());
  const bool taken = home.aside(bytes, [c, make = std::move(make), then] {
    const auto made = std::make_shared<Made>(make());
    c->client->post([c, made, then] { then(std::move(*made)); });
  });
  if (!taken)
    then(make_error(503, "overloaded", "too many large bodies wait here"));
}

/// A text made aside, as JSON.
using text_or_error = std::variant<std::string, api_error>;
void answer_made(service& home, call& c, text_or_error made);

/// Answers with `input_tokens`, the length of the prompt that the call's body would become, beside
/// the fields of `shape`.
void answer_count(service& home, const call_ptr& c, engine::api protocol, engine::json shape);

/// A place for the call; counted if there is none.
/// @param back  the request that its client comes back to
std::variant<admission::ticket, api_error> admit(service& home, const call& c,
                                                 std::optional<request_id> back = std::nullopt);

/// The whole way of a route: resumes what Last-Event-ID names, else admits the call, makes a
/// generation of its body and starts it.
using generation_maker =
    std::function<std::variant<generation, api_error>(call&, engine::json body)>;
void run_generation(service& home, call_ptr c, engine::api protocol, const generation_maker& make);

} // namespace di::serve
