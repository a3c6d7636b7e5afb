// SPDX-License-Identifier: Apache-2.0
// One choice: tokens to text, text to pieces, pieces to events; and what joins several choices.
#include "engine/chat/answer.hpp"

#include "engine/chat/answer_writer.hpp"
#include "engine/chat/token_text.hpp"

#include <algorithm>
#include <deque>
#include <utility>

namespace di::engine {
namespace {

std::unique_ptr<answer_writer> make_writer(const std::shared_ptr<const answer_recipe>& recipe,
                                           const tokenizer* words, std::uint32_t choice) {
  switch (recipe->protocol) {
  case api::completions:
    return make_completions_writer(recipe, words, choice);
  case api::responses:
    return make_responses_writer(recipe, words, choice);
  case api::messages:
    return make_messages_writer(recipe, words, choice);
  case api::chat:
    break;
  }
  return make_chat_writer(recipe, words, choice);
}

parse_options parsing_of(const answer_recipe& recipe) {
  parse_options p = recipe.parsing;
  p.plain = p.plain || recipe.protocol == api::completions;
  return p;
}

} // namespace

class answer_stream_impl {
public:
  answer_stream_impl(std::shared_ptr<const answer_recipe> recipe, const tokenizer* words,
                     std::uint32_t choice)
      : recipe_{std::move(recipe)},
        options_{parsing_of(*recipe_)},
        words_{words},
        text_{words, options_.strict, options_.plain},
        parser_{options_, text_.markers(false)},
        writer_{make_writer(recipe_, words, choice)} {}

  void begin(std::uint64_t prompt, std::uint64_t cached) {
    if (std::exchange(begun_, true))
      return;
    usage_.prompt = prompt;
    usage_.cached = std::min(cached, prompt);
    writer_->begin(usage_);
  }

  void push(std::span<const token_id> ids, std::span<const proto::position_logprobs> logprobs) {
    begin(0, 0);
    if (ended_)
      return;
    take_mode(true);
    if (recipe_->top_logprobs >= 0)
      for (std::size_t i = 0; i < std::min(ids.size(), logprobs.size()); ++i)
        unplaced_.push_back({ids[i], logprobs[i]});
    text_.push(ids, units_);
    take_units();
  }

  void push_text(std::string_view text, std::uint64_t tokens) {
    begin(0, 0);
    if (ended_)
      return;
    take_mode(false);
    usage_.completion += tokens;
    parser_.text(utf8_lossy(text), ++chunk_, pieces_);
    parser_.end_chunk(pieces_);
    show();
  }

  void finish(answer_end why) {
    begin(0, 0);
    if (ended_)
      return;
    text_.finish(units_);
    take_units();
    if (ended_) // its text did, only now
      return;
    parser_.finish(pieces_);
    show(why);
  }

  void fail(const answer_failure& failure) {
    if (std::exchange(ended_, true))
      return;
    writer_->fail(failure);
  }

  answer_events take() {
    answer_events out = writer_->take();
    events_ += out.size();
    const std::size_t hidden = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, out.size()));
    skip_ -= hidden;
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(hidden));
    return out;
  }

  answer_usage usage() const {
    answer_usage out = usage_;
    if (!options_.thinking)
      return out;
    const bool count_again = options_.strict || !by_token_;
    if (count_again && words_) {
      const auto ids = words_->encode(reasoning_, encode_mode::full);
      out.reasoning = ids ? ids->size() : 0;
    }
    return out;
  }

  const answer_recipe& recipe() const noexcept { return *recipe_; }

  std::uint64_t skip_ = 0;
  std::uint64_t events_ = 0;
  bool ended_ = false;
  std::optional<answer_stream::text_end> text_end_;
  json final_choice() const { return writer_->final(usage()); }
  void ended_at(std::int64_t seconds) { writer_->ended_at(seconds); }

