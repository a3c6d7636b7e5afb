// SPDX-License-Identifier: Apache-2.0
// Fields that the bodies of all protocols share.
#include "engine/chat/request_draft.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace di::engine {
namespace {

constexpr std::uint64_t u32_max = 0xFFFF'FFFF;
constexpr std::size_t ids_max = 1'048'576; // [ids] of one list in a body

// Read by read_common() or without effect here; not worth a warning.
constexpr std::array<std::string_view, 27> shared_fields = {"model",
                                                            "stream",
                                                            "temperature",
                                                            "top_p",
                                                            "top_k",
                                                            "min_p",
                                                            "frequency_penalty",
                                                            "presence_penalty",
                                                            "repetition_penalty",
                                                            "logit_bias",
                                                            "seed",
                                                            "stop_token_ids",
                                                            "ignore_eos",
                                                            "min_tokens",
                                                            "include_stop_str_in_output",
                                                            "priority",
                                                            "cache_salt",
                                                            "user",
                                                            "user_id",
                                                            "safety_identifier",
                                                            "metadata",
                                                            "store",
                                                            "service_tier",
                                                            "prompt_cache_key",
                                                            "prompt_cache_retention",
                                                            "forced_ids",
                                                            "request_id"};

std::vector<token_id> read_id_list(const field_reader& body, std::string_view key,
                                   const request_context& context) {
  const json* const list = body.array(key);
  if (list == nullptr)
    return {};
  if (list->size() > ids_max) {
    body.wrong(key, fmt::format("{} ids, at most {} are read", list->size(), ids_max));
    return {};
  }
  return read_ids(body, key, *list, context);
}

void read_bias(const field_reader& body, request_draft& draft, const request_context& context) {
  const json* const map = body.object("logit_bias");
  if (map == nullptr)
    return;
  if (map->size() > 4096)
    return body.wrong("logit_bias", fmt::format("{} tokens, at most 4096", map->size()));
  const std::uint64_t end = context.rules.vocab_size > 0 ? context.rules.vocab_size : INT32_MAX;
  for (const auto& [key, value] : *map->get_ptr<const json::object_t*>()) {
    std::uint64_t id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (key.empty() || read.ec != std::errc{} || read.ptr != key.data() + key.size() || id >= end)
      return body.wrong("logit_bias",
                        fmt::format("expected token ids below {} as keys, found \"{}\"", end,
                                    shortened(key, 40)));
    if (!value.is_number())
      return body.wrong("logit_bias",
                        fmt::format("expected a number for token {}, found {}", id, found(value)));
    draft.logit_bias.push_back({static_cast<token_id>(id), value.get<double>()});
  }
}

// What only the engine knows; the reference ignores all of it.
void read_extensions(const field_reader& body, request_draft& draft,
                     const request_context& context) {
  draft.min_p = body.number("min_p");
  draft.frequency_penalty = body.number("frequency_penalty");
  draft.presence_penalty = body.number("presence_penalty");
  draft.seed = body.unsigned_integer("seed");
  draft.repetition_penalty = body.number("repetition_penalty");
  if (const auto k = body.integer("top_k")) { // -1 and 0: off
    if (*k > 0)
      draft.top_k = static_cast<std::uint64_t>(*k);
    else if (*k < -1)
      body.wrong("top_k", fmt::format("expected -1 or more, found {}", *k));
  }
  draft.min_tokens = body.unsigned_integer("min_tokens", u32_max);
  read_bias(body, draft, context);
  draft.stop_token_ids = read_id_list(body, "stop_token_ids", context);
  draft.ignore_eos = body.boolean("ignore_eos").value_or(false);
  draft.include_stop = body.boolean("include_stop_str_in_output").value_or(false);
  draft.priority = body.integer("priority").value_or(0);
  if (const std::string* const salt = body.text("cache_salt"))
    draft.cache_salt = *salt;
  for (const std::string_view key : {"user", "user_id", "safety_identifier"})
    if (const std::string* const user = body.text(key); user != nullptr && draft.user.empty())
      draft.user = *user;
  if (context.rules.test_hooks)
    draft.forced_ids = read_id_list(body, "forced_ids", context);
  for (const std::string_view key :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
        "regex", "ebnf", "json_schema", "so_args"})
    if (body.find(key) != nullptr && draft.grammar_field.empty())
      draft.grammar_field = key;
}

} // namespace

void read_common(const field_reader& body, request_draft& draft, const request_context& context) {
  draft.model = body.need_text("model");
  draft.stream = body.boolean("stream").value_or(false);
  draft.temperature = body.number("temperature");
  draft.top_p = body.number("top_p");
  if (!context.rules.strict_reference)
    read_extensions(body, draft, context);
}

void read_thinking(const field_reader& body, request_draft& draft) {
  const json* const thinking = body.find("thinking");
  if (thinking == nullptr)
    return;
  const body_place at = body.place("thinking");
  const field_reader fields{*thinking, at, body.problems()};
  if (const json* const type = fields.need("type"))
    if (const auto word = one_of(*type, fields.place("type"), body.problems(),
                                 {"enabled", "disabled", "adaptive"}))
      draft.thinking = *word != 1;
}

