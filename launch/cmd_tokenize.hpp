// SPDX-License-Identifier: Apache-2.0
// `dilaunch tokenize` and `dilaunch detokenize`: JSON lines in, JSON lines out.
#pragma once

#include "engine/text/tokenizer.hpp"
#include "launch/line_command.hpp"

#include <iosfwd>

namespace CLI {
class App;
}

namespace di::launch {

/// Encodes lines `{"text", ...}` into `{"id"?, "text", "ids", "ids_plain", "pieces"?}`.
///
/// `ids` counts spellings of control tokens, `ids_plain` does not and is null when equal to `ids`.
/// A field `id` is passed on. Blank lines are skipped; a bad line is named on `errors` with its
/// number and does not stop the others.
/// @param with_pieces   adds what the pre-tokenizer cuts (of the whole text, control tokens not
/// recognised)
line_counts tokenize_lines(const engine::tokenizer& words, bool with_pieces, std::istream& in,
                           std::ostream& out, std::ostream& errors);

/// Decodes lines `{"ids", ...}` into `{"id"?, "ids", "bytes_hex", "text", "text_skip_special",
/// "stream", "stream_flush"}`; text_skip_special is null when equal to `text`.
line_counts detokenize_lines(const engine::tokenizer& words, std::istream& in, std::ostream& out,
                             std::ostream& errors);

/// Adds both commands. They set `exit_code`: 0 done, 2 no such tokenizer or file, 5 some lines
/// failed.
void add_tokenize_commands(CLI::App& app, int& exit_code);

} // namespace di::launch
