// SPDX-License-Identifier: Apache-2.0
// Events and whole answers of Messages.
#include "engine/chat/answer_writer.hpp"

namespace di::engine {
namespace {

class messages_writer final : public answer_writer {
public:
  using answer_writer::answer_writer;

  void begin(const answer_usage& usage) override {
    emit("message_start", {{"message", message(usage, false)}});
    if (reasons())
      open({block_kind::thinking, {}, {}});
  }

  void piece(const shown_piece& p) override {
    switch (p.kind) {
    case piece_kind::reasoning:
      return text_piece(block_kind::thinking, p.text);
    case piece_kind::answer:
      return text_piece(block_kind::text, p.text);
    case piece_kind::call:
      close();
      return open({block_kind::call, std::string{p.text}, {}});
    case piece_kind::arguments:
      blocks_.back().text += p.text;
      return delta({{"type", "input_json_delta"}, {"partial_json", p.text}});
    case piece_kind::dropped:
      return;
    }
  }

  void end(answer_end why, const std::string* stop, const answer_usage& usage) override {
    close();
    const bool called = !blocks_.empty() && blocks_.back().kind == block_kind::call;
    switch (why) {
    case answer_end::length:
      reason_ = "max_tokens";
      break;
    case answer_end::content_filter:
      reason_ = "refusal";
      break;
    case answer_end::stop:
    case answer_end::cancelled:
      reason_ = stop ? "stop_sequence" : called ? "tool_use" : "end_turn";
      break;
    }
    if (stop)
      sequence_ = *stop;
    emit("message_delta", {{"delta", {{"stop_reason", reason_}, {"stop_sequence", sequence_}}},
                           {"usage", usage_object(api::messages, usage, false)}});
    emit("message_stop", json::object());
  }

  void fail(const answer_failure& failure) override {
    emit("error", {{"error", {{"type", failure.type}, {"message", failure.message}}}});
  }

  json final(const answer_usage& usage) const override { return message(usage, true); }

private:
  enum class block_kind : std::uint8_t { thinking, text, call };
  struct block {
    block_kind kind;
    std::string name; // of a call
    std::string text; // or arguments
  };

  json message(const answer_usage& usage, bool whole) const {
    json content = json::array();
    for (std::size_t i = 0, call = 0; whole && i < blocks_.size(); ++i)
      content.push_back(block_object(blocks_[i], call));
    return json{{"id", recipe().id},
                {"type", "message"},
                {"role", "assistant"},
                {"model", recipe().model},
                {"content", std::move(content)},
                {"stop_reason", reason_},
                {"stop_sequence", sequence_},
                {"usage", usage_object(api::messages, usage, false)}};
  }

  json block_object(const block& b, std::size_t& call) const {
    if (b.kind == block_kind::thinking)
      return {{"type", "thinking"}, {"thinking", b.text}, {"signature", recipe().id}};
    if (b.kind == block_kind::text)
      return {{"type", "text"}, {"text", b.text}};
    json input = json::object();
    if (is_bounded_json(b.text)) // else strict, or not closed yet
      input = json::parse(b.text, nullptr, false);
    if (!input.is_object())
      input = json::object();
    return {{"type", "tool_use"},
            {"id", call_id(call++)},
            {"name", b.name},
            {"input", std::move(input)}};
  }

  void text_piece(block_kind kind, std::string_view text) {
    if (!open_ || blocks_.back().kind != kind) {
      close();
      open({kind, {}, {}});
    }
    blocks_.back().text += text;
    if (kind == block_kind::thinking)
      delta({{"type", "thinking_delta"}, {"thinking", text}});
    else
      delta({{"type", "text_delta"}, {"text", text}});
  }

  void open(block b) {
    json start;
    if (b.kind == block_kind::thinking)
      start = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    else if (b.kind == block_kind::text)
      start = {{"type", "text"}, {"text", ""}};
    else
      start = {{"type", "tool_use"},
               {"id", call_id(calls_++)},
               {"name", b.name},
               {"input", json::object()}};
    blocks_.push_back(std::move(b));
    open_ = true;
    emit("content_block_start",
         {{"index", blocks_.size() - 1}, {"content_block", std::move(start)}});
    if (blocks_.size() == 1)
      emit("ping", json::object());
  }

  void close() {
    if (!open_)
      return;
    if (blocks_.back().kind == block_kind::thinking)
      delta({{"type", "signature_delta"}, {"signature", recipe().id}});
    emit("content_block_stop", {{"index", blocks_.size() - 1}});
    open_ = false;
  }

  void delta(json change) {
    emit("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", std::move(change)}});
  }

  void emit(const char* type, json rest) {
    json data{{"type", type}};
    data.update(rest);
    event(type, std::move(data));
  }

  std::vector<block> blocks_;
  bool open_ = false;
  std::size_t calls_ = 0;
  json reason_;   // null until the end
  json sequence_; // null, or the stop string
};

} // namespace

std::unique_ptr<answer_writer> make_messages_writer(std::shared_ptr<const answer_recipe> recipe,
                                                    const tokenizer* words, std::uint32_t choice) {
  return std::make_unique<messages_writer>(std::move(recipe), words, choice);
}

} // namespace di::engine