void read_effort(const field_reader& fields, std::string_view key, request_draft& draft,
                 const request_context& context) {
  const json* const value = fields.find(key);
  if (value == nullptr)
    return;
  if (value->is_number_integer() && !context.rules.strict_reference) {
    const auto number = fields.unsigned_integer(key, 100).value_or(0);
    if (number == 0)
      return fields.wrong(key, "expected a word, or a number from 1 to 100");
    draft.effort_number = static_cast<std::uint32_t>(number);
    draft.effort = number >= 100  ? effort_word::max
                   : number <= 50 ? effort_word::low
                                  : effort_word::high;
    return;
  }
  static constexpr std::array<effort_word, 8> meaning = {
      effort_word::none, effort_word::low,   effort_word::low, effort_word::high,
      effort_word::high, effort_word::xhigh, effort_word::max, effort_word::max};
  if (const auto word =
          one_of(*value, fields.place(key), fields.problems(),
                 {"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"}))
    draft.effort = meaning[*word];
}

void read_stop(const field_reader& body, std::string_view key, bool single, request_draft& draft) {
  const json* const value = body.find(key);
  if (value == nullptr)
    return;
  if (single && value->is_string()) {
    draft.stop.push_back(*value->get_ptr<const std::string*>());
    return;
  }
  if (!value->is_array())
    return body.wrong(key,
                      fmt::format("expected {}, found {}",
                                  single ? "a string or an array" : "an array", found(*value)));
  for (const json& item : *value) {
    if (!item.is_string())
      return body.wrong(key, fmt::format("expected strings, found {}", found(item)));
    // One more than allowed is enough to say so; a list of 10^5 is not copied.
    if (draft.stop.size() <= 4096)
      draft.stop.push_back(*item.get_ptr<const std::string*>());
  }
}

void read_stream_options(const field_reader& body, request_draft& draft) {
  const json* const options = body.object("stream_options");
  if (options == nullptr)
    return;
  draft.stream_options_given = true;
  const body_place at = body.place("stream_options");
  draft.include_usage =
      field_reader{*options, at, body.problems()}.boolean("include_usage").value_or(false);
}

void read_choice_word(const field_reader& body, request_draft& draft) {
  static constexpr tool_choice_kind kinds[] = {tool_choice_kind::none, tool_choice_kind::automatic,
                                               tool_choice_kind::required};
  if (const json* const choice = body.find("tool_choice"); choice && !choice->is_object())
    if (const auto word = one_of(*choice, body.place("tool_choice"), body.problems(),
                                 {"none", "auto", "required"}))
      draft.choice = kinds[*word];
}

std::vector<token_id> read_ids(const field_reader& body, std::string_view key, const json& list,
                               const request_context& context) {
  std::vector<token_id> out;
  const std::uint64_t end = context.rules.vocab_size > 0 ? context.rules.vocab_size : INT32_MAX;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= end) {
      body.wrong(key, fmt::format("expected token ids below {}, found {} at index {}", end,
                                  found(id), out.size()));
      return {};
    }
    out.push_back(id.get<token_id>());
  }
  return out;
}

tool_definition read_function(const field_reader& fields, std::string_view parameters_key) {
  tool_definition tool;
  tool.name = fields.need_text("name");
  if (const std::string* const about = fields.text("description"))
    tool.description = *about;
  if (const json* const parameters = fields.object(parameters_key))
    tool.parameters = *parameters;
  tool.strict = fields.boolean("strict");
  tool.deferred = fields.boolean("defer_loading").value_or(false);
  return tool;
}

void not_enforced(const std::string& field, std::string_view what, const request_context& context) {
  if (context.rules.strict_reference || context.rules.constraints)
    return;
  if (!context.rules.strict_fields)
    return context.problems.warn(fmt::format("{} is not enforced: {}", field, what));
  request_error error;
  error.message = fmt::format("{} cannot be enforced by this server: {}", field, what);
  error.code = "unsupported_parameter";
  error.param = field;
  context.problems.fail(std::move(error));
}

void check_unknown_fields(const field_reader& body, std::initializer_list<std::string_view> own,
                          const request_context& context) {
  if (body.value() == nullptr || context.rules.strict_reference)
    return;
  for (const auto& [key, value] : *body.value()->get_ptr<const json::object_t*>()) {
    const std::string_view name = key;
    if (std::find(own.begin(), own.end(), name) != own.end()
        || std::find(shared_fields.begin(), shared_fields.end(), name) != shared_fields.end())
      continue;
    if (context.rules.strict_fields)
      return context.problems.bad_field(body.place(name), "unknown field");
    context.problems.warn(fmt::format("unknown field `{}` is ignored", shortened(name, 60)));
  }
}

} // namespace di::engine
