// SPDX-License-Identifier: Apache-2.0
// From a request body to a request that can be computed: the whole request side of the gateway as
// pure functions.
#pragma once

#include "engine/chat/json.hpp"
#include "engine/chat/prepared.hpp"
#include "engine/chat/request_rules.hpp"
#include "engine/text/tokenizer.hpp"

#include <string_view>
#include <variant>
#include <vector>

namespace di::engine {

/// Parses, checks and renders a body. Never throws, never aborts; any thread.
///
/// @cost     linear in the body
/// @source   prompt encoding specification, sections 1-6 and 8
prepare_outcome prepare_text(api protocol, std::string_view body, const request_rules& rules);

/// The first half: a JSON object, or the error of phase parse.
std::variant<json, request_error> parse_body(std::string_view body, const request_rules& rules);

/// The second half, for callers that change the body first (stored responses put earlier items in
/// front of `input`).
///
/// @param body   as parse_body() gave it
prepare_outcome prepare_request(api protocol, const json& body, const request_rules& rules);

/// Token ids of a prompt.
///
/// @errors   ec::not_found: the tokenizer has no such added token (names it)
result<std::vector<token_id>> encode_segments(const std::vector<prompt_segment>& segments,
                                              const tokenizer& words);

/// The segments joined, as a log or an echo shows them.
std::string joined(const std::vector<prompt_segment>& segments);

/// [tokens] that the request may generate: what it gave, or a default (8,192; thinking 65,536;
/// effort max 131,072) lowered to what the context leaves.
///
/// @param prompt_tokens    [tokens]
/// @param context_tokens   [tokens] prompt and answer together
/// @return   at least 1; or a 400 with code context_length_exceeded (strict_reference:
///           invalid_request_error) that names limit, sum and both parts
std::variant<std::uint32_t, request_error> resolve_max_tokens(const prepared_request& request,
                                                              std::size_t prompt_tokens,
                                                              std::size_t context_tokens,
                                                              const request_rules& rules = {});

} // namespace di::engine
