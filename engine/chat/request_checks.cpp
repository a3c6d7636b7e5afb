// SPDX-License-Identifier: Apache-2.0
// Rules that the requests of all protocols share.
#include "engine/chat/request_draft.hpp"
#include "engine/chat/strict_schema.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace di::engine {
namespace {

void unknown_model(const std::string& name, const request_context& context) {
  std::vector<std::string> names;
  for (const known_model& model : context.rules.models)
    names.push_back(model.name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string list;
  for (const std::string& known : names)
    list += (list.empty() ? "" : ", ") + known;
  request_error error;
  error.message = fmt::format("The supported API model names are {}, but you passed {}.", list,
                              shortened(name, 100));
  error.param = "model";
  if (!context.rules.strict_reference) {
    error.status = 404;
    error.code = "model_not_found";
  }
  context.problems.fail(std::move(error));
}

void range_error(std::string_view field, std::string_view range, const request_context& context) {
  context.problems.broken_rule(
      fmt::format("Invalid {0} value, the valid range of {0} is {1}", field, range),
      std::string{field});
}

bool outside(const std::optional<double>& value, double low, double high) {
  return value && !(*value >= low && *value <= high);
}

void check_count(const request_draft& draft, const request_context& context) {
  if (!draft.n)
    return;
  if (context.rules.strict_reference) {
    if (*draft.n != 1)
      context.problems.broken_rule("Invalid n value (currently only n = 1 is supported)");
  } else if (*draft.n < 1 || *draft.n > context.rules.choices_max) {
    range_error("n", fmt::format("[1, {}]", context.rules.choices_max), context);
  }
}

void check_stop(const request_draft& draft, const request_context& context) {
  const std::string_view field = draft.protocol == api::messages ? "stop_sequences" : "stop";
  if (draft.stop.size() > context.rules.stop_max)
    return context.problems.broken_rule(
        fmt::format("Stop string array too long: {}", draft.stop.size()), std::string{field});
  for (std::size_t i = 0; i < draft.stop.size(); ++i) {
    if (draft.stop[i].empty())
      return context.problems.broken_rule(
          fmt::format(
              "Invalid '{}[{}]': empty string. Expected a string with minimum length 1, but "
              "got an empty string instead.",
              field, i),
          std::string{field});
    if (!context.rules.strict_reference && draft.stop[i].size() > context.rules.stop_bytes_max)
      return context.problems.broken_rule(fmt::format("Invalid '{}[{}]': {} bytes, at most {}",
                                                      field, i, draft.stop[i].size(),
                                                      context.rules.stop_bytes_max),
                                          std::string{field});
  }
}

void check_extensions(const request_draft& draft, const request_context& context) {
  if (outside(draft.min_p, 0, 1))
    range_error("min_p", "[0, 1]", context);
  if (draft.repetition_penalty
      && !(*draft.repetition_penalty > 0 && *draft.repetition_penalty <= 100))
    range_error("repetition_penalty", "(0, 100]", context);
  if (draft.top_k && *draft.top_k > 0xFFFF'FFFF)
    range_error("top_k", "[-1, 4294967295]", context);
  for (const proto::token_bias& entry : draft.logit_bias)
    if (!(entry.bias >= -100 && entry.bias <= 100))
      range_error("logit_bias", "[-100, 100]", context);
  if (draft.min_tokens && draft.max_tokens && *draft.min_tokens > *draft.max_tokens)
    context.problems.broken_rule(fmt::format("min_tokens ({}) is above {} ({})", *draft.min_tokens,
                                             draft.max_tokens_field, *draft.max_tokens),
                                 "min_tokens");
  if (draft.stop_token_ids.size() > 256)
    range_error("stop_token_ids", "at most 256 ids", context);
  if (draft.priority < -10 || draft.priority > 10)
    range_error("priority", "[-10, 10]", context);
  if (draft.cache_salt.size() > 256 || draft.user.size() > 1024)
    context.problems.broken_rule("cache_salt has at most 256 bytes, user at most 1024",
                                 draft.cache_salt.size() > 256 ? "cache_salt" : "user");
}

bool good_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'
           || c == '-';
  });
}

// A tool inside a namespace is named NAMESPACE::NAME.
bool good_tool_name(const std::string& name) {
  const auto at = name.find("::");
  if (at == std::string::npos)
    return good_name(name);
  return good_name(std::string_view{name}.substr(0, at))
         && good_name(std::string_view{name}.substr(at + 2));
}

void check_tool(const tool_definition& tool, const std::string& path,
                const request_context& context) {
  if (tool.name.empty())
    context.problems.broken_rule(
        fmt::format(
            "Invalid '{}': empty string. Expected a string with minimum length 1, but got an "
            "empty string instead.",
            path),
        path);
  else if (!good_tool_name(tool.name))
    context.problems.broken_rule(
        fmt::format(
            "Invalid '{}': string does not match pattern. Expected a string that matches the "
            "pattern '^[a-zA-Z0-9_-]+$'.",
            path),
        path);
  if (!tool.parameters)
    return;
  const auto type = tool.parameters->find("type");
  if (type != tool.parameters->end() && *type == "object")
    return;
  context.problems.broken_rule(
      fmt::format("Invalid schema for function '{}': schema must be a JSON Schema of 'type: "
                  "\"object\"', got 'type: {}'.",
                  shortened(tool.name, 100),
                  type == tool.parameters->end() ? "null" : shortened(constraint_json(*type), 100)),
      path);
}

} // namespace

