// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/prepare.hpp"

#include "engine/chat/request_draft.hpp"

#include <algorithm>

namespace di::engine {
namespace {

// Each field is looked up by going through all: a body of a million of them would cost seconds.
constexpr std::size_t fields_max = 1024;

} // namespace

std::variant<json, request_error> parse_body(std::string_view body, const request_rules& rules) {
  chat_json_limits limits;
  limits.bytes_max = rules.body_bytes_max;
  limits.depth_max = rules.json_depth_max;
  limits.repeated = rules.strict_reference ? repeated_keys::keep_last : repeated_keys::refuse;
  result<json> parsed = parse_chat_json(body, limits);
  request_error error;
  error.phase = request_error::stage::parse;
  if (!parsed.ok()) {
    error.message = parsed.error().what;
    if (parsed.error().code == ec::limit_exceeded && body.size() > limits.bytes_max) {
      error.status = 413;
      error.code = "request_too_large";
    }
    return error;
  }
  if (parsed->is_object() && parsed->size() > fields_max) {
    error.message = fmt::format("invalid request body: {} fields, at most {} are read",
                                parsed->size(), fields_max);
    return error;
  }
  if (parsed->is_object())
    return std::move(parsed).value();
  error.message = fmt::format("invalid request body: expected an object, found {}", found(*parsed));
  return error;
}

prepare_outcome prepare_request(api protocol, const json& body, const request_rules& rules) {
  prepare_outcome out = [&] {
    switch (protocol) {
    case api::completions:
      return prepare_completions(body, rules);
    case api::chat:
      return prepare_chat(body, rules);
    case api::responses:
      return prepare_responses(body, rules);
    case api::messages:
      break;
    }
    return prepare_messages(body, rules);
  }();
  // The reference names no field.
  if (auto* const error = std::get_if<request_error>(&out); error && rules.strict_reference)
    error->param.reset();
  return out;
}

prepare_outcome prepare_text(api protocol, std::string_view body, const request_rules& rules) {
  auto parsed = parse_body(body, rules);
  if (auto* const error = std::get_if<request_error>(&parsed))
    return std::move(*error);
  return prepare_request(protocol, std::get<json>(parsed), rules);
}

result<std::vector<token_id>> encode_segments(const std::vector<prompt_segment>& segments,
                                              const tokenizer& words) {
  std::vector<token_id> out;
  for (const prompt_segment& segment : segments) {
    if (segment.special) {
      const std::optional<token_id> id = words.added_token(segment.text);
      if (!id)
        return fail(ec::not_found, "the tokenizer has no added token {}", segment.text);
      out.push_back(*id);
      continue;
    }
    DI_TRY(const std::vector<token_id> ids, words.encode(segment.text, encode_mode::plain));
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

std::string joined(const std::vector<prompt_segment>& segments) {
  std::string out;
  for (const prompt_segment& segment : segments)
    out += segment.text;
  return out;
}

std::variant<std::uint32_t, request_error> resolve_max_tokens(const prepared_request& request,
                                                              std::size_t prompt_tokens,
                                                              std::size_t context_tokens,
                                                              const request_rules& rules) {
  // A prompt that fills the context leaves no place for an answer; the reference lets it pass.
  const std::size_t asked = request.max_tokens.value_or(0);
  const std::size_t least = request.max_tokens || rules.strict_reference ? asked : 1;
  if (prompt_tokens + least > context_tokens) {
    request_error error;
    error.message = fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in "
        "the messages, {} in the completion). Please reduce the length of the messages or "
        "completion.",
        context_tokens, prompt_tokens + asked, prompt_tokens, asked);
    if (!rules.strict_reference)
      error.code = "context_length_exceeded";
    return error;
  }
  if (request.max_tokens)
    return *request.max_tokens;
  const std::size_t wanted = !request.thinking                     ? 8'192
                             : request.effort == effort_level::max ? 131'072
                                                                   : 65'536;
  const std::size_t left = std::max<std::size_t>(1, context_tokens - prompt_tokens);
  return static_cast<std::uint32_t>(std::min({wanted, left, std::size_t{rules.max_tokens_max}}));
}

} // namespace di::engine
