// SPDX-License-Identifier: Apache-2.0
// Responses.
#include "engine/chat/responses_items.hpp"

#include <algorithm>

namespace di::engine {
namespace {

constexpr std::string_view input_note = "The input of this tool is one free-form text.";

/// What the tools of a body come to.
struct tool_reader {
  request_draft& draft;
  const request_context& context;
  bool server_tool = false; // one that is to be rejected

  void function(const field_reader& fields, const std::string& space, const std::string& about) {
    tool_definition tool = read_function(fields, "parameters");
    if (!space.empty()) {
      tool.name = fmt::format("{}::{}", space, tool.name);
      if (!about.empty())
        tool.description = fmt::format("{}\n{}", about, tool.description.value_or(""));
    }
    draft.tools.push_back(std::move(tool));
  }

  // A tool whose input is one text, as a function with one parameter.
  void custom(const field_reader& fields) {
    tool_definition tool;
    tool.name = fields.need_text("name");
    const std::string* const about = fields.text("description");
    std::string shown =
        about != nullptr ? fmt::format("{}\n{}", *about, input_note) : std::string{input_note};
    if (const json* const format = fields.object("format")) {
      if (const auto definition = format->find("definition");
          definition != format->end() && definition->is_string())
        shown.append("\n").append(definition->get_ref<const std::string&>());
      if (const auto kind = format->find("type"); kind != format->end() && *kind == "grammar")
        not_enforced(fields.place("format").text(), "the model is shown the grammar, no more",
                     context);
    }
    tool.description = std::move(shown);
    tool.parameters = json{{"type", "object"},
                           {"properties", {{"input", {{"type", "string"}}}}},
                           {"required", json::array({"input"})}};
    draft.custom_tools.push_back(tool.name);
    draft.tools.push_back(std::move(tool));
  }