const known_model* find_model(const request_rules& rules, std::string_view name) {
  for (const known_model& model : rules.models)
    if (model.name == name || (!model.alias.empty() && model.alias == name))
      return &model;
  return rules.any_model && !rules.models.empty() ? &rules.models.front() : nullptr;
}

void check_ranges(const request_draft& draft, const request_context& context) {
  if (context.problems.any())
    return;
  if (find_model(context.rules, draft.model) == nullptr)
    return unknown_model(draft.model, context);
  check_count(draft, context);
  if (draft.stream_options_given && !draft.stream)
    context.problems.broken_rule("stream_options should be set along with stream = true",
                                 "stream_options");
  if (outside(draft.temperature, 0, 2))
    range_error("temperature", "[0, 2]", context);
  if (draft.top_p && !(*draft.top_p > 0 && *draft.top_p <= 1))
    range_error("top_p", "(0, 1.0]", context);
  if (draft.max_tokens
      && (*draft.max_tokens < 1 || *draft.max_tokens > context.rules.max_tokens_max))
    range_error(draft.max_tokens_field, fmt::format("[1, {}]", context.rules.max_tokens_max),
                context);
  check_stop(draft, context);
  if (outside(draft.frequency_penalty, -2, 2))
    range_error("frequency_penalty", "[-2, 2]", context);
  if (outside(draft.presence_penalty, -2, 2))
    range_error("presence_penalty", "[-2, 2]", context);
  if (draft.seed && *draft.seed > INT64_MAX)
    range_error("seed", "[0, 9223372036854775807]", context);
  if (draft.logprobs && draft.top_logprobs && *draft.top_logprobs > 20)
    context.problems.broken_rule(
        "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].", "top_logprobs");
  check_extensions(draft, context);
}

void check_tools(request_draft& draft, std::string_view name_path, bool normalise_strict,
                 const request_context& context) {
  if (context.problems.any())
    return;
  if (draft.tools.size() > context.rules.tools_max)
    return context.problems.broken_rule(
        fmt::format("{} tools, at most {}", draft.tools.size(), context.rules.tools_max), "tools");
  std::unordered_set<std::string_view> names;
  bool unique = true;
  for (std::size_t i = 0; i < draft.tools.size(); ++i) {
    tool_definition& tool = draft.tools[i];
    check_tool(tool, fmt::format("tools[{}].{}", i, name_path), context);
    unique = names.insert(tool.name).second && unique;
    if (context.problems.any())
      return;
    if (!normalise_strict || !tool.strict.value_or(false) || !tool.parameters)
      continue;
    auto strict = strict_schema(*tool.parameters, !context.rules.strict_reference);
    if (const auto* const why = std::get_if<std::string>(&strict))
      return context.problems.broken_rule(*why, fmt::format("tools[{}]", i));
    tool.parameters = std::move(std::get<json>(strict));
  }
  if (!unique)
    context.problems.broken_rule("Tool names must be unique.", "tools");
}

bool mentions_json(const std::vector<chat_message>& messages) {
  constexpr std::string_view word = "json";
  for (const chat_message& message : messages)
    for (const content_part& part : message.parts)
      if (std::search(part.text.begin(), part.text.end(), word.begin(), word.end(),
                      [](char a, char b) {
                        return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
                      })
          != part.text.end())
        return true;
  return false;
}

void sort_tool_results(std::vector<chat_message>& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].calls.empty())
      continue;
    std::unordered_map<std::string_view, std::size_t> places;
    for (const call_of_history& call : messages[i].calls)
      places.emplace(call.id, places.size());
    const auto first = messages.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto last = std::find_if(first, messages.end(), [](const chat_message& message) {
      return message.role != chat_role::tool;
    });
    const auto place = [&](const chat_message& message) {
      const auto found_place = places.find(message.call_id);
      return found_place == places.end() ? 0 : found_place->second;
    };
    std::stable_sort(first, last, [&](const chat_message& a, const chat_message& b) {
      return place(a) < place(b);
    });
  }
}

std::string image_kind(const std::string& url, const std::string& at, request_problems& problems) {
  const std::string_view text = url;
  if (text.starts_with("http://") || text.starts_with("https://"))
    return "url";
  if (!text.starts_with("data:")) {
    problems.broken_rule(fmt::format("{}: Unsupported image_url format", at), at);
    return {};
  }
  for (const std::string_view type : {"webp", "png", "jpeg", "jpg", "gif"})
    if (text.substr(5).starts_with(fmt::format("image/{};", type)))
      return "data_url";
  problems.broken_rule(
      fmt::format(
          "{}: You have uploaded an unsupported image. Please make sure your image is valid "
          "and has one of the following formats: webp, png, jpeg, and gif.",
          at),
      at);
  return {};
}

} // namespace di::engine
