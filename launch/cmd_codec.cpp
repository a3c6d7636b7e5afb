// SPDX-License-Identifier: Apache-2.0
#include "launch/cmd_codec.hpp"

#include "engine/chat/prepare.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>

namespace di::launch {
namespace {

using engine::json, engine::prepared_request, engine::request_error, engine::request_rules,
    engine::tokenizer;

// A 32-bit float as the number with the fewest digits.
json short_float(double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(value));
  double out = 0;
  std::from_chars(text, end.ptr, out);
  return out;
}

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json{};
}

json stage_name(engine::start_stage stage) {
  switch (stage) {
  case engine::start_stage::reasoning:
    return "ReasoningStart";
  case engine::start_stage::reasoning_continuation:
    return "ReasoningContinuation";
  case engine::start_stage::answer_continuation:
    return "ContentContinuation";
  case engine::start_stage::answer:
  case engine::start_stage::tool_calls:
    break;
  }
  return nullptr;
}

json error_result(const request_error& error) {
  json out{{"ok", false}};
  if (error.phase == request_error::stage::parse) {
    out["phase"] = "parse";
    out["kind"] = error.message.starts_with("invalid JSON") ? "json" : "body";
    out["detail"] = error.message;
    return out;
  }
  out["phase"] = "convert";
  out["status"] = error.status;
  out["body"]["error"] = json{{"message", error.message},
                              {"type", error.type},
                              {"param", or_null(error.param)},
                              {"code", error.code}};
  return out;
}

// What a few context limits leave: those that the row names, or one wide and two narrow ones.
json resolved(const prepared_request& request, std::size_t prompt_tokens, const json& row,
              const request_rules& rules) {
  std::vector<std::size_t> limits;
  if (const auto result = row.find("result"); result != row.end() && result->is_object())
    if (const auto known = result->find("resolved_max_tokens");
        known != result->end() && known->is_object())
      for (const auto& [key, value] : known->items())
        if (std::size_t limit = 0;
            std::from_chars(key.data(), key.data() + key.size(), limit).ec == std::errc{})
          limits.push_back(limit);
  if (limits.empty())
    limits = {1'048'576, prompt_tokens + 100, prompt_tokens > 0 ? prompt_tokens - 1 : 0};
  json out = json::object();
  for (const std::size_t limit : limits) {
    const auto tokens = engine::resolve_max_tokens(request, prompt_tokens, limit, rules);
    const auto* const count = std::get_if<std::uint32_t>(&tokens);
    out[std::to_string(limit)] =
        count != nullptr ? json(*count) : json(std::get<request_error>(tokens).message);
  }
  return out;
}

json request_result(const prepared_request& request, const json& row, const tokenizer* words,
                    const request_rules& rules) {
  json out{{"ok", true}};
  json& segments = out["segments"] = json::array();
  for (const auto& segment : request.segments)
    segments.push_back(json::array({segment.special ? 1 : 0, segment.text}));
  std::size_t prompt_tokens = request.prompt_ids.size();
  if (words != nullptr) {
    out["ids"] = request.prompt_ids;
    if (request.prompt_ids.empty()) {
      const auto ids = engine::encode_segments(request.segments, *words);
      if (!ids.ok())
        return json{{"ok", false}, {"phase", "encode"}, {"detail", ids.error().what}};
      out["ids"] = *ids;
      prompt_tokens = ids->size();
    }
  }
  json& images = out["images"] = json::array();
  for (const auto& image : request.images)
    images.push_back(json::array({image.kind, image.detail, image.path}));
  out["sampling"] = json{{"max_tokens", or_null(request.max_tokens)},
                         {"temperature", short_float(request.sampling.temperature)},
                         {"top_p", short_float(request.sampling.top_p)},
                         {"logprobs", request.sampling.logprobs >= 0},
                         {"top_logprobs", or_null(request.top_logprobs)},
                         {"seed", request.seed_given ? json(request.sampling.seed) : json{}}};
  out["constraint"] = nullptr;
  if (request.constraint)
    out["constraint"] =
        json{{"kind", request.constraint->kind}, {"schema", request.constraint->schema}};
  out["parsing"] =
      json{{"parse_tool_calls", request.parsing.tool_calls},
           {"starts_in_tool_calls", request.parsing.begins == engine::start_stage::tool_calls},
           {"parse_json_output", request.parsing.json},
           {"initial_stage", stage_name(request.parsing.begins)},
           {"stop", request.parsing.stop}};
  out["stream"] = request.stream;
  out["thinking"] = request.thinking;
  out["effort"] = request.effort ? json(engine::to_string(*request.effort)) : json{};
  out["tool_choice"] = engine::to_string(request.tool_choice);
  out["response_format"] = engine::to_string(request.response_format);
  if (words != nullptr)
    out["resolved_max_tokens"] = resolved(request, prompt_tokens, row, rules);
  if (!request.warnings.empty() && !rules.strict_reference)
    out["warnings"] = request.warnings;
  return out;
}