private:
  // Markers are spellings in text and ids in tokens.
  void take_mode(bool by_token) {
    if (by_token == by_token_)
      return;
    by_token_ = by_token;
    parser_.use(text_.markers(by_token), pieces_);
  }

  void take_units() {
    for (const token_unit& u : std::exchange(units_, {})) {
      if (ended_)
        return;
      usage_.completion += u.tokens;
      if (parser_.in_reasoning())
        usage_.reasoning += u.tokens;
      ++chunk_;
      for (std::uint32_t i = 0; i < u.tokens && !unplaced_.empty(); ++i) {
        waiting_.push_back({chunk_, std::move(unplaced_.front())});
        unplaced_.pop_front();
      }
      if (u.special)
        parser_.special(*u.special, text_.shown(u, parser_.at_start()), chunk_, pieces_);
      else
        parser_.text(u.text, chunk_, pieces_);
      parser_.end_chunk(pieces_);
      show();
    }
  }

  // Hands the pieces to the writer; ends the choice if its text did, or as told.
  void show(std::optional<answer_end> why = {}) {
    for (const output_piece& p : pieces_) {
      std::vector<token_entry> tokens;
      while (!waiting_.empty() && waiting_.front().chunk <= p.chunk) {
        tokens.push_back(std::move(waiting_.front().entry));
        waiting_.pop_front();
      }
      if (p.kind == piece_kind::dropped)
        continue;
      if (p.kind == piece_kind::reasoning)
        reasoning_ += p.text;
      writer_->piece({p.kind, p.text, tokens});
    }
    pieces_.clear();
    const std::string* stop = nullptr;
    if (parser_.stopped() || parser_.called()) {
      why = answer_end::stop;
      text_end_ = {.tokens = static_cast<std::uint32_t>(usage_.completion)};
    }
    if (parser_.stopped()) {
      stop = &options_.stop[*parser_.stopped()];
      text_end_->stop_index = static_cast<std::int32_t>(*parser_.stopped());
    }
    if (!why)
      return;
    ended_ = true;
    writer_->end(*why, stop, usage());
  }

  struct waiting_token {
    std::uint32_t chunk;
    token_entry entry;
  };

  std::shared_ptr<const answer_recipe> recipe_;
  parse_options options_;
  const tokenizer* words_;
  token_text text_;
  output_parser parser_;
  std::unique_ptr<answer_writer> writer_;
  std::vector<output_piece> pieces_;
  std::vector<token_unit> units_;
  std::deque<token_entry> unplaced_;  // tokens in no unit yet
  std::deque<waiting_token> waiting_; // tokens whose text has not been shown
  std::string reasoning_;
  answer_usage usage_;
  std::uint32_t chunk_ = 0;
  bool begun_ = false;
  bool by_token_ = false;
};

answer_stream::answer_stream(std::shared_ptr<const answer_recipe> recipe, const tokenizer* words,
                             std::uint32_t choice)
    : impl_{std::make_unique<answer_stream_impl>(std::move(recipe), words, choice)} {
}
answer_stream::~answer_stream() = default;
answer_stream::answer_stream(answer_stream&&) noexcept = default;
answer_stream& answer_stream::operator=(answer_stream&&) noexcept = default;

void answer_stream::skip(std::uint64_t events) {
  impl_->skip_ += events;
}

std::uint64_t answer_stream::events() const noexcept {
  return impl_->events_;
}

answer_events answer_stream::ready(std::uint64_t prompt_tokens, std::uint64_t cached_tokens) {
  impl_->begin(prompt_tokens, cached_tokens);
  return impl_->take();
}

answer_events answer_stream::push(std::span<const token_id> ids,
                                  std::span<const proto::position_logprobs> logprobs) {
  impl_->push(ids, logprobs);
  return impl_->take();
}

answer_events answer_stream::push_text(std::string_view text, std::uint64_t tokens) {
  impl_->push_text(text, tokens);
  return impl_->take();
}

answer_events answer_stream::finish(answer_end why) {
  impl_->finish(why);
  return impl_->take();
}

answer_events answer_stream::fail(const answer_failure& failure) {
  impl_->begin(0, 0);
  impl_->fail(failure);
  return impl_->take();
}

answer_events answer_stream::close() {
  return finish(answer_end::stop);
}

std::optional<answer_stream::text_end> answer_stream::ended_by_text() const noexcept {
  return impl_->text_end_;
}

void answer_stream::ended_at(std::int64_t seconds) {
  impl_->ended_at(seconds);
}

bool answer_stream::ended() const noexcept {
  return impl_->ended_;
}

answer_usage answer_stream::usage() const noexcept {
  return impl_->usage();
}

json answer_stream::final_choice() const {
  return impl_->final_choice();
}

json answer_stream::final() const {
  const answer_stream* self = this;
  return whole_answer(impl_->recipe(), {&self, 1});
}

} // namespace di::engine
