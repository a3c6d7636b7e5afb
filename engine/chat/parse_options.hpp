// SPDX-License-Identifier: Apache-2.0
// How the output of a model is to be read: what a request decides about its own answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace di::engine {

/// The protocol that a client speaks.
enum class api : std::uint8_t { completions, chat, responses, messages };

/// Where the output of the model begins, given what the prompt ends with.
/// @source prompt encoding specification, sections 4 and 7
enum class start_stage : std::uint8_t {
  answer,                 ///< behind `</think>`
  reasoning,              ///< behind `<think>`
  reasoning_continuation, ///< inside reasoning that the client began (prefix)
  answer_continuation,    ///< inside an answer that the client began (prefix)
  tool_calls,             ///< behind the opener of a forced call
};

/// What the output parser needs to know about a request.
struct parse_options {
  start_stage begins = start_stage::answer;
  bool tool_calls = false;       ///< DSML blocks are calls; false: they are text
  bool json = false;             ///< the answer is one JSON document, what stands around it is not
  bool thinking = false;         ///< reasoning is counted in the usage
  std::vector<std::string> stop; ///< end the answer; at most 16, none empty
  bool include_stop = false;     ///< (completions) the stop string stays in the text
  bool strict = false;           ///< exactly the reference parser, oddities included
  bool plain = false;            ///< (completions) all is answer but what the stop strings end
  bool one_call = false;         ///< the answer ends with its first tool call
};

} // namespace di::engine