void apply_options(const json& row, request_rules& rules) {
  const auto options = row.find("options");
  if (options == row.end() || !options->is_object())
    return;
  const auto is = [&](const char* key, const char* word) {
    const auto value = options->find(key);
    return value != options->end() && *value == word;
  };
  if (const auto thinking = options->find("default_thinking_mode");
      thinking != options->end() && thinking->is_boolean())
    rules.default_thinking = thinking->get<bool>();
  rules.reject_missing_reasoning = is("reasoning_content_behavior", "Reject");
  if (is("responses_web_search", "Reject"))
    rules.responses_web_search = engine::server_tools::reject;
  if (is("messages_web_search", "Drop"))
    rules.messages_web_search = engine::server_tools::drop;
}

engine::api family_of(const json& row) {
  const auto family = row.find("family");
  if (family == row.end())
    return engine::api::chat;
  return *family == "responses"     ? engine::api::responses
         : *family == "messages"    ? engine::api::messages
         : *family == "completions" ? engine::api::completions
                                    : engine::api::chat;
}

struct render_options {
  line_files files;
  bool strict_reference = false;
};

} // namespace

request_rules codec_rules(bool strict_reference) {
  request_rules rules;
  rules.models = {{"DeepSeek-V4.1-Flash", {}, engine::prompt_encoding::v41},
                  {"DeepSeek-V4-Pro", {}, engine::prompt_encoding::v4}};
  rules.strict_reference = strict_reference;
  rules.constraints = true;
  return rules;
}

json render_row(const json& row, const tokenizer* words, request_rules rules) {
  apply_options(row, rules);
  const engine::api family = family_of(row);
  engine::prepare_outcome outcome = request_error{};
  if (const auto raw = row.find("request_text"); raw != row.end() && raw->is_string())
    outcome = engine::prepare_text(family, raw->get_ref<const std::string&>(), rules);
  else if (const auto body = row.find("request"); body != row.end())
    outcome = engine::prepare_request(family, *body, rules);
  else
    return json{{"ok", false},
                {"phase", "parse"},
                {"kind", "row"},
                {"detail", "the line has neither request nor request_text"}};
  if (const auto* const error = std::get_if<request_error>(&outcome))
    return error_result(*error);
  return request_result(std::get<prepared_request>(outcome), row, words, rules);
}

line_counts render_lines(const tokenizer* words, const request_rules& rules, std::istream& in,
                         std::ostream& out, std::ostream& errors) {
  line_counts counts;
  std::string line;
  engine::chat_json_limits limits;
  limits.repeated = engine::repeated_keys::keep_last;
  for (std::uint64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    result<json> row = engine::parse_chat_json(line, limits);
    if (!row.ok() || !row->is_object()) {
      ++counts.failed;
      errors << "dilaunch codec render: line " << number << ": "
             << (row.ok() ? "expected an object" : row.error().what) << '\n';
      continue;
    }
    json rendered = render_row(*row, words, rules);
    (*row)["result"] = std::move(rendered);
    ++counts.done;
    out << row->dump() << '\n';
  }
  out.flush();
  return counts;
}

void add_codec_render_command(CLI::App& app, int& exit_code) {
  const auto known = app.get_subcommands([](CLI::App* sub) { return sub->get_name() == "codec"; });
  CLI::App* codec = known.empty() ? nullptr : known.front();
  if (codec == nullptr) {
    codec =
        app.add_subcommand("codec", "Requests to prompts and outputs to answers, as JSON lines");
    codec->require_subcommand(1);
  }
  const auto options = std::make_shared<render_options>();
  CLI::App* const render = codec->add_subcommand(
      "render", "Request bodies to prompts: lines {\"family\", \"request\"} get a \"result\"");
  render->add_option("--tokenizer", options->files.tokenizer,
                     "tokenizer.json, or the folder of a model; without it no ids are printed");
  add_line_files(*render, options->files);
  render->add_flag("--strict-reference", options->strict_reference,
                   "exactly the reference encoding (doc/serving.md, deviations)");
  render->callback([options, &exit_code] {
    exit_code = run_lines(options->files, "codec render",
                          [&](const tokenizer* words, std::istream& in, std::ostream& out) {
                            return render_lines(words, codec_rules(options->strict_reference), in,
                                                out, std::cerr);
                          });
  });
}

} // namespace di::launch
