// SPDX-License-Identifier: Apache-2.0
// What a gateway accepts: models, bounds, and how closely it keeps to the reference encoding.
#pragma once

#include "engine/chat/prepared.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace di::engine {

/// What to do with tools that only a vendor's own server could run.
enum class server_tools : std::uint8_t { drop, reject };

/// A model name that requests may carry.
struct known_model {
  std::string name;  ///< as shown in errors and in /v1/models
  std::string alias; ///< another name for it, or empty; aliases are not listed in errors
  prompt_encoding encoding = prompt_encoding::v41;
};

/// The rules that a request is checked against. Immutable while requests are prepared; shared by
/// all threads.
///
/// Deviations from the reference encoding. With `strict_reference` each falls back to the reference
/// (doc/serving.md has the same list for users; tests/unit/chat/deviations_test.cpp tests both):
/// | what | reference | here |
/// |---|---|---|
/// | max_completion_tokens (Chat) | ignored | as max_tokens; it wins if both are there |
/// | n (Chat) | only 1 | 1..choices_max |
/// | effort as a number from 1 to 100 | refused | the number of the effort line |
/// | role developer (Chat) | refused | a system message |
/// | arguments of a call as an object (Chat) | refused | taken as they are |
/// | reasoning (Chat history) | ignored | as reasoning_content |
/// | tool_choice any (Messages) | like auto | required without thinking, else auto and a warning |
/// | parallel_tool_calls false, disable_parallel_tool_use | ignored | one call, which ends it |
/// | output_config.format (Messages) | ignored | a constraint: refused if there are none |
/// | refusal parts (Responses history) | refused | text |
/// | seed (Responses, Messages) | ignored | used |
/// | penalties | Chat: checked, unused | used |
/// | logit_bias, min_p, top_k, ... (engine's own) | ignored | checked, used |
/// | guided_*, structured_outputs, regex, ebnf | ignored | refused if there are no constraints |
/// | unknown model | 400 | 404 model_not_found |
/// | prompt too long | invalid_request_error | context_length_exceeded, also if it just fits |
/// | param of errors | null | the field |
/// | a range error of max_output_tokens (Responses) | says max_tokens | says max_output_tokens |
/// | repeated keys in a body | the last counts | refused with the byte |
/// | $defs of strict tools | dropped | kept, in strict form |
/// | unknown fields | ignored | a warning; refused with strict_fields |
/// | bytes of a stop string | no bound | stop_bytes_max |
struct request_rules {
  std::vector<known_model> models{{"DeepSeek-V4.1-Flash", {}, prompt_encoding::v41}};
  bool any_model = false; ///< unknown names stand for models[0] (servers of one model)

  bool strict_reference = false;         ///< exactly the reference encoding, oddities included
  bool strict_fields = false;            ///< unknown fields are an error, not a warning
  bool default_thinking = true;          ///< a request that does not say thinks
  bool reject_missing_reasoning = false; ///< of histories where it would be shown; else it is empty
  bool tagged_images = true;             ///< image parts become segments; else a 400
  bool constraints = false; ///< json_schema, regex and the like give `constraint`; else a 400
                            ///< "unsupported_parameter"
  server_tools responses_web_search = server_tools::drop;
  server_tools messages_web_search = server_tools::reject;
  bool test_hooks = false; ///< `forced_ids` of a body is honoured

  std::uint32_t max_tokens_max = 393'216; ///< [tokens] a request may ask for
  std::uint32_t choices_max = 16;         ///< [choices] n
  std::size_t stop_max = 16;              ///< [strings]
  std::size_t stop_bytes_max = 1024;      ///< [bytes] of one stop string; not in strict_reference
  std::size_t messages_max = 100'000;     ///< [messages or items] of a conversation
  std::size_t tools_max = 4'096;          ///< [tools]
  std::size_t json_depth_max = 128;       ///< [levels]
  std::size_t body_bytes_max = std::size_t{32} << 20; ///< [bytes]
  std::uint32_t vocab_size = 0; ///< [ids] bound of ids in a body; 0: unknown, only >= 0
};

} // namespace di::engine
