// SPDX-License-Identifier: Apache-2.0
// Events and whole answers of the older Completions.
#include "engine/chat/answer_writer.hpp"
#include "messaging/base/utf8.hpp"

#include <algorithm>

namespace di::engine {
namespace {

// Offsets count characters, as the clients of this protocol slice strings.
std::size_t characters(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

class completions_writer final : public answer_writer {
public:
  using answer_writer::answer_writer;

  void begin(const answer_usage&) override {
    if (recipe().echo_text.empty())
      return;
    text_ = recipe().echo_text;
    chunk(text_, nullptr, nullptr);
  }

  void piece(const shown_piece& p) override {
    json logprobs = nullptr;
    if (!p.tokens.empty())
      logprobs = legacy_logprobs(p);
    text_ += p.text;
    chunk(p.text, std::move(logprobs), nullptr);
  }

  void end(answer_end why, const std::string*, const answer_usage&) override {
    finish_ = finish_word(why);
    chunk("", nullptr, finish_);
  }

  void fail(const answer_failure& failure) override { event({}, error_object(failure)); }

  json final(const answer_usage&) const override {
    return json{{"text", text_},
                {"index", choice()},
                {"logprobs", logprobs_},
                {"finish_reason", finish_.empty() ? json(nullptr) : json(finish_)}};
  }

private:
  json legacy_logprobs(const shown_piece& p) {
    json now{{"text_offset", json::array()},
             {"token_logprobs", json::array()},
             {"tokens", json::array()},
             {"top_logprobs", json::array()}};
    std::size_t offset = characters(text_);
    for (const token_entry& t : p.tokens) {
      const std::string_view bytes = words() ? words()->token_bytes(t.id) : std::string_view{};
      now["text_offset"].push_back(offset);
      now["token_logprobs"].push_back(shown_logprob(t.logprobs.logprob));
      now["tokens"].push_back(token_label(bytes));
      json top = json::object();
      for (std::size_t i = 0; i < t.logprobs.top_tokens.size(); ++i)
        top[token_label(words() ? words()->token_bytes(t.logprobs.top_tokens[i])
                                : std::string_view{})] = shown_logprob(t.logprobs.top_logprobs[i]);
      now["top_logprobs"].push_back(std::move(top));
      offset += characters(bytes);
    }
    if (logprobs_.is_null()) {
      logprobs_ = now;
    } else {
      for (const auto& [key, list] : now.items())
        logprobs_[key].insert(logprobs_[key].end(), list.begin(), list.end());
    }
    return now;
  }

  void chunk(std::string_view text, json logprobs, json finish) {
    json data = envelope(recipe(), "text_completion");
    data["choices"] = json::array({json{{"text", text},
                                        {"index", choice()},
                                        {"logprobs", std::move(logprobs)},
                                        {"finish_reason", std::move(finish)}}});
    if (recipe().include_usage)
      data["usage"] = nullptr;
    event({}, std::move(data));
  }

  std::string text_;
  json logprobs_;
  std::string finish_;
};

} // namespace

std::unique_ptr<answer_writer> make_completions_writer(std::shared_ptr<const answer_recipe> recipe,
                                                       const tokenizer* words,
                                                       std::uint32_t choice) {
  return std::make_unique<completions_writer>(std::move(recipe), words, choice);
}

} // namespace di::engine
