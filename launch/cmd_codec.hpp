// SPDX-License-Identifier: Apache-2.0
// `dilaunch codec render`: request bodies to prompts, as JSON lines; what the gateway does, from
// the shell.
#pragma once

#include "engine/chat/json.hpp"
#include "engine/chat/request_rules.hpp"
#include "engine/text/tokenizer.hpp"
#include "launch/line_command.hpp"

#include <iosfwd>

namespace CLI {
class App;
}

namespace di::launch {

/// Rules of the codec commands: both encodings, images and constraints are rendered.
engine::request_rules codec_rules(bool strict_reference);

/// The `result` of one row: what becomes of its `request` (or `request_text`, the raw body).
///
/// Fields of a row: `family` (chat, responses, messages, completions; chat if missing), `options`
/// (default_thinking_mode, reasoning_content_behavior, responses_web_search, messages_web_search).
/// Fields of the result: doc/serving.md, "From the shell".
/// @param words   null: no `ids`, no `resolved_max_tokens`
engine::json render_row(const engine::json& row, const engine::tokenizer* words,
                        engine::request_rules rules);

/// Each line with its `result` added or replaced; a line that is no JSON object is named on
/// `errors` with its number and does not stop the others.
line_counts render_lines(const engine::tokenizer* words, const engine::request_rules& rules,
                         std::istream& in, std::ostream& out, std::ostream& errors);

/// Adds `codec render` to a command `codec` (made if the app has none).
void add_codec_render_command(CLI::App& app, int& exit_code);

} // namespace di::launch
