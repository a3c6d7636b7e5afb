// SPDX-License-Identifier: Apache-2.0
// Messages: the form of Anthropic's API.
#include "engine/chat/message_blocks.hpp"

#include <algorithm>

namespace di::engine {
namespace {

void read_system(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const system = body.find("system");
  if (system == nullptr)
    return;
  chat_message message;
  message.role = chat_role::system;
  if (system->is_string()) {
    message.parts.push_back({*system->get_ptr<const std::string*>(), {}});
  } else if (system->is_array()) {
    const body_place list = body.place("system");
    for (std::size_t i = 0; i < system->size() && !context.problems.any(); ++i) {
      const body_place at{&list, {}, i};
      const field_reader fields{(*system)[i], at, context.problems};
      if (const json* const type = fields.need("type"))
        one_of(*type, fields.place("type"), context.problems, {"text"});
      message.parts.push_back({fields.need_text("text"), {}});
    }
  } else {
    body.wrong("system", fmt::format("expected a string or a list, found {}", found(*system)));
  }
  draft.messages.push_back(std::move(message));
}

void read_tools(const field_reader& body, const request_context& context, request_draft& draft,
                std::vector<std::size_t>& server_tools_at) {
  const json* const tools = body.array("tools");
  if (tools == nullptr)
    return;
  const body_place list = body.place("tools");
  bool shown = tools->empty();
  for (std::size_t i = 0; i < tools->size() && !context.problems.any(); ++i) {
    const body_place at{&list, {}, i};
    const field_reader fields{(*tools)[i], at, context.problems};
    const std::string* const type = fields.text("type");
    if (type != nullptr && *type != "custom") {
      const bool search = type->starts_with("web_search");
      if (!search || context.rules.messages_web_search == server_tools::reject)
        server_tools_at.push_back(i);
      else
        shown = true;
      continue;
    }
    draft.tools.push_back(read_function(fields, "input_schema"));
    shown = shown || !draft.tools.back().deferred;
  }
  draft.deferred_tools_only = !shown && !draft.tools.empty();
}

// Returns whether the choice was `any`.
bool read_choice(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const choice = body.find("tool_choice");
  if (choice == nullptr)
    return false;
  const body_place at = body.place("tool_choice");
  const field_reader fields{*choice, at, context.problems};
  const json* const type = fields.need("type");
  if (type == nullptr)
    return false;
  const auto word =
      one_of(*type, fields.place("type"), context.problems, {"auto", "any", "tool", "none"});
  if (!word)
    return false;
  if (*word == 2) {
    draft.choice = tool_choice_kind::named;
    draft.tool_name = fields.need_text("name");
  } else if (*word == 3) {
    draft.choice = tool_choice_kind::none;
  }
  if (fields.boolean("disable_parallel_tool_use").value_or(false))
    draft.parallel_tool_calls = false;
  return *word == 1;
}

void read_output(const field_reader& body, const request_context& context, request_draft& draft) {
  const json* const output = body.object("output_config");
  if (output == nullptr)
    return;
  const body_place at = body.place("output_config");
  const field_reader fields{*output, at, context.problems};
  read_effort(fields, "effort", draft, context);
  if (!context.rules.strict_reference && fields.find("format") != nullptr)
    draft.grammar_field = "output_config.format";
}

std::vector<message_blocks> read_messages(const field_reader& body,
                                          const request_context& context) {
  std::vector<message_blocks> out;
  if (body.need("messages") == nullptr)
    return out;
  const json* const messages = body.array("messages");
  if (messages == nullptr)
    return out;
  if (messages->size() > context.rules.messages_max) {
    body.wrong("messages", fmt::format("{} messages, at most {}", messages->size(),
                                       context.rules.messages_max));
    return out;
  }
  const body_place list = body.place("messages");
  for (std::size_t i = 0; i < messages->size() && !context.problems.any(); ++i)
    out.push_back(read_message_blocks((*messages)[i], body_place{&list, {}, i}, i, context));
  return out;
}

// The results of a message come before its own text.
void flatten(std::vector<message_blocks>&& all, request_draft& draft) {
  for (message_blocks& blocks : all) {
    const bool only_results = !blocks.results.empty() && blocks.message.parts.empty();
    for (chat_message& result : blocks.results)
      draft.messages.push_back(std::move(result));
    if (!only_results)
      draft.messages.push_back(std::move(blocks.message));
  }
}

} // namespace

prepare_outcome prepare_messages(const json& body, const request_rules& rules) {
  request_problems problems;
  const request_context context{rules, problems};
  const body_place root;
  const field_reader fields{body, root, problems};
  request_draft draft;
  draft.protocol = api::messages;
  read_common(fields, draft, context);
  read_thinking(fields, draft);
  read_output(fields, context, draft);
  read_stop(fields, "stop_sequences", false, draft);
  if (!rules.strict_reference)
    draft.seed = fields.unsigned_integer("seed");
  draft.max_tokens = fields.unsigned_integer("max_tokens", 0xFFFF'FFFF);
  std::vector<std::size_t> server_tools_at;
  read_tools(fields, context, draft, server_tools_at);
  const bool any = read_choice(fields, context, draft);
  read_system(fields, context, draft);
  std::vector<message_blocks> all = read_messages(fields, context);
  if (const json* const metadata = fields.object("metadata"); metadata && draft.user.empty()) {
    const body_place at = fields.place("metadata");
    if (const std::string* const user = field_reader{*metadata, at, problems}.text("user_id"))
      draft.user = *user;
  }
  check_unknown_fields(fields,
                       {"max_tokens", "tools", "tool_choice", "messages", "system", "thinking",
                        "output_config", "stop_sequences", "container", "context_management",
                        "mcp_servers", "betas", "anthropic_version", "anthropic_beta",
                        "inference_geo", "speed"},
                       context);
  if (draft.max_tokens && *draft.max_tokens > rules.max_tokens_max) {
    draft.max_tokens = rules.max_tokens_max;
    problems.warn(fmt::format("max_tokens is lowered to {}", rules.max_tokens_max));
  }
  check_ranges(draft, context);
  check_blocks(all, context);
  flatten(std::move(all), draft);
  if (!server_tools_at.empty())
    problems.broken_rule(
        fmt::format("tools[{}]: server tools are not supported", server_tools_at.front()), "tools");
  check_tools(draft, "name", false, context);
  if (draft.deferred_tools_only)
    problems.broken_rule("tools: at least one tool must have defer_loading=false. All tools cannot "
                         "be deferred.",
                         "tools");
  if (any && !rules.strict_reference) {
    const bool off = draft.thinking ? !*draft.thinking
                     : draft.effort ? *draft.effort == effort_word::none
                                    : !rules.default_thinking;
    if (off)
      draft.choice = tool_choice_kind::required;
    else
      problems.warn("tool_choice any is treated like auto while the model thinks");
  }
  return finish_request(std::move(draft), {}, context);
}

} // namespace di::engine
