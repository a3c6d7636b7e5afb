// SPDX-License-Identifier: Apache-2.0
// The last step of all conversations: effort, tool choice, format, sampling, prompt.
#include "engine/chat/request_draft.hpp"
#include "engine/chat/strict_schema.hpp"

#include <algorithm>

namespace di::engine {
namespace {

void resolve_thinking(const request_draft& draft, const request_rules& rules, conversation& talk) {
  if (draft.thinking)
    talk.thinking = *draft.thinking;
  else if (draft.effort)
    talk.thinking = *draft.effort != effort_word::none;
  else
    talk.thinking = rules.default_thinking;
  talk.effort_number = draft.effort_number;
  switch (draft.effort.value_or(effort_word::none)) {
  case effort_word::none:
  case effort_word::high:
    talk.effort = effort_level::high;
    break;
  case effort_word::low:
    talk.effort = effort_level::low;
    break;
  case effort_word::xhigh:
    talk.effort = effort_level::xhigh;
    break;
  case effort_word::max:
    talk.effort = effort_level::max;
    break;
  }
}

// Leaves draft.tools empty if they do not count.
void resolve_tools(request_draft& draft, const request_context& context, conversation& talk) {
  if (draft.choice == tool_choice_kind::none) {
    draft.tools.clear();
    return;
  }
  if (draft.tools.empty()) {
    draft.choice = tool_choice_kind::automatic;
    return;
  }
  if (draft.choice == tool_choice_kind::named
      && std::none_of(draft.tools.begin(), draft.tools.end(),
                      [&](const tool_definition& tool) { return tool.name == draft.tool_name; }))
    return context.problems.broken_rule(
        fmt::format(
            "Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' "
            "parameter.",
            shortened(draft.tool_name, 100)),
        "tool_choice");
  if (!draft.messages.empty() && draft.messages.back().prefix)
    return context.problems.broken_rule("Function call should not be used with prefix", "tools");
  if (draft.choice == tool_choice_kind::automatic)
    return;
  if (talk.thinking)
    return context.problems.broken_rule("Thinking mode does not support this tool_choice",
                                        "tool_choice");
  talk.forced_call = true;
  talk.shown_tool = draft.tool_name;
}

void unsupported(std::string_view what, const std::string& field, const request_context& context) {
  request_error error;
  error.message = fmt::format("{} is not supported by this server: constrained output is not "
                              "available. Use response_format json_object or a tool.",
                              what);
  error.code = "unsupported_parameter";
  error.param = field;
  context.problems.fail(std::move(error));
}

void resolve_format(request_draft& draft, std::string_view no_json_text,
                    const request_context& context, conversation& talk) {
  const std::string field = draft.protocol == api::responses  ? "text.format"
                            : draft.protocol == api::messages ? "output_config.format"
                                                              : "response_format";
  if (!context.rules.constraints) {
    if (!draft.grammar_field.empty())
      return unsupported(draft.grammar_field, draft.grammar_field, context);
    if (draft.format == response_format_kind::json_schema
        || draft.format == response_format_kind::regex)
      return unsupported(fmt::format("The output format {}", to_string(draft.format)), field,
                         context);
  }
  if (draft.format == response_format_kind::json_object) {
    if (!mentions_json(draft.messages))
      return context.problems.broken_rule(std::string{no_json_text}, field);
    talk.format_text = R"({"type": "json_object"})";
  }
  if (draft.format != response_format_kind::json_schema)
    return;
  talk.format_text = prompt_json(*draft.schema);
  if (!draft.strict_schema)
    return;
  auto strict = strict_schema(*draft.schema, !context.rules.strict_reference);
  if (const auto* const why = std::get_if<std::string>(&strict))
    return context.problems.broken_rule(*why, field);
  draft.schema = std::move(std::get<json>(strict));
}

// What the tools ask for and only constrained sampling could promise.
void warn_of_tools(const request_draft& draft, const conversation& talk,
                   const request_context& context) {
  const auto strict = [](const tool_definition& tool) { return tool.strict.value_or(false); };
  const auto first = std::find_if(draft.tools.begin(), draft.tools.end(), strict);
  if (first != draft.tools.end())
    not_enforced(fmt::format("tools[{}].strict", first - draft.tools.begin()),
                 fmt::format("arguments need not fit the schema ({} tools ask for it)",
                             std::count_if(first, draft.tools.end(), strict)),
                 context);
  if (talk.forced_call)
    not_enforced("tool_choice", "the prompt begins a call, the model may go on with anything",
                 context);
}

std::string tools_constraint(const std::vector<tool_definition>& tools, const std::string& only,
                             bool show_strict) {
  std::string out = "[";
  for (const tool_definition& tool : tools) {
    if (!only.empty() && tool.name != only)
      continue;
    const bool strict_known = show_strict && tool.strict;
    out += fmt::format(
        R"({}{{"type":"function","function":{{"name":{},"description":{},"parameters":{},"strict":{}}}}})",
        out.size() > 1 ? "," : "", constraint_json(tool.name),
        tool.description ? constraint_json(*tool.description) : "null",
        tool.parameters ? constraint_json(*tool.parameters) : "{}",
        !strict_known ? "null" : (*tool.strict ? "true" : "false"));
  }
  return out + "]";
}

std::optional<output_constraint> constraint_of(const request_draft& draft,
                                               const conversation& talk) {
  if (!talk.tools.empty())
    return output_constraint{
        talk.forced_call ? "tool_call_required" : "tool_call",
        tools_constraint(talk.tools, talk.shown_tool, draft.protocol != api::messages)};
  switch (draft.format) {
  case response_format_kind::text:
    break;
  case response_format_kind::json_object:
    return output_constraint{"json", ""};
  case response_format_kind::json_schema:
    return output_constraint{"json", constraint_json(*draft.schema)};
  case response_format_kind::regex:
    return output_constraint{"regex", draft.regex};
  }
  return std::nullopt;
}

// What the model was tuned for replaces what the client asked.
void model_sampling(const request_draft& draft, const conversation& talk, prompt_encoding encoding,
                    request_problems& problems, proto::sampling_params& sampling) {
  const bool tools = !talk.tools.empty();
  if (talk.thinking)
    sampling.temperature = 1;
  if (encoding == prompt_encoding::v41)
    sampling.top_p = talk.thinking ? std::max(0.95, draft.top_p.value_or(1)) : 1;
  else if (!tools)
    sampling.top_p = 1;
  else
    sampling.top_p = std::max(0.95, draft.top_p.value_or(talk.thinking ? 0.95 : 1));
  if (draft.top_logprobs && !draft.logprobs)
    problems.warn("top_logprobs without logprobs has no effect");
  if (draft.temperature && sampling.temperature != *draft.temperature)
    problems.warn("temperature is 1 while the model thinks");
  if (draft.top_p && sampling.top_p != *draft.top_p)
    problems.warn(fmt::format("top_p is {} for this request", sampling.top_p));
}

// Reasoning that the prompt would show must be there, if the option says so.
void check_reasoning(const request_draft& draft, const conversation& talk,
                     const request_context& context) {
  if (!context.rules.reject_missing_reasoning || !talk.thinking || draft.tools.empty())
    return;
  for (const chat_message& message : draft.messages)
    if (!message.calls.empty() && !message.reasoning)
      return context.problems.broken_rule(
          fmt::format("The `{}` in the thinking mode must be passed back to the API.",
                      draft.protocol == api::messages ? "content[].thinking" : "reasoning_content"),
          "messages");
}

void refuse_images(const conversation& talk, const request_context& context) {
  for (const chat_message& message : talk.messages)
    for (const content_part& part : message.parts)
      if (part.image) {
        request_error error;
        error.message = fmt::format("{}: images are not supported by this model", part.image->path);
        error.code = "unsupported_content";
        error.param = part.image->path;
        return context.problems.fail(std::move(error));
      }
}

} // namespace

void fill_sampling(const request_draft& draft, prepared_request& out) {
  proto::sampling_params& s = out.sampling;
  s.max_tokens = 0;
  s.min_tokens = static_cast<std::uint32_t>(draft.min_tokens.value_or(0));
  s.n = static_cast<std::uint32_t>(draft.n.value_or(1));
  s.temperature = draft.temperature.value_or(1);
  s.top_p = draft.top_p.value_or(1);
  s.top_k = static_cast<std::uint32_t>(draft.top_k.value_or(0));
  s.min_p = draft.min_p.value_or(0);
  s.presence_penalty = draft.presence_penalty.value_or(0);
  s.frequency_penalty = draft.frequency_penalty.value_or(0);
  s.repetition_penalty = draft.repetition_penalty.value_or(1);
  s.logit_bias = draft.logit_bias;
  if (draft.logprobs) {
    s.logprobs = static_cast<std::int32_t>(draft.top_logprobs.value_or(0));
    if (draft.top_logprobs)
      out.top_logprobs = static_cast<std::uint32_t>(*draft.top_logprobs);
  }
  s.seed = draft.seed.value_or(0);
  out.seed_given = draft.seed.has_value();
  s.stop_token_ids = draft.stop_token_ids;
  s.ignore_eos = draft.ignore_eos;
  s.include_stop = draft.include_stop;
  s.forced_ids = draft.forced_ids;
  if (draft.max_tokens)
    out.max_tokens = static_cast<std::uint32_t>(*draft.max_tokens);
  out.parsing.stop = draft.stop;
  out.parsing.include_stop = draft.include_stop;
  out.protocol = draft.protocol;
  out.model = draft.model;
  out.stream = draft.stream;
  out.include_usage = draft.include_usage;
  out.custom_tools = draft.custom_tools;
  out.priority = static_cast<std::int32_t>(draft.priority);
  out.cache_salt = draft.cache_salt;
  out.user = draft.user;
}

prepare_outcome finish_request(request_draft&& draft, std::string_view no_json_text,
                               const request_context& context) {
  if (context.problems.any())
    return context.problems.take_error();
  conversation talk;
  resolve_thinking(draft, context.rules, talk);
  resolve_tools(draft, context, talk);
  resolve_format(draft, no_json_text, context, talk);
  check_reasoning(draft, talk, context);
  warn_of_tools(draft, talk, context);
  if (context.problems.any())
    return context.problems.take_error();
  sort_tool_results(draft.messages);
  talk.messages = std::move(draft.messages);
  talk.tools = std::move(draft.tools);
  talk.bare = draft.bare;
  const known_model& model = *find_model(context.rules, draft.model);
  if (!context.rules.tagged_images)
    refuse_images(talk, context);
  if (context.problems.any())
    return context.problems.take_error();

  prepared_request out;
  fill_sampling(draft, out);
  model_sampling(draft, talk, model.encoding, context.problems, out.sampling);
  if (context.rules.strict_reference)
    out.sampling.frequency_penalty = out.sampling.presence_penalty = 0;
  out.model_name = model.name;
  out.thinking = talk.thinking;
  if (talk.thinking)
    out.effort = talk.effort;
  out.tool_choice = draft.choice;
  out.response_format = draft.format;
  out.parsing.tool_calls = !talk.tools.empty();
  out.parsing.json = draft.format == response_format_kind::json_object;
  out.parsing.thinking = talk.thinking;
  out.parsing.begins = start_of_answer(talk);
  out.parsing.strict = context.rules.strict_reference;
  out.parsing.one_call =
      out.parsing.tool_calls && !draft.parallel_tool_calls && !out.parsing.strict;
  if (context.rules.constraints)
    out.constraint = constraint_of(draft, talk);
  render_conversation(talk, model.encoding, out.segments, out.images);
  out.warnings = context.problems.take_warnings();
  return out;
}

} // namespace di::engine
