// SPDX-License-Identifier: Apache-2.0
// Chat Completions.
#include "engine/chat/request_draft.hpp"

#include <algorithm>
#include <unordered_set>

namespace di::engine {
namespace {

prompt_image read_image(const field_reader& part, const body_place& at, const std::string& path,
                        const request_context& context) {
  prompt_image image;
  image.path = path;
  const json* const value = part.need("image_url");
  if (value == nullptr)
    return image;
  const body_place here{&at, "image_url", 0};
  const field_reader fields{*value, here, context.problems};
  image.source = fields.need_text("url");
  image.detail = "high";
  if (const json* const detail = fields.find("detail"))
    if (one_of(*detail, fields.place("detail"), context.problems,
               {"auto", "low", "high", "original"}))
      image.detail = detail->get<std::string>();
  return image;
}

// A file is a note to the model that it is there; one without data is refused with the other rules.
void read_file(const field_reader& part, const std::string& path, content_part& out) {
  const json* const file = part.object("file");
  if (file != nullptr && file->contains("file_data")) {
    out.text = "[Unsupported Document]";
    return;
  }
  out.image = prompt_image{"no file", {}, path, {}};
}

void read_part(const json& value, const body_place& at, const std::string& path,
               const request_context& context, chat_message& message) {
  const field_reader part{value, at, context.problems};
  const json* const type = part.need("type");
  if (type == nullptr)
    return;
  const auto word =
      one_of(*type, part.place("type"), context.problems, {"text", "image_url", "file"});
  if (!word)
    return;
  content_part out;
  if (*word == 0)
    out.text = part.need_text("text");
  else if (*word == 1)
    out.image = read_image(part, at, path, context);
  else
    read_file(part, path, out);
  message.parts.push_back(std::move(out));
}

void read_content(const field_reader& fields, const std::string& path,
                  const request_context& context, chat_message& message) {
  const json* const content = fields.find("content");
  if (content == nullptr) {
    message.content_given = false;
    if (message.role == chat_role::assistant)
      return;
    if (fields.has("content"))
      return fields.wrong("content", "content should be a string or a list, found null");
    return fields.wrong("content", "missing field `content`");
  }
  if (content->is_string()) {
    message.parts.push_back({*content->get_ptr<const std::string*>(), {}});
    return;
  }
  if (!content->is_array())
    return fields.wrong(
        "content", fmt::format("content should be a string or a list, found {}", found(*content)));
  const body_place list = fields.place("content");
  for (std::size_t i = 0; i < content->size() && !context.problems.any(); ++i)
    read_part((*content)[i], body_place{&list, {}, i}, path, context, message);
}

void read_call(const json& value, const body_place& at, const request_context& context,
               chat_message& message) {
  const field_reader fields{value, at, context.problems};
  call_of_history call;
  call.id = fields.need_text("id");
  if (const json* const type = fields.find("type"))
    one_of(*type, fields.place("type"), context.problems, {"function"});
  const json* const function = fields.need("function");
  if (function == nullptr)
    return;
  const body_place here = fields.place("function");
  const field_reader inner{*function, here, context.problems};
  call.name = inner.need_text("name");
  const json* const arguments = inner.find("arguments");
  if (arguments != nullptr && arguments->is_object() && !context.rules.strict_reference)
    call.object = *arguments;
  else
    call.arguments = inner.need_text("arguments");
  message.calls.push_back(std::move(call));
}

std::optional<chat_role> read_role(const field_reader& fields, const request_context& context) {
  const json* const role = fields.need("role");
  if (role == nullptr)
    return std::nullopt;
  if (!context.rules.strict_reference && *role == "developer")
    return chat_role::system;
  const auto word = one_of(*role, fields.place("role"), context.problems,
                           {"system", "user", "assistant", "tool", "latest_reminder"});
  if (!word)
    return std::nullopt;
  return static_cast<chat_role>(*word);
}

void read_message(const json& value, const body_place& at, std::size_t index,
                  const request_context& context, request_draft& draft) {
  const field_reader fields{value, at, context.problems};
  const auto role = read_role(fields, context);
  if (!role)
    return;
  chat_message message;
  message.role = *role;
  read_content(fields, fmt::format(".messages[{}]", index), context, message);
  message.prefix = fields.boolean("prefix").value_or(false);
  if (*role == chat_role::tool)
    message.call_id = fields.need_text("tool_call_id");
  if (*role == chat_role::assistant) {
    const std::string* reasoning = fields.text("reasoning_content");
    if (reasoning == nullptr && !context.rules.strict_reference)
      reasoning = fields.text("reasoning");
    if (reasoning != nullptr)
      message.reasoning = *reasoning;
    if (const json* const calls = fields.array("tool_calls")) {
      message.calls_given = true;
      const body_place list = fields.place("tool_calls");
      for (std::size_t i = 0; i < calls->size() && !context.problems.any(); ++i)
        read_call((*calls)[i], body_place{&list, {}, i}, context, message);
    }
  }
  draft.messages.push_back(std::move(message));
}

void read_messages(const field_reader& body, const request_context& context, request_draft& draft) {
  if (body.need("messages") == nullptr)
    return;
  const json* const messages = body.array("messages");
  if (messages == nullptr)
    return;
  if (messages->size() > context.rules.messages_max)
    return body.wrong("messages", fmt::format("{} messages, at most {}", messages->size(),
                                              context.rules.messages_max));
  const body_place list = body.place("messages");
  for (std::size_t i = 0; i < messages->size() && !context.problems.any(); ++i)
    read_message((*messages)[i], body_place{&list, {}, i}, i, context, draft);
}

void read_tools(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const tools = body.array("tools");
  if (tools == nullptr)
    return;
  const body_place list = body.place("tools");
  for (std::size_t i = 0; i < tools->size() && !context.problems.any(); ++i) {
    const body_place at{&list, {}, i};
    const field_reader fields{(*tools)[i], at, context.problems};
    if (const json* const type = fields.need("type"))
      one_of(*type, fields.place("type"), context.problems, {"function"});
    const json* const function = fields.need("function");
    if (function == nullptr)
      return;
    const body_place here = fields.place("function");
    draft.tools.push_back(
        read_function(field_reader{*function, here, context.problems}, "parameters"));
  }
}

void read_choice(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const choice = body.find("tool_choice");
  if (choice == nullptr || !choice->is_object())
    return read_choice_word(body, draft);
  const body_place at = body.place("tool_choice");
  const field_reader fields{*choice, at, context.problems};
  if (const json* const type = fields.need("type"))
    one_of(*type, fields.place("type"), context.problems, {"function"});
  const json* const function = fields.need("function");
  if (function == nullptr)
    return;
  const body_place here = fields.place("function");
  draft.choice = tool_choice_kind::named;
  draft.tool_name = field_reader{*function, here, context.problems}.need_text("name");
}

void read_format(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const format = body.find("response_format");
  if (format == nullptr)
    return;
  const body_place at = body.place("response_format");
  const field_reader fields{*format, at, context.problems};
  const json* const type = fields.need("type");
  if (type == nullptr)
    return;
  const auto word = one_of(*type, fields.place("type"), context.problems,
                           {"text", "json_object", "json_schema", "regex"});
  if (!word)
    return;
  draft.format = static_cast<response_format_kind>(*word);
  if (draft.format == response_format_kind::regex)
    draft.regex = fields.need_text("regex");
  if (draft.format != response_format_kind::json_schema)
    return;
  const json* const schema = fields.need("json_schema");
  if (schema == nullptr)
    return;
  const body_place here = fields.place("json_schema");
  const field_reader inner{*schema, here, context.problems};
  const json* const value = inner.object("schema");
  draft.schema = value != nullptr ? *value : json::object();
  draft.strict_schema = inner.boolean("strict").value_or(false);
}

void read_fields(const field_reader& body, const request_context& context, request_draft& draft) {
  draft.frequency_penalty = body.number("frequency_penalty");
  draft.presence_penalty = body.number("presence_penalty");
  draft.max_tokens = body.unsigned_integer("max_tokens", 0xFFFF'FFFF);
  if (!context.rules.strict_reference)
    if (const auto limit = body.unsigned_integer("max_completion_tokens", 0xFFFF'FFFF)) {
      draft.max_tokens = limit;
      draft.max_tokens_field = "max_completion_tokens";
    }
  draft.n = body.unsigned_integer("n", 0xFFFF'FFFF);
  draft.seed = body.unsigned_integer("seed");
  draft.logprobs = body.boolean("logprobs").value_or(false);
  draft.top_logprobs = body.unsigned_integer("top_logprobs", 0xFFFF'FFFF);
  draft.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
  read_stream_options(body, draft);
}

// Every call is answered by a tool message that directly follows; returns where the walk goes on.
std::size_t check_answers(const std::vector<chat_message>& messages, std::size_t asked,
                          const request_context& context) {
  const auto& calls = messages[asked].calls;
  std::unordered_set<std::string_view> open;
  for (const call_of_history& call : calls)
    open.insert(call.id);
  std::size_t at = asked + 1;
  for (std::size_t i = 0; i < calls.size(); ++i, ++at) {
    if (at >= messages.size() || messages[at].role != chat_role::tool) {
      context.problems.broken_rule(
          "An assistant message with 'tool_calls' must be followed by tool messages responding to "
          "each 'tool_call_id'. (insufficient tool messages following tool_calls message)",
          fmt::format("messages[{}]", asked));
      return at;
    }
    if (open.erase(messages[at].call_id) == 0) {
      context.problems.broken_rule(
          fmt::format("An assistant message with 'tool_calls' must be followed by tool messages "
                      "responding to each 'tool_call_id', The following tool_call_ids did not have "
                      "response messages: {}",
                      shortened(messages[at].call_id, 100)),
          fmt::format("messages[{}]", at));
      return at;
    }
  }
  return at;
}

void check_image(prompt_image& image, const request_context& context) {
  if (image.kind == "no file")
    context.problems.broken_rule(
        fmt::format("{}: file must have a file_id or file_data", image.path), image.path);
  else
    image.kind = image_kind(image.source, image.path, context.problems);
}

void check_messages(request_draft& draft, const request_context& context) {
  auto& messages = draft.messages;
  if (messages.empty())
    context.problems.broken_rule("Invalid 'messages': empty array. Expected an array with minimum "
                                 "length 1, but got an empty array instead.",
                                 "messages");
  for (std::size_t i = 0; i < messages.size() && !context.problems.any();) {
    chat_message& message = messages[i];
    const std::string here = fmt::format("messages[{}]", i);
    for (content_part& part : message.parts) {
      if (!part.image)
        continue;
      if (message.role == chat_role::assistant)
        return context.problems.broken_rule("Image in assistant message is not supported", here);
      check_image(*part.image, context);
    }
    if (message.prefix && (i + 1 != messages.size() || message.role != chat_role::assistant))
      return context.problems.broken_rule(
          fmt::format(
              "Invalid '{}.prefix': only the last message may have it, and only if its role "
              "is assistant",
              here),
          here);
    if (message.role == chat_role::tool)
      return context.problems.broken_rule("Messages with role 'tool' must be a response to a "
                                          "preceding message with 'tool_calls'",
                                          here);
    if (message.calls_given && message.calls.empty())
      return context.problems.broken_rule(
          fmt::format("Invalid '{}.tool_calls': empty array. Expected an array with minimum length "
                      "1, but got an empty array instead.",
                      here),
          here + ".tool_calls");
    if (message.role == chat_role::assistant && !message.content_given && message.calls.empty())
      return context.problems.broken_rule(
          "Invalid assistant message: content or tool_calls must be set", here);
    const std::size_t next = message.calls.empty() ? i + 1 : check_answers(messages, i, context);
    for (std::size_t k = i + 1; k < next && k < messages.size(); ++k)
      for (content_part& part : messages[k].parts)
        if (part.image)
          check_image(*part.image, context);
    i = next;
  }
}

// Without thinking an empty leading system message leaves no trace.
void drop_empty_system(std::vector<chat_message>& messages) {
  if (messages.empty() || messages.front().role != chat_role::system)
    return;
  const auto& parts = messages.front().parts;
  const bool empty = std::all_of(parts.begin(), parts.end(), [](const content_part& part) {
    return !part.image && part.text.empty();
  });
  if (empty && parts.size() < 2)
    messages.erase(messages.begin());
}

} // namespace

prepare_outcome prepare_chat(const json& body, const request_rules& rules) {
  request_problems problems;
  const request_context context{rules, problems};
  const body_place root;
  const field_reader fields{body, root, problems};
  request_draft draft;
  draft.protocol = api::chat;
  read_common(fields, draft, context);
  read_thinking(fields, draft);
  read_effort(fields, "reasoning_effort", draft, context);
  read_stop(fields, "stop", true, draft);
  read_fields(fields, context, draft);
  read_tools(fields, context, draft);
  read_choice(fields, context, draft);
  read_format(fields, context, draft);
  read_messages(fields, context, draft);
  check_unknown_fields(fields,
                       {"n", "logprobs", "top_logprobs", "stop", "max_tokens", "stream_options",
                        "parallel_tool_calls", "tools", "tool_choice", "messages", "thinking",
                        "reasoning_effort", "max_completion_tokens", "response_format",
                        "modalities", "prediction", "web_search_options", "verbosity"},
                       context);
  check_ranges(draft, context);
  check_messages(draft, context);
  check_tools(draft, "function.name", true, context);
  drop_empty_system(draft.messages);
  return finish_request(std::move(draft),
                        "Prompt must contain the word 'json' in some form to use "
                        "'response_format' of type 'json_object'.",
                        context);
}

} // namespace di::engine
