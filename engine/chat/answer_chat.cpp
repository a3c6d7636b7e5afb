// SPDX-License-Identifier: Apache-2.0
// Events and whole answers of Chat Completions.
#include "engine/chat/answer_writer.hpp"

namespace di::engine {
namespace {

class chat_writer final : public answer_writer {
public:
  using answer_writer::answer_writer;

  void begin(const answer_usage&) override {
    json delta{{"role", "assistant"}, {"content", ""}};
    if (reasons())
      delta = {{"role", "assistant"}, {"content", nullptr}, {"reasoning_content", ""}};
    else if (recipe().parsing.thinking)
      delta["reasoning_content"] = nullptr;
    chunk(std::move(delta), nullptr, nullptr);
  }

  void piece(const shown_piece& p) override {
    switch (p.kind) {
    case piece_kind::reasoning:
      return reasoning_piece(p);
    case piece_kind::answer:
      return answer_piece(p);
    case piece_kind::call:
      return call_piece(p);
    case piece_kind::arguments:
      return arguments_piece(p);
    case piece_kind::dropped:
      return;
    }
  }

  void end(answer_end why, const std::string*, const answer_usage& usage) override {
    finish_ = why == answer_end::stop && !calls_.empty() ? "tool_calls" : finish_word(why);
    json delta{{"content", ""}};
    if (recipe().parsing.thinking)
      delta["reasoning_content"] = nullptr;
    chunk(std::move(delta), nullptr, finish_, &usage);
  }

  void fail(const answer_failure& failure) override { event({}, error_object(failure)); }

  json final(const answer_usage&) const override {
    json message{{"role", "assistant"}, {"content", content_}};
    if (reasons())
      message["reasoning_content"] = reasoning_;
    if (!calls_.empty()) {
      json calls = json::array();
      for (std::size_t i = 0; i < calls_.size(); ++i)
        calls.push_back(call_object(i));
      message["tool_calls"] = std::move(calls);
    }
    json logprobs = nullptr;
    if (recipe().top_logprobs >= 0 && !logprobs_.empty())
      logprobs = logprobs_;
    return json{{"index", choice()},
                {"message", std::move(message)},
                {"logprobs", std::move(logprobs)},
                {"finish_reason", finish_.empty() ? json(nullptr) : json(finish_)}};
  }

private:
  struct call {
    std::string name;
    std::string arguments;
  };

  json call_object(std::size_t i) const {
    return json{{"index", i},
                {"id", call_id(i)},
                {"type", "function"},
                {"function", {{"name", calls_[i].name}, {"arguments", calls_[i].arguments}}}};
  }

  void reasoning_piece(const shown_piece& p) {
    reasoning_ += p.text;
    chunk(json{{"content", nullptr}, {"reasoning_content", p.text}},
          logprobs(p, "reasoning_content"), nullptr);
  }

  void answer_piece(const shown_piece& p) {
    content_ += p.text;
    json delta{{"content", p.text}};
    if (recipe().parsing.thinking)
      delta["reasoning_content"] = nullptr;
    chunk(std::move(delta), logprobs(p, "content"), nullptr);
  }

  void call_piece(const shown_piece& p) {
    calls_.push_back({std::string{p.text}, {}});
    chunk(json{{"tool_calls", json::array({call_object(calls_.size() - 1)})}}, nullptr, nullptr);
  }

  void arguments_piece(const shown_piece& p) {
    calls_.back().arguments += p.text;
    json change{{"index", calls_.size() - 1}, {"function", {{"arguments", p.text}}}};
    chunk(json{{"tool_calls", json::array({std::move(change)})}}, nullptr, nullptr);
  }

  json logprobs(const shown_piece& p, const char* list) {
    if (p.tokens.empty())
      return nullptr;
    json entries = logprob_list(p.tokens);
    json& kept = logprobs_[list];
    if (kept.is_null())
      kept = json::array();
    kept.insert(kept.end(), entries.begin(), entries.end());
    return json{{list, std::move(entries)}};
  }

  void chunk(json delta, json logprobs, json finish, const answer_usage* usage = nullptr) {
    json data = envelope(recipe(), "chat.completion.chunk");
    data["choices"] = json::array({json{{"index", choice()},
                                        {"delta", std::move(delta)},
                                        {"logprobs", std::move(logprobs)},
                                        {"finish_reason", std::move(finish)}}});
    if (strict() && usage)
      data["usage"] = usage_object(api::chat, *usage, recipe().parsing.thinking);
    else if (recipe().include_usage)
      data["usage"] = nullptr;
    event({}, std::move(data));
  }

  std::string content_;
  std::string reasoning_;
  std::vector<call> calls_;
  json logprobs_ = json::object();
  std::string finish_;
};

} // namespace

std::unique_ptr<answer_writer> make_chat_writer(std::shared_ptr<const answer_recipe> recipe,
                                                const tokenizer* words, std::uint32_t choice) {
  return std::make_unique<chat_writer>(std::move(recipe), words, choice);
}

} // namespace di::engine