  void one(const json& value, const body_place& at) {
    const field_reader fields{value, at, context.problems};
    if (fields.need("type") == nullptr || fields.text("type") == nullptr)
      return;
    const std::string& type = *fields.text("type");
    if (type == "function")
      return function(fields, {}, {});
    if (type == "custom")
      return custom(fields);
    if (type == "namespace") {
      const std::string& space = fields.need_text("name");
      const std::string* const about = fields.text("description");
      const json* const tools = fields.array("tools");
      if (tools == nullptr)
        return;
      const body_place list = fields.place("tools");
      for (std::size_t i = 0; i < tools->size() && !context.problems.any(); ++i) {
        const body_place here{&list, {}, i};
        function(field_reader{(*tools)[i], here, context.problems}, space,
                 about != nullptr ? *about : std::string{});
      }
      return;
    }
    if (type.starts_with("web_search")
        && context.rules.responses_web_search == server_tools::reject)
      server_tool = true;
    else
      context.problems.warn(fmt::format("tools of type {} are ignored", shortened(type, 60)));
  }
};

void read_choice(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const choice = body.find("tool_choice");
  if (choice == nullptr || !choice->is_object())
    return read_choice_word(body, draft);
  const body_place at = body.place("tool_choice");
  const field_reader fields{*choice, at, context.problems};
  const json* const type = fields.need("type");
  if (type == nullptr)
    return;
  const auto word = one_of(*type, fields.place("type"), context.problems,
                           {"function", "web_search", "web_search_2025_08_26", "custom"});
  if (!word || *word == 1 || *word == 2)
    return;
  draft.choice = tool_choice_kind::named;
  draft.tool_name = fields.need_text("name");
}

void read_format(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const text = body.object("text");
  if (text == nullptr)
    return;
  const body_place text_at = body.place("text");
  const json* const format = field_reader{*text, text_at, context.problems}.find("format");
  if (format == nullptr)
    return;
  const body_place at{&text_at, "format", 0};
  const field_reader fields{*format, at, context.problems};
  const json* const type = fields.need("type");
  if (type == nullptr)
    return;
  const auto word =
      one_of(*type, fields.place("type"), context.problems, {"text", "json_object", "json_schema"});
  if (!word)
    return;
  draft.format = static_cast<response_format_kind>(*word);
  if (draft.format != response_format_kind::json_schema)
    return;
  fields.need_text("name");
  fields.need("schema");
  const json* const schema = fields.object("schema");
  draft.schema = schema != nullptr ? *schema : json::object();
  draft.strict_schema = fields.boolean("strict").value_or(false);
}

bool wants_logprobs(const field_reader& body) {
  const json* const include = body.array("include");
  return include != nullptr && std::any_of(include->begin(), include->end(), [](const json& what) {
           return what == "message.output_text.logprobs";
         });
}

void read_input(const field_reader& body, const request_context& context, request_draft& draft) {
  const std::string* const instructions = body.text("instructions");
  if (instructions != nullptr) {
    chat_message message;
    message.role = chat_role::system;
    message.parts.push_back({*instructions, {}});
    draft.messages.push_back(std::move(message));
  }
  const json* const input = body.find("input");
  if (input == nullptr || (input->is_array() && input->empty())) {
    if (instructions == nullptr || input != nullptr)
      context.problems.broken_rule("Either input or instructions must be provided", "input");
    return;
  }
  if (input->is_string()) {
    chat_message message;
    message.parts.push_back({*input->get_ptr<const std::string*>(), {}});
    draft.messages.push_back(std::move(message));
    return;
  }
  if (!input->is_array())
    return body.wrong("input",
                      fmt::format("expected a string or an array, found {}", found(*input)));
  if (input->size() > context.rules.messages_max)
    return body.wrong(
        "input", fmt::format("{} items, at most {}", input->size(), context.rules.messages_max));
  const body_place list = body.place("input");
  responses_items items{draft, context};
  for (std::size_t i = 0; i < input->size() && !context.problems.any(); ++i)
    items.add((*input)[i], body_place{&list, {}, i}, i);
  items.finish();
  draft.bare = draft.messages.empty();
}

void check_images(request_draft& draft, const request_context& context) {
  for (chat_message& message : draft.messages)
    for (content_part& part : message.parts) {
      if (!part.image)
        continue;
      prompt_image& image = *part.image;
      if (image.kind == "none")
        context.problems.broken_rule(
            fmt::format("{}: input_image must have image_url or file_id", image.source),
            image.source);
      else if (image.kind == "file")
        context.problems.broken_rule(
            fmt::format(
                "{}: file_id is not supported. Pass the image as a base64 data url instead.",
                image.path),
            image.path);
      else if (message.role == chat_role::assistant)
        context.problems.broken_rule("Image in assistant message is not supported", image.path);
      else
        image.kind = image_kind(image.source, image.path, context.problems);
    }
}

} // namespace

prepare_outcome prepare_responses(const json& body, const request_rules& rules) {
  request_problems problems;
  const request_context context{rules, problems};
  const body_place root;
  const field_reader fields{body, root, problems};
  request_draft draft;
  draft.protocol = api::responses;
  read_common(fields, draft, context);
  if (const json* const reasoning = fields.object("reasoning")) {
    const body_place at = fields.place("reasoning");
    read_effort(field_reader{*reasoning, at, problems}, "effort", draft, context);
  }
  draft.max_tokens = fields.unsigned_integer("max_output_tokens", 0xFFFF'FFFF);
  if (!rules.strict_reference)
    draft.max_tokens_field = "max_output_tokens";
  draft.top_logprobs = fields.unsigned_integer("top_logprobs", 0xFFFF'FFFF);
  draft.logprobs = draft.top_logprobs.has_value() || wants_logprobs(fields);
  draft.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  tool_reader tools{draft, context};
  if (const json* const list = fields.array("tools")) {
    const body_place at = fields.place("tools");
    for (std::size_t i = 0; i < list->size() && !problems.any(); ++i)
      tools.one((*list)[i], body_place{&at, {}, i});
  }
  read_choice(fields, context, draft);
  read_format(fields, context, draft);
  read_input(fields, context, draft);
  check_unknown_fields(fields,
                       {"top_logprobs", "stream_options", "parallel_tool_calls", "tools",
                        "tool_choice", "input", "instructions", "reasoning", "text", "include",
                        "max_output_tokens", "previous_response_id", "conversation", "background",
                        "truncation", "max_tool_calls", "prompt", "context_management"},
                       context);
  check_ranges(draft, context);
  if (tools.server_tool)
    problems.broken_rule("Server tools are not supported", "tools");
  check_images(draft, context);
  check_outputs(draft, context);
  check_tools(draft, "name", true, context);
  return finish_request(std::move(draft),
                        "Response input messages must contain the word 'json' in some form to use "
                        "'text.format' of type 'json_object'.",
                        context);
}

} // namespace di::engine
