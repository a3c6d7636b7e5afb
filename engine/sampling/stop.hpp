// SPDX-License-Identifier: Apache-2.0
// Where a completion ends: stop ids, stop strings, lengths; and which text and tokens may be sent
// before that is known.
#pragma once

#include "engine/sampling/sampling_params.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/utf8.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

/// Finds any of several strings in a stream of bytes (Aho-Corasick). Immutable, shared by all
/// choices of a request.
class stop_automaton {
public:
  explicit stop_automaton(std::span<const std::string> strings);

  /// State after one more byte. 0 is the start. @cost amortised constant
  std::uint32_t next(std::uint32_t state, char byte) const noexcept;

  /// Length of the longest beginning of a stop string that the stream ends with [bytes].
  std::uint32_t held_bytes(std::uint32_t state) const noexcept { return nodes_[state].depth; }

  /// The longest stop string that ends here, as its number; none if no string ends here.
  std::optional<std::uint32_t> match(std::uint32_t state) const noexcept {
    return nodes_[state].match == none ? std::nullopt : std::optional{nodes_[state].match};
  }

private:
  static constexpr std::uint32_t none = ~0U;
  struct node {
    std::uint32_t first_child = none, sibling = none;
    std::uint32_t shorter = 0; // longest proper suffix that is also a beginning of some string
    std::uint32_t depth = 0;
    std::uint32_t match = none;
    char byte = 0;
  };
  std::uint32_t child(std::uint32_t of, char byte) const noexcept;
  void link();

  std::vector<node> nodes_{node{}};
};

/// What ends the completions of one request. Immutable.
struct stop_rules {
  std::vector<token_id> end_ids; ///< sorted: stop_token_ids, and the eos ids unless ignore_eos
  std::vector<std::string> strings;
  bool include = false; ///< the stop string, or the text of the stop token, stays in the text
  std::uint32_t min_tokens = 0;  ///< nothing stops before this many tokens
  std::uint32_t max_tokens = 16; ///< [tokens] at least 1
  stop_automaton automaton;

  /// @pre params are valid
  stop_rules(const sampling_params& params, std::span<const token_id> eos_ids);
};

/// Why a completion ended.
enum class finish_reason : std::uint8_t { none, stop, length };

/// What became certain with one or more tokens.
struct stop_delta {
  std::string text;         ///< to be sent now; well-formed UTF-8
  std::uint32_t tokens = 0; ///< how many further tokens of the list are certain to stay (ids and
                            ///< logprobs go with them)
  finish_reason finish = finish_reason::none;
  std::optional<token_id> stop_id;          ///< which id ended it
  std::optional<std::uint32_t> stop_string; ///< which of stop_rules::strings ended it
};

/// Watches the tokens of one completion.
///
///     state      event                                      next       effect
///     running    text without a stop string                 running    sends what no stop string
///     can begin in running    a stop string ends                         finished   cuts text and
///     token list at the match running    an end id, min_tokens reached              finished sends
///     the rest; the id counts, its text does not running    max_tokens reached finished   sends
///     the rest finished   anything                                   finished   ignored
///
/// Strings are matched in the whole text of the completion, as it is sent: U+FFFD stands for each
/// ill-formed part. The string that ends first wins, the longest of those that end together. On a
/// match the token list ends with the token that holds the first byte of the match (its last byte
/// with `include`). Tokens inside min_tokens are not searched and the search starts afresh behind
/// them. Deltas joined are the same however tokens were grouped. Copyable value (a copy is a
/// snapshot for rollback); one owner, no locking.
/// @source   decode specification, F.2
class stop_watch {
public:
  explicit stop_watch(std::shared_ptr<const stop_rules> rules) : rules_{std::move(rules)} {}

  /// Takes the next token with its bytes (empty for tokens that are not shown).
  stop_delta push(token_id id, std::string_view bytes);

  /// Ends the completion from outside, e.g. the context is full: sends the rest.
  stop_delta finish(finish_reason reason);

  bool finished() const noexcept { return finish_ != finish_reason::none; }

  /// Tokens of the completion so far; once finished, the length of the final list.
  std::uint32_t tokens() const noexcept { return tokens_; }

private:
  void scan(std::string_view text, stop_delta& out);
  void end_with(token_id id, std::string_view bytes, stop_delta& out);
  void cut(std::size_t match_end, std::uint32_t string, stop_delta& out);
  void send_certain(stop_delta& out);
  void close(finish_reason reason, stop_delta& out);

  std::shared_ptr<const stop_rules> rules_;
  utf8_reassembler text_;
  std::string held_;             // text not sent yet; its first byte has offset sent_
  std::size_t sent_ = 0;         // [bytes] of text sent
  std::uint32_t state_ = 0;      // of the automaton
  std::deque<std::size_t> ends_; // text offset behind each token that is not released yet
  std::size_t released_end_ = 0; // text offset behind the last token that is released
  std::uint32_t tokens_ = 0;     // tokens taken
  finish_reason finish_ = finish_reason::none;
};

} // namespace di::engine
