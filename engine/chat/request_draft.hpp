// SPDX-License-Identifier: Apache-2.0
// A request whose fields have the right types, before the rules of the API are applied; and the
// steps that all protocols share.
#pragma once

#include "engine/chat/body_reader.hpp"
#include "engine/chat/conversation.hpp"
#include "engine/chat/request_rules.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

enum class effort_word : std::uint8_t { none, low, high, xhigh, max };

/// What the bodies of all protocols say, in one form.
struct request_draft {
  api protocol = api::chat;
  std::string model;
  bool stream = false;
  bool stream_options_given = false, include_usage = false;

  std::optional<double> temperature, top_p, min_p;
  std::optional<double> frequency_penalty, presence_penalty, repetition_penalty;
  std::string_view max_tokens_field = "max_tokens"; ///< that the body gave it in
  std::optional<std::uint64_t> max_tokens, min_tokens, n, seed, top_logprobs, top_k;
  bool logprobs = false;
  std::vector<std::string> stop;
  std::vector<token_id> stop_token_ids, forced_ids;
  std::vector<proto::token_bias> logit_bias;
  bool ignore_eos = false, include_stop = false;
  bool parallel_tool_calls = true;
  std::int64_t priority = 0;
  std::string cache_salt, user;

  std::optional<bool> thinking;
  std::optional<effort_word> effort;
  std::uint32_t effort_number = 0; ///< [1, 100] if it was given as a number
  std::vector<tool_definition> tools;
  bool deferred_tools_only = false; ///< messages: refused
  tool_choice_kind choice = tool_choice_kind::automatic;
  std::string tool_name;
  response_format_kind format = response_format_kind::text;
  std::optional<json> schema;
  bool strict_schema = false;
  std::string regex;
  std::string grammar_field; ///< a field that asks for constrained output in another way

  std::vector<chat_message> messages;
  std::vector<std::string> custom_tools;
  bool bare = false;
};

/// What the steps of one request share.
struct request_context {
  const request_rules& rules;
  request_problems& problems;
};

/// Reads the fields that mean the same in all protocols: model, stream, sampling and its
/// extensions.
void read_common(const field_reader& body, request_draft& draft, const request_context& context);
/// `thinking: {type}`
void read_thinking(const field_reader& body, request_draft& draft);
/// One word of effort under `key`, or its number.
void read_effort(const field_reader& fields, std::string_view key, request_draft& draft,
                 const request_context& context);
/// A list of strings, or one string if `single` is allowed.
void read_stop(const field_reader& body, std::string_view key, bool single, request_draft& draft);
/// `stream_options: {include_usage}`
void read_stream_options(const field_reader& body, request_draft& draft);
/// `tool_choice` if it is a word: none, auto, required.
void read_choice_word(const field_reader& body, request_draft& draft);
/// The token ids of `list`, which stands under `key`; empty if one is none.
std::vector<token_id> read_ids(const field_reader& body, std::string_view key, const json& list,
                               const request_context& context);
/// name, description, parameters, strict, defer_loading of a function.
tool_definition read_function(const field_reader& fields, std::string_view parameters_key);
/// A field asks for a constraint that is not there yet: a warning, or with strict_fields an error
/// "unsupported_parameter". Nothing where constraints are given out, and in strict_reference.
void not_enforced(const std::string& field, std::string_view what, const request_context& context);
/// Names the fields of a body that nothing reads: warnings, or with strict_fields an error.
void check_unknown_fields(const field_reader& body, std::initializer_list<std::string_view> own,
                          const request_context& context);

/// Ranges of model, sampling, stop and the like.
void check_ranges(const request_draft& draft, const request_context& context);
/// Names, schemas and uniqueness of the tools. @param name_path  of tools[i], e.g. "function.name"
void check_tools(request_draft& draft, std::string_view name_path, bool normalise_strict,
                 const request_context& context);
/// Whether any text of the conversation has the letters "json".
bool mentions_json(const std::vector<chat_message>& messages);
/// Puts the results that follow an assistant message into the order of its calls.
void sort_tool_results(std::vector<chat_message>& messages);
/// Checks the url of an image and tells its kind. @param at  for the message
std::string image_kind(const std::string& url, const std::string& at, request_problems& problems);

/// The rest: effort, tool choice, format, then the prompt. @param no_json_text  the error if
/// json_object is asked for and no message has the word
prepare_outcome finish_request(request_draft&& draft, std::string_view no_json_text,
                               const request_context& context);

/// The protocols; each reads, checks and finishes a body.
prepare_outcome prepare_chat(const json& body, const request_rules& rules);
prepare_outcome prepare_responses(const json& body, const request_rules& rules);
prepare_outcome prepare_messages(const json& body, const request_rules& rules);
prepare_outcome prepare_completions(const json& body, const request_rules& rules);

/// Sampling of a draft without any rule of a model: what completions use.
void fill_sampling(const request_draft& draft, prepared_request& out);
/// The known model of that name, or null.
const known_model* find_model(const request_rules& rules, std::string_view name);

} // namespace di::engine
