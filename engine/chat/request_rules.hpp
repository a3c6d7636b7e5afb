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
/// | max_completion_tokens (Chat) | ignored | the same as max_tokens; the larger field name wins if
/// both | | n | only 1 | 1..choices_max | | tool_choice any (Messages) | like auto | required, if
/// thinking is off; else like auto, with a warning | | logit_bias, min_p, top_k,
/// repetition_penalty, stop_token_ids, ignore_eos, min_tokens | ignored | checked, used | |
/// presence and frequency penalty | accepted, unused | used | | logprobs with thinking, top_p with
/// thinking off | as sampled | top_p as asked also with thinking off | | repeated keys in a body |
/// first place, last value for free-form parts | refused with the byte | | reasoning (Chat history)
/// | ignored | the same as reasoning_content | | tool call arguments as an object (Chat history) |
/// refused | taken as they are | | role developer (Chat) | refused | a system message | |
/// max_tokens above the bound (Messages) | lowered | lowered, with a warning |
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
