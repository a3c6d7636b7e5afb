// SPDX-License-Identifier: Apache-2.0
// Tokens of an answer as text and markers for the output parser.
#pragma once

#include "engine/chat/output_parser.hpp"
#include "engine/text/tokenizer.hpp"
#include "messaging/base/utf8.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// What tokens become: text of ordinary ones, or one special one.
struct token_unit {
  std::uint32_t tokens = 0;        ///< [tokens] that it stands for, in the order of push()
  std::optional<token_id> special; ///< then `text` is its spelling
  std::string text;                ///< well-formed UTF-8, may be empty
};

/// Tokens as text and specials; never half a character.
///
/// Not strict: one unit for each token; what is well-formed goes on at once, an incomplete end
/// becomes U+FFFD. Strict: as the reference, ordinary tokens in a row make one unit, which is held
/// while it ends in something incomplete or broken, and dropped at the end.
class token_text {
public:
  /// @param words  outlives it; null: tokens have no text
  token_text(const tokenizer* words, bool strict, bool plain);

  /// Tokens that act as markers. @param by_token  false: only spellings do
  marker_tokens markers(bool by_token) const;

  void push(std::span<const token_id> ids, std::vector<token_unit>& out);
  void finish(std::vector<token_unit>& out);

  /// How a special token appears where it does not act. Not strict: control tokens (end of
  /// sentence, turns, images, placeholders) show nothing. @param at_start  nothing was shown yet
  std::string_view shown(const token_unit& unit, bool at_start) const;

private:
  void pass_text(bool whole, std::vector<token_unit>& out);

  const tokenizer* words_;
  bool strict_;
  bool plain_;
  marker_tokens markers_;
  std::string bytes_;        // not passed yet
  std::uint32_t tokens_ = 0; // that they came from and that were not passed
};

} // namespace di::engine
