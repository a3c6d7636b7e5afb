// SPDX-License-Identifier: Apache-2.0
// Cuts a text into the pieces within which merges may happen: the three splits of the DeepSeek
// tokenizer.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace di::engine {

/// The three expressions, in order, as they stand in tokenizer.json. A file with others is refused.
extern const std::string_view pre_tokenizer_patterns[3];

/// Cuts a text into pieces; joined they are the text.
///
/// One pass without backtracking over pieces: the first two splits only bound the third one, so
/// each place decides by its own class and the next character's. Beginning and end of `text` count
/// as beginning and end for the expressions.
///
/// @param text   well-formed UTF-8 (pre-condition; see utf8_valid_prefix)
/// @param ends   receives the end of each piece [bytes from the start of text], ascending; cleared
/// first
/// @cost         linear in text
/// @source       tokenizer specification, section 3 (facts observed from Hugging Face tokenizers
/// 0.23.3)
void cut_pieces(std::string_view text, std::vector<std::size_t>& ends);

} // namespace di::engine
