// SPDX-License-Identifier: Apache-2.0
// `dilaunch codec parse`: outputs of a model to the events and whole answers of a protocol, as JSON
// lines; what the gateway does, from the shell.
#pragma once

#include "engine/chat/answer.hpp"
#include "launch/cmd_tokenize.hpp"

#include <iosfwd>

namespace CLI {
class App;
}

namespace di::launch {

/// How outputs are read and shown.
struct parse_settings {
  bool strict_reference = false; ///< exactly the reference parser and request rules
  bool stored_form = false; ///< as stored vectors: call ids without their random part, the response
                            ///< object inside events of Responses cut
};

/// A row with its `final` and the `events` of its runs set.
///
/// Fields of a row: `family` (chat, responses, messages, completions; chat if missing), `request`
/// (the body: decides thinking, tools, stop, JSON), `ready` ([prompt tokens, cached tokens] or
/// null; missing: [0, 0]), `finish` (Stop, Length, ContentFilter or null; missing: Stop), and the
/// output: `runs` ([{split, chunks}]) or `text` (one chunk) or `ids` (one chunk of tokens). A chunk
/// is a text, a list of ids, or {ids, logprobs}. Several runs also give
/// `final_same_for_all_splits`, `finals` (if not) and `usage_by_split`. Events: one list for each
/// push.
/// @param words   null: rows with ids are refused
/// @errors   ec::bad_format, ec::bad_argument (the request is refused); names the field
result<engine::json> parse_row(engine::json row, const engine::tokenizer* words,
                               const parse_settings& settings);

/// Each line through parse_row(); a bad line is named on `errors` with its number and does not stop
/// the others.
line_counts parse_lines(const engine::tokenizer* words, const parse_settings& settings,
                        std::istream& in, std::ostream& out, std::ostream& errors);

/// Adds `codec parse` to a command `codec` (made if the app has none).
void add_codec_parse_command(CLI::App& app, int& exit_code);

} // namespace di::launch
