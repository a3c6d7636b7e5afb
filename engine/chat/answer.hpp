// SPDX-License-Identifier: Apache-2.0
// From the tokens of a model to the events and the whole answer of the protocol that its client
// speaks.
#pragma once

#include "engine/chat/json.hpp"
#include "engine/chat/parse_options.hpp"
#include "engine/text/tokenizer.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// All that turns the tokens of a request into what its client sees. Small: JOURNAL stores it as
/// the note of the request, so that any gateway can continue or repeat the answer.
struct answer_recipe {
  api protocol = api::chat;
  std::string id;           ///< public id: `chatcmpl-...`, `cmpl-...`, `resp_...`, `msg_...`
  std::string model;        ///< as shown to the client
  std::string fingerprint;  ///< `system_fingerprint`; empty: null
  std::int64_t created = 0; ///< [s] since 1970
  parse_options parsing;
  bool include_usage = false;     ///< (chat, completions) a stream ends with a chunk of usage
  std::uint32_t n = 1;            ///< [choices]
  std::int32_t top_logprobs = -1; ///< -1: no logprobs; 0: of the chosen token only
  std::uint64_t seed = 0;         ///< of the request; item and call ids are drawn from it
  std::string echo_text;          ///< (completions) stands before each text: `echo`
  std::vector<std::string> custom_tools; ///< (responses) calls of these are custom_tool_call
  json echo; ///< (responses) object of request fields that the response repeats (`instructions`,
             ///< `tools`, `text`, `store`, `metadata`, ...); its keys replace the defaults. Else
             ///< null

  /// Version 1. Bytes that from_json takes back to an equal recipe.
  std::string to_json() const;

  /// @errors   ec::bad_format: not such an object (names the key), or another version
  static result<answer_recipe> from_json(std::string_view text);
};

/// One event of a stream.
struct answer_event {
  std::string name; ///< line `event:`; empty: none (chat, completions)
  json data;        ///< line `data:`
};
using answer_events = std::vector<answer_event>;

/// Data line of an event: compact JSON, always valid UTF-8.
std::string event_data(const answer_event& event);

/// What a stream of chat or completions ends with (as a data line) after its last event.
inline constexpr std::string_view stream_done = "[DONE]";

/// Why a choice ended, as far as its client is told.
enum class answer_end : std::uint8_t { stop, length, content_filter, cancelled };

/// What a choice took. All [tokens].
struct answer_usage {
  std::uint64_t prompt = 0;
  std::uint64_t cached = 0;     ///< of the prompt: not computed
  std::uint64_t completion = 0; ///< taken from the model, also those that show no text
  std::uint64_t reasoning = 0;
};

/// Why an answer failed after it had begun.
struct answer_failure {
  std::string type = "server_error"; ///< `api_error` and the like in Messages
  std::string code = "server_error";
  std::string message;
};

class answer_stream_impl;

/// Turns the tokens of ONE choice into events of its protocol and into the whole answer.
///
/// Deterministic: unless `parsing.strict`, the same tokens give the same events however they are
/// grouped, and joined deltas equal what final() shows. One owner, no locking; the tokenizer
/// outlives it. Use: ready(), push()..., finish() or fail(), close(). Order: ready() first (push()
/// calls it with zeros if it was left out); nothing has an effect after finish(), fail(), or once
/// ended_by_text() has a value (but for close()).
///
/// A stream that is continued: make one anew, skip(events the client has), push the tokens from
/// output index 0.
class answer_stream {
public:
  /// @param words   null: only push_text() is possible, reasoning tokens are counted as they come
  /// @param choice  index, [0, recipe->n)
  answer_stream(std::shared_ptr<const answer_recipe> recipe, const tokenizer* words,
                std::uint32_t choice = 0);
  ~answer_stream();
  answer_stream(answer_stream&&) noexcept;
  answer_stream& operator=(answer_stream&&) noexcept;

  /// The next `events` events are made but not returned.
  void skip(std::uint64_t events);

  /// Events made so far (also skipped ones): what the id of an SSE event counts.
  std::uint64_t events() const noexcept;

  /// The request was taken. Gives the first event(s): role chunk, response.created, message_start.
  answer_events ready(std::uint64_t prompt_tokens, std::uint64_t cached_tokens);

  /// Tokens of the choice, in order. @param logprobs one per token, or none
  answer_events push(std::span<const token_id> ids,
                     std::span<const proto::position_logprobs> logprobs = {});

  /// Text of a model without tokens (codec, tests). @param tokens [tokens] that it counts for
  answer_events push_text(std::string_view text, std::uint64_t tokens = 1);

  /// The choice ended; gives what was held back and the last events of the choice.
  answer_events finish(answer_end why = answer_end::stop);

  /// The choice failed after its first event: `error`, `response.failed`, a chunk with `error`.
  answer_events fail(const answer_failure& failure);

  /// The end of the stream: finish(stop) if nothing had ended it, else nothing.
  answer_events close();

  /// A stop string of the answer has matched, or its only call is complete: the choice ended after
  /// so many tokens of it (the one that completed the string is the last). The caller ends the
  /// choice in the cluster.
  struct text_end {
    std::uint32_t tokens = 0;     ///< [tokens] taken, the one with the end of the string included
    std::int32_t stop_index = -1; ///< into parsing.stop; -1: a call
  };
  std::optional<text_end> ended_by_text() const noexcept;

  /// When the answer ended [s since 1970], for protocols that show it. Before or after finish().
  void ended_at(std::int64_t seconds);

  /// Whether finish(), fail() or its text ended it.
  bool ended() const noexcept;

  answer_usage usage() const noexcept;

  /// The whole-response object as of now (after the end: the final one), for n = 1.
  json final() const;

  /// This choice alone: an element of `choices` (chat, completions); else as final().
  json final_choice() const;

private:
  std::unique_ptr<answer_stream_impl> impl_;
};

/// One whole response of all choices. @pre one stream per choice, in order
json whole_answer(const answer_recipe& recipe, std::span<const answer_stream* const> choices);

/// What follows once ALL choices have ended: the chunk with `choices: []` and the usage of all of
/// them if asked for, else nothing. Then comes `stream_done` for chat and completions.
answer_events last_events(const answer_recipe& recipe,
                          std::span<const answer_stream* const> choices);

/// `usage` as a protocol writes it. @param with_reasoning  `reasoning_tokens` is shown
json usage_object(api protocol, const answer_usage& usage, bool with_reasoning);

/// How a choice that JOURNAL calls ended is shown.
answer_end to_answer_end(proto::finish_reason reason) noexcept;

} // namespace di::engine
