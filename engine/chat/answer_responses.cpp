// SPDX-License-Identifier: Apache-2.0
// Events and whole answers of Responses.
#include "engine/chat/answer_writer.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::engine {
namespace {

enum class item_kind : std::uint8_t { reasoning, message, call };

struct item {
  item_kind kind = item_kind::message;
  std::string status = "in_progress";
  std::string phase = "final_answer"; // of a message
  std::string name;                   // of a call
  std::size_t call = 0;               // index among the calls
  std::string text;                   // or arguments
  json logprobs = json::array();
};

// Fields of a request that a response shows, as they stand if it named none.
json unset_fields(const answer_recipe& recipe) {
  return json{{"id", recipe.id},
              {"object", "response"},
              {"created_at", recipe.created},
              {"status", "in_progress"},
              {"background", false},
              {"completed_at", nullptr},
              {"content_filters", nullptr},
              {"error", nullptr},
              {"frequency_penalty", 0.0},
              {"incomplete_details", nullptr},
              {"instructions", nullptr},
              {"max_output_tokens", nullptr},
              {"max_tool_calls", nullptr},
              {"model", recipe.model},
              {"moderation", nullptr},
              {"output", json::array()},
              {"parallel_tool_calls", true},
              {"presence_penalty", 0.0},
              {"previous_response_id", nullptr},
              {"prompt_cache_key", nullptr},
              {"prompt_cache_retention", nullptr},
              {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
              {"safety_identifier", nullptr},
              {"service_tier", "default"},
              {"store", false},
              {"temperature", 1.0},
              {"text", {{"format", {{"type", "text"}}}, {"verbosity", nullptr}}},
              {"tool_choice", "auto"},
              {"tools", json::array()},
              {"top_logprobs", std::max(recipe.top_logprobs, 0)},
              {"top_p", 1.0},
              {"truncation", "disabled"},
              {"usage", nullptr},
              {"user", nullptr},
              {"metadata", json::object()}};
}

class responses_writer final : public answer_writer {
public:
  using answer_writer::answer_writer;

  void begin(const answer_usage&) override {
    emit("response.created", {{"response", response()}});
    emit("response.in_progress", {{"response", response()}});
  }

  void piece(const shown_piece& p) override {
    switch (p.kind) {
    case piece_kind::reasoning:
      need(item_kind::reasoning);
      items_.back().text += p.text;
      return text_event("response.reasoning_text.delta", {{"delta", p.text}});
    case piece_kind::answer:
      return answer_piece(p);
    case piece_kind::call:
      close("completed", true);
      items_.push_back({});
      items_.back().kind = item_kind::call;
      items_.back().name = p.text;
      items_.back().call = calls_++;
      return open();
    case piece_kind::arguments:
      items_.back().text += p.text;
      if (custom(items_.back()))
        return; // its input is known when it is whole
      return emit("response.function_call_arguments.delta",
                  {{"delta", p.text}, {"item_id", id()}, {"output_index", index()}});
    case piece_kind::dropped:
      return;
    }
  }

  void end(answer_end why, const std::string*, const answer_usage& usage) override {
    const bool whole = why == answer_end::stop;
    close(whole ? "completed" : "incomplete", false);
    usage_ = usage_object(api::responses, usage, true);
    status_ = whole ? "completed" : why == answer_end::cancelled ? "cancelled" : "incomplete";
    if (why == answer_end::length)
      incomplete_ = {{"reason", "max_output_tokens"}};
    else if (why == answer_end::content_filter)
      incomplete_ = {{"reason", "content_filter"}};
    emit(whole ? "response.completed" : "response.incomplete", {{"response", response()}});
  }

  void fail(const answer_failure& failure) override {
    close("incomplete", false);
    status_ = "failed";
    error_ = {{"code", failure.code}, {"message", failure.message}};
    emit("response.failed", {{"response", response()}});
  }

  json final(const answer_usage&) const override { return response(); }

  void ended_at(std::int64_t s) override { completed_at_ = s; }

private:
  std::size_t index() const noexcept { return items_.size() - 1; }
  std::string id() const { return id_of(items_.back(), index()); }

  bool custom(const item& i) const {
    const std::vector<std::string>& names = recipe().custom_tools;
    return i.kind == item_kind::call
           && std::find(names.begin(), names.end(), i.name) != names.end();
  }

  std::string id_of(const item& i, std::size_t at) const {
    const std::string_view prefix = i.kind == item_kind::reasoning ? "rs"
                                    : i.kind == item_kind::message ? "msg"
                                    : custom(i)                    ? "ctc"
                                                                   : "fc";
    return fmt::format("{}_{}_{}", prefix, recipe().id, at);
  }

  // Input of a custom tool: the text of its only parameter.
  static std::string custom_input(const item& i) {
    const json arguments =
        is_bounded_json(i.text) ? json::parse(i.text, nullptr, false) : json(nullptr);
    if (!arguments.is_object() || arguments.empty())
      return {};
    const json& first = arguments.begin().value();
    return first.is_string() ? first.get<std::string>() : first.dump();
  }

  static json part(const item& i, bool empty) {
    if (i.kind == item_kind::reasoning)
      return {{"type", "reasoning_text"}, {"text", empty ? "" : i.text}};
    return {{"type", "output_text"},
            {"annotations", json::array()},
            {"logprobs", empty ? json::array() : i.logprobs},
            {"text", empty ? "" : i.text}};
  }

  json object(const item& i, std::size_t at, bool empty) const {
    json content = json::array();
    if (!empty)
      content.push_back(part(i, false));
    if (i.kind == item_kind::reasoning)
      return {
          {"type", "reasoning"},      {"id", id_of(i, at)},
          {"status", i.status},       {"content", std::move(content)},
          {"summary", json::array()}, {"encrypted_content", fmt::format("{}-{}", recipe().id, at)}};
    if (i.kind == item_kind::message)
      return {{"type", "message"},   {"id", id_of(i, at)}, {"status", i.status},
              {"role", "assistant"}, {"phase", i.phase},   {"content", std::move(content)}};
    const bool own = custom(i);
    const std::string input = empty ? std::string{} : own ? custom_input(i) : i.text;
    return {{"type", own ? "custom_tool_call" : "function_call"},
            {"id", id_of(i, at)},
            {"status", i.status},
            {"call_id", call_id(i.call)},
            {"name", i.name},
            {own ? "input" : "arguments", input}};
  }

  void need(item_kind kind) {
    if (open_ && items_.back().kind == kind)
      return;
    close("completed", false);
    items_.push_back({});
    items_.back().kind = kind;
    open();
  }

  void open() {
    open_ = true;
    emit("response.output_item.added",
         {{"item", object(items_.back(), index(), true)}, {"output_index", index()}});
    if (items_.back().kind != item_kind::call)
      emit("response.content_part.added", {{"content_index", 0},
                                           {"item_id", id()},
                                           {"output_index", index()},
                                           {"part", part(items_.back(), true)}});
  }

  void answer_piece(const shown_piece& p) {
    need(item_kind::message);
    item& i = items_.back();
    i.text += p.text;
    json logprobs = logprob_list(p.tokens);
    i.logprobs.insert(i.logprobs.end(), logprobs.begin(), logprobs.end());
    emit("response.output_text.delta", {{"content_index", 0},
                                        {"delta", p.text},
                                        {"item_id", id()},
                                        {"logprobs", std::move(logprobs)},
                                        {"output_index", index()}});
  }

  void text_event(const char* type, const json& change) {
    json rest{{"content_index", 0}};
    rest.update(change);
    rest["item_id"] = id();
    rest["output_index"] = index();
    emit(type, std::move(rest));
  }

  // Last events of the open item. @param for_call  a call follows
  void close(const char* status, bool for_call) {
    if (!open_)
      return;
    open_ = false;
    item& i = items_.back();
    i.status = status;
    if (i.kind == item_kind::call) {
      close_call(i);
    } else {
      if (for_call)
        i.phase = "commentary";
      json done{{"content_index", 0}, {"item_id", id()}};
      if (i.kind == item_kind::message)
        done["logprobs"] = i.logprobs;
      done["output_index"] = index();
      emit(i.kind == item_kind::message ? "response.output_text.done"
                                        : "response.reasoning_text.done",
           std::move(done), {{"text", i.text}});
      emit("response.content_part.done", {{"content_index", 0},
                                          {"item_id", id()},
                                          {"output_index", index()},
                                          {"part", part(i, false)}});
    }
    emit("response.output_item.done",
         {{"item", object(i, index(), false)}, {"output_index", index()}});
  }

  void close_call(const item& i) {
    if (!custom(i))
      return emit("response.function_call_arguments.done",
                  {{"arguments", i.text}, {"item_id", id()}, {"output_index", index()}});
    const std::string input = custom_input(i);
    emit("response.custom_tool_call_input.delta",
         {{"delta", input}, {"item_id", id()}, {"output_index", index()}});
    emit("response.custom_tool_call_input.done",
         {{"input", input}, {"item_id", id()}, {"output_index", index()}});
  }

  json response() const {
    json out = unset_fields(recipe());
    if (recipe().echo.is_object())
      out.update(recipe().echo);
    out["status"] = status_;
    if (strict() && status_ != "in_progress")
      out["completed_at"] = completed_at_.value_or(recipe().created);
    else if (status_ == "completed" && completed_at_)
      out["completed_at"] = *completed_at_;
    out["error"] = error_;
    out["incomplete_details"] = incomplete_;
    out["usage"] = usage_;
    json& output = out["output"];
    for (std::size_t i = 0; i < items_.size(); ++i)
      output.push_back(object(items_[i], i, false));
    return out;
  }

  void emit(const char* type, json rest, const json& last = json::object()) {
    json data{{"type", type}};
    data.update(rest);
    data["sequence_number"] = sequence_++;
    data.update(last);
    event(type, std::move(data));
  }

  std::vector<item> items_;
  bool open_ = false;
  std::size_t calls_ = 0;
  std::uint64_t sequence_ = 0;
  std::string status_ = "in_progress";
  std::optional<std::int64_t> completed_at_;
  json error_;
  json incomplete_;
  json usage_;
};

} // namespace

std::unique_ptr<answer_writer> make_responses_writer(std::shared_ptr<const answer_recipe> recipe,
                                                     const tokenizer* words, std::uint32_t choice) {
  return std::make_unique<responses_writer>(std::move(recipe), words, choice);
}

} // namespace di::engine
