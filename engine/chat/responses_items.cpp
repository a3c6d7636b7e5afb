// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/responses_items.hpp"

#include <unordered_set>

namespace di::engine {

void responses_items::add(const json& item, const body_place& at, std::size_t index) {
  const field_reader fields{item, at, context_.problems};
  if (fields.value() == nullptr)
    return;
  static const std::string without_type = "message";
  const std::string* type = fields.text("type");
  if (type == nullptr)
    type = &without_type;
  if (*type == "message")
    message(fields, index);
  else if (*type == "reasoning")
    reasoning(fields);
  else if (*type == "function_call")
    call(fields, false);
  else if (*type == "custom_tool_call")
    call(fields, true);
  else if (*type == "function_call_output" || *type == "custom_tool_call_output")
    output(fields, index);
  else
    context_.problems.warn(
        fmt::format("input[{}]: items of type {} are ignored", index, shortened(*type, 60)));
}

void responses_items::finish() {
  flush_reasoning();
  assistant_open_ = false;
}

// Reasoning without an answer becomes an assistant message of its own.
void responses_items::flush_reasoning() {
  if (reasoning_ && !reasoning_->empty()) {
    chat_message message;
    message.role = chat_role::assistant;
    message.reasoning = std::move(reasoning_);
    draft_.messages.push_back(std::move(message));
  }
  reasoning_.reset();
}

void responses_items::message(const field_reader& fields, std::size_t index) {
  const json* const role = fields.need("role");
  if (role == nullptr)
    return;
  const auto word = one_of(*role, fields.place("role"), context_.problems,
                           {"user", "assistant", "system", "developer"});
  if (!word)
    return;
  chat_message out;
  out.role = *word == 0 ? chat_role::user : *word == 1 ? chat_role::assistant : chat_role::system;
  if (fields.has("content") && fields.find("content") == nullptr)
    return fields.wrong("content",
                        "content should be a string or a list of content blocks, found null");
  if (fields.need("content") == nullptr)
    return;
  content(fields, "content", index, out);
  assistant_open_ = out.role == chat_role::assistant;
  if (assistant_open_)
    out.reasoning = std::move(reasoning_);
  else
    flush_reasoning();
  reasoning_.reset();
  draft_.messages.push_back(std::move(out));
}

void responses_items::reasoning(const field_reader& fields) {
  assistant_open_ = false;
  const json* const content = fields.array("content");
  if (content == nullptr)
    return;
  const body_place list = fields.place("content");
  for (std::size_t i = 0; i < content->size() && !context_.problems.any(); ++i) {
    const body_place at{&list, {}, i};
    const std::string* const text = field_reader{(*content)[i], at, context_.problems}.text("text");
    if (text == nullptr)
      continue;
    if (reasoning_)
      reasoning_->append("\n").append(*text);
    else
      reasoning_ = *text;
  }
}

chat_message& responses_items::open_assistant() {
  if (!assistant_open_) {
    chat_message message;
    message.role = chat_role::assistant;
    message.reasoning = std::move(reasoning_);
    reasoning_.reset();
    draft_.messages.push_back(std::move(message));
    assistant_open_ = true;
  }
  return draft_.messages.back();
}

void responses_items::call(const field_reader& fields, bool custom) {
  call_of_history out;
  out.id = fields.need_text("call_id");
  out.name = fields.need_text("name");
  if (const std::string* const space = fields.text("namespace"))
    out.name = fmt::format("{}::{}", *space, out.name);
  if (custom) {
    out.object = json{{"input", fields.need_text("input")}};
  } else {
    out.arguments = fields.need_text("arguments");
  }
  open_assistant().calls.push_back(std::move(out));
}

void responses_items::output(const field_reader& fields, std::size_t index) {
  assistant_open_ = false;
  chat_message out;
  out.role = chat_role::tool;
  out.call_id = fields.need_text("call_id");
  if (fields.need("output") == nullptr)
    return;
  content(fields, "output", index, out);
  draft_.messages.push_back(std::move(out));
}

void responses_items::content(const field_reader& fields, std::string_view key, std::size_t index,
                              chat_message& message) {
  const json* const value = fields.find(key);
  if (value == nullptr)
    return;
  if (value->is_string()) {
    message.parts.push_back({*value->get_ptr<const std::string*>(), {}});
    return;
  }
  if (!value->is_array())
    return fields.wrong(
        key, fmt::format("content should be a string or a list of content blocks, found {}",
                         found(*value)));
  const body_place list = fields.place(key);
  for (std::size_t i = 0; i < value->size() && !context_.problems.any(); ++i)
    part((*value)[i], body_place{&list, {}, i}, index, i, message);
}

void responses_items::part(const json& value, const body_place& at, std::size_t index,
                           std::size_t part_index, chat_message& message) {
  const field_reader fields{value, at, context_.problems};
  const json* const type = fields.need("type");
  if (type == nullptr)
    return;
  if (*type == "refusal" && !context_.rules.strict_reference) {
    message.parts.push_back({fields.need_text("refusal"), {}});
    return;
  }
  const auto word = one_of(*type, fields.place("type"), context_.problems,
                           {"input_text", "output_text", "input_image", "input_file"});
  if (!word)
    return;
  if (*word < 2) {
    message.parts.push_back({fields.need_text("text"), {}});
    return;
  }
  if (*word == 3) {
    message.parts.push_back({"[Unsupported Document]", {}});
    return;
  }
  prompt_image image;
  image.path = fmt::format("input[{}]", index);
  image.detail = "high";
  if (const json* const detail = fields.find("detail"))
    if (one_of(*detail, fields.place("detail"), context_.problems,
               {"auto", "low", "high", "original"}))
      image.detail = detail->get<std::string>();
  if (const std::string* const url = fields.text("image_url")) {
    image.source = *url;
  } else if (fields.text("file_id") != nullptr) {
    image.kind = "file";
  } else {
    image.kind = "none";
    image.source = fmt::format("input[{}].content[{}]", index, part_index);
  }
  message.parts.push_back({{}, std::move(image)});
}

void check_outputs(const request_draft& draft, const request_context& context) {
  const auto& messages = draft.messages;
  for (std::size_t i = 0; i < messages.size() && !context.problems.any(); ++i) {
    if (messages[i].role == chat_role::tool)
      return context.problems.broken_rule(
          fmt::format("No tool call found for function call output with call_id {}.",
                      shortened(messages[i].call_id, 100)),
          "input");
    if (messages[i].calls.empty())
      continue;
    std::unordered_set<std::string_view> asked, answered;
    for (const call_of_history& call : messages[i].calls)
      asked.insert(call.id);
    std::size_t at = i + 1;
    for (; at < messages.size() && messages[at].role == chat_role::tool; ++at) {
      const std::string& id = messages[at].call_id;
      if (!asked.contains(id))
        break;
      if (!answered.insert(id).second)
        return context.problems.broken_rule(
            fmt::format("Duplicate tool output for call_id: {}.", shortened(id, 100)), "input");
    }
    for (const call_of_history& call : messages[i].calls)
      if (!answered.contains(call.id))
        return context.problems.broken_rule(
            fmt::format("No tool output found for tool call {}.", shortened(call.id, 100)),
            "input");
    i = at - 1;
  }
}

} // namespace di::engine
