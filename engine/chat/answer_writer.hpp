// SPDX-License-Identifier: Apache-2.0
// What writes the events of one protocol; made by answer_stream, one per choice.
#pragma once

#include "engine/chat/answer.hpp"
#include "engine/chat/output_parser.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace di::engine {

/// One output token with its log probability.
struct token_entry {
  token_id id = 0;
  proto::position_logprobs logprobs;
};

/// A piece as a writer sees it: never of kind dropped.
struct shown_piece {
  piece_kind kind = piece_kind::answer;
  std::string_view text;
  std::span<const token_entry> tokens; ///< with logprobs only: tokens that it came from
};

/// Turns pieces into events and into the whole answer. Calls come in the order begin, piece..., end
/// or fail. Owner: one answer_stream.
class answer_writer {
public:
  answer_writer(std::shared_ptr<const answer_recipe> recipe, const tokenizer* words,
                std::uint32_t choice)
      : recipe_{std::move(recipe)}, words_{words}, choice_{choice} {}
  virtual ~answer_writer() = default;

  virtual void begin(const answer_usage& usage) = 0;
  virtual void piece(const shown_piece& piece) = 0;
  /// @param stop  the stop string that matched
  virtual void end(answer_end why, const std::string* stop, const answer_usage& usage) = 0;
  virtual void fail(const answer_failure& failure) = 0;

  /// An element of `choices`, or the whole response.
  virtual json final(const answer_usage& usage) const = 0;

  /// When it ended [s since 1970].
  virtual void ended_at(std::int64_t) {}

  answer_events take() { return std::exchange(events_, {}); }

protected:
  const answer_recipe& recipe() const noexcept { return *recipe_; }
  bool strict() const noexcept { return recipe_->parsing.strict; }
  /// It began in reasoning.
  bool reasons() const noexcept {
    return recipe_->parsing.begins == start_stage::reasoning
           || recipe_->parsing.begins == start_stage::reasoning_continuation;
  }
  void event(std::string name, json data) { events_.push_back({std::move(name), std::move(data)}); }

  /// `call_NN_` and 24 letters and digits, drawn from id, seed, choice and index.
  std::string call_id(std::size_t index) const;

  /// Objects of chat and responses: token, logprob, bytes, top_logprobs.
  json logprob_list(std::span<const token_entry> tokens) const;

  const tokenizer* words() const noexcept { return words_; }
  std::uint32_t choice() const noexcept { return choice_; }

private:
  std::shared_ptr<const answer_recipe> recipe_;
  const tokenizer* words_;
  std::uint32_t choice_;
  answer_events events_;
};

std::unique_ptr<answer_writer> make_chat_writer(std::shared_ptr<const answer_recipe> recipe,
                                                const tokenizer* words, std::uint32_t choice);
std::unique_ptr<answer_writer> make_completions_writer(std::shared_ptr<const answer_recipe> recipe,
                                                       const tokenizer* words,
                                                       std::uint32_t choice);
std::unique_ptr<answer_writer> make_responses_writer(std::shared_ptr<const answer_recipe> recipe,
                                                     const tokenizer* words, std::uint32_t choice);
std::unique_ptr<answer_writer> make_messages_writer(std::shared_ptr<const answer_recipe> recipe,
                                                    const tokenizer* words, std::uint32_t choice);

/// Text of a token inside logprobs: itself, or its bytes as `\xNN` if they are no UTF-8.
std::string token_label(std::string_view bytes);

/// A log probability that JSON can hold: at least -9999.
double shown_logprob(double value) noexcept;

/// Objects of chat and completions that go round the choices of a chunk or of a whole answer.
json envelope(const answer_recipe& recipe, std::string_view object);

/// `finish_reason` of chat and completions.
std::string_view finish_word(answer_end why) noexcept;

/// `{"error": {...}}` inside a stream of chat or completions.
json error_object(const answer_failure& failure);

} // namespace di::engine
