// SPDX-License-Identifier: Apache-2.0
// What a checked request body becomes, whatever its protocol: prompt, sampling, how to read the
// answer; and what it becomes if it is refused.
#pragma once

#include "engine/chat/parse_options.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace di::engine {

/// Which conversation form a model was trained on.
enum class prompt_encoding : std::uint8_t { v41, v4 };

/// A stretch of the prompt: exactly one added token, or text in which spellings of added tokens are
/// ordinary characters.
struct prompt_segment {
  bool special = false;
  std::string text; ///< UTF-8; the token's spelling if special
  friend bool operator==(const prompt_segment&, const prompt_segment&) = default;
};

/// An image of the conversation, in prompt order.
struct prompt_image {
  std::string kind;   ///< "url" or "data_url"
  std::string detail; ///< auto, low, high, original
  std::string path;   ///< where in the body, e.g. "messages.0.content[1]"
  std::string source; ///< the url as given
};

/// What the output may look like; a backend that can enforce it does.
struct output_constraint {
  std::string kind;   ///< json, regex, tool_call, tool_call_required
  std::string schema; ///< JSON text or expression; empty: any JSON
};

enum class effort_level : std::uint8_t { low, high, xhigh, max };
enum class tool_choice_kind : std::uint8_t { automatic, none, required, named };
enum class response_format_kind : std::uint8_t { text, json_object, json_schema, regex };

/// Why a body is refused. The text is meant for the client, is valid UTF-8 and at most 2 KiB.
struct request_error {
  enum class stage : std::uint8_t {
    parse,   ///< not JSON, a wrong type, an unknown word, a missing field
    convert, ///< a rule of the API
  };
  stage phase = stage::convert;
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code = "invalid_request_error";
  std::string message;
  std::optional<std::string> param; ///< the field, e.g. "messages[1].content"
};

/// A request that may be computed.
///
/// Plain value. `sampling.max_tokens` is 0 until resolve_max_tokens() sets it; `sampling.stop` is
/// empty for chat, responses and messages (their stop strings are parsing.stop: they count in the
/// answer only) and filled for completions.
struct prepared_request {
  api protocol = api::chat;
  std::string model;      ///< as the client named it
  std::string model_name; ///< the canonical name
  bool stream = false;
  bool include_usage = false;           ///< stream_options.include_usage
  std::vector<prompt_segment> segments; ///< empty if prompt_ids is set
  std::vector<token_id> prompt_ids;     ///< completions whose prompt is a list of ids
  std::vector<prompt_image> images;
  proto::sampling_params sampling;
  std::optional<std::uint32_t> max_tokens;   ///< [tokens] as given
  std::optional<std::uint32_t> top_logprobs; ///< [tokens] as given, if logprobs are wanted
  bool seed_given = false;                   ///< else the gateway draws sampling.seed
  parse_options parsing;
  std::optional<output_constraint> constraint;
  bool thinking = false;
  std::optional<effort_level> effort; ///< none: thinking is off
  tool_choice_kind tool_choice = tool_choice_kind::automatic;
  response_format_kind response_format = response_format_kind::text;
  bool echo = false;                     ///< completions: the prompt comes before the answer
  std::vector<std::string> custom_tools; ///< responses: tools whose calls are custom_tool_call
  std::int32_t priority = 0;             ///< [-10, 10]
  std::string cache_salt;                ///< only equal ones share cached prefixes
  std::string user;                      ///< user, user_id, metadata.user_id, safety_identifier
  std::vector<std::string> warnings; ///< fields that were ignored, one sentence each; at most 16
};

/// A request, or why there is none.
using prepare_outcome = std::variant<prepared_request, request_error>;

/// "low", "high", "xhigh", "max"
const char* to_string(effort_level level) noexcept;
/// "auto", "none", "required"; named counts as required
const char* to_string(tool_choice_kind kind) noexcept;
/// "text", "json_object", "json_schema", "regex"
const char* to_string(response_format_kind kind) noexcept;

} // namespace di::engine
