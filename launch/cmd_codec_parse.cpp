// SPDX-License-Identifier: Apache-2.0
#include "launch/cmd_codec_parse.hpp"

#include "engine/chat/prepare.hpp"
#include "launch/cmd_codec.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <iostream>
#include <limits>
#include <memory>
#include <optional>

namespace di::launch {
namespace {

using engine::answer_end, engine::answer_event, engine::answer_events, engine::answer_recipe,
    engine::answer_stream, engine::api, engine::json, engine::tokenizer;

// --- one row to a recipe ------------------------------------------------------------------------

result<api> family_of(const json& row) {
  const auto family = row.find("family");
  if (family == row.end() || *family == "chat")
    return api::chat;
  if (*family == "responses")
    return api::responses;
  if (*family == "messages")
    return api::messages;
  if (*family == "completions")
    return api::completions;
  return fail(ec::bad_format, "family: expected chat, responses, messages or completions");
}

json or_default(const json& object, const char* key, json otherwise) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() ? *found : std::move(otherwise);
}

// Fields of a request that Responses repeats, those that bear on the answer.
json repeated_fields(const json& request, std::int32_t top_logprobs) {
  const json reasoning = or_default(request, "reasoning", json::object());
  const json text = or_default(request, "text", json::object());
  json tools = json::array();
  for (const json& tool : or_default(request, "tools", json::array()))
    if (tool.is_object())
      tools.push_back({{"type", or_default(tool, "type", "function")},
                       {"name", or_default(tool, "name", nullptr)},
                       {"description", or_default(tool, "description", nullptr)},
                       {"parameters", or_default(tool, "parameters", nullptr)},
                       {"strict", or_default(tool, "strict", nullptr)}});
  return json{{"reasoning",
               {{"effort", or_default(reasoning, "effort", nullptr)},
                {"summary", or_default(reasoning, "summary", nullptr)}}},
              {"text",
               {{"format", or_default(text, "format", json{{"type", "text"}})},
                {"verbosity", or_default(text, "verbosity", nullptr)}}},
              {"tool_choice", or_default(request, "tool_choice", "auto")},
              {"tools", std::move(tools)},
              {"top_logprobs", std::max(top_logprobs, 0)}};
}

result<answer_recipe> recipe_of(const json& row, const parse_settings& settings) {
  DI_TRY(const api family, family_of(row));
  const auto body = row.find("request");
  if (body == row.end() || !body->is_object())
    return fail(ec::bad_format, "request: expected an object");
  const auto outcome =
      engine::prepare_request(family, *body, codec_rules(settings.strict_reference));
  if (const auto* const error = std::get_if<engine::request_error>(&outcome))
    return fail(ec::bad_argument, "request: {}", error->message);
  const auto& request = std::get<engine::prepared_request>(outcome);
  answer_recipe out;
  out.protocol = family;
  out.id = "id-1";
  out.model = "model-x";
  if (!or_default(row, "ready", 0).is_null()) // the backend names itself when it is ready
    out.fingerprint = "fp-1";
  out.parsing = request.parsing;
  out.parsing.strict = settings.strict_reference;
  if (out.parsing.stop.empty())
    out.parsing.stop = request.sampling.stop;
  out.include_usage = request.include_usage;
  out.top_logprobs = request.sampling.logprobs;
  out.seed = request.sampling.seed;
  out.custom_tools = request.custom_tools;
  if (family == api::responses)
    out.echo = repeated_fields(*body, out.top_logprobs);
  return out;
}

// --- chunks -------------------------------------------------------------------------------------

result<std::vector<token_id>> ids_of(const json& list) {
  std::vector<token_id> out;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<token_id>::max())
      return fail(ec::bad_format, "chunk: expected a token id, found {}", id.type_name());
    out.push_back(id.get<token_id>());
  }
  return out;
}

// [logprob, [[id, logprob], ...]] for each token.
result<std::vector<proto::position_logprobs>> logprobs_of(const json& list) {
  std::vector<proto::position_logprobs> out;
  const auto is_pair = [](const json& pair) {
    return pair.is_array() && pair.size() == 2 && pair[1].is_number();
  };
  for (const json& entry : list) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number() || !entry[1].is_array())
      return fail(ec::bad_format, "logprobs: expected [logprob, [[id, logprob], ...]]");
    proto::position_logprobs& p = out.emplace_back();
    p.logprob = entry[0].get<double>();
    for (const json& top : entry[1]) {
      if (!is_pair(top) || !top[0].is_number_integer())
        return fail(ec::bad_format, "logprobs: expected [id, logprob]");
      p.top_tokens.push_back(top[0].get<token_id>());
      p.top_logprobs.push_back(top[1].get<double>());
    }
  }
  return out;
}

result<answer_events> push_chunk(answer_stream& stream, const json& chunk, const tokenizer* words) {
  if (chunk.is_string())
    return stream.push_text(chunk.get_ref<const std::string&>());
  const json ids = chunk.is_object() ? or_default(chunk, "ids", nullptr) : chunk;
  if (!ids.is_array())
    return fail(ec::bad_format, "chunk: expected a text, a list of ids or {{ids, logprobs}}");
  if (words == nullptr)
    return fail(ec::bad_argument, "chunk of ids: --tokenizer is needed");
  DI_TRY(const std::vector<token_id> tokens, ids_of(ids));
  std::vector<proto::position_logprobs> logprobs;
  if (chunk.is_object()) {
    DI_TRY(logprobs, logprobs_of(or_default(chunk, "logprobs", json::array())));
    if (!logprobs.empty() && logprobs.size() != tokens.size())
      return fail(ec::bad_format, "chunk: {} ids but {} logprobs", tokens.size(), logprobs.size());
  }
  return stream.push(tokens, logprobs);
}

// --- what comes out -----------------------------------------------------------------------------

// Replaces the random part of `call_NN_...`, wherever an id stands.
void shorten_call_ids(json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() == 32 && text.starts_with("call_") && text[7] == '_')
      value = text.substr(0, 8) + '#';
    return;
  }
  if (value.is_structured())
    for (json& inner : value)
      shorten_call_ids(inner);
}

json stored_event(json data) {
  const auto response = data.find("response");
  if (response != data.end()) {
    const json type = data["type"];
    const bool last = type == "response.completed" || type == "response.incomplete";
    json cut = json::object();
    for (const char* key : {"id", "status", "output", "usage", "incomplete_details", "error"})
      if (!last || std::string_view{key} != "output")
        cut[key] = (*response)[key];
    *response = std::move(cut);
  }
  shorten_call_ids(data);
  return data;
}

json shown(const answer_events& events, const parse_settings& settings) {
  json out = json::array();
  for (const answer_event& e : events)
    out.push_back(settings.stored_form ? stored_event(e.data) : e.data);
  return out;
}

std::optional<answer_end> end_of(const json& row) {
  const json finish = or_default(row, "finish", "Stop");
  if (finish.is_null())
    return {};
  return finish == "Length"          ? answer_end::length
         : finish == "ContentFilter" ? answer_end::content_filter
                                     : answer_end::stop;
}

// Sets `events` of the run. @return the whole answer
result<json> run_chunks(json& run, const json& row, const answer_recipe& recipe,
                        const tokenizer* words, const parse_settings& settings) {
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), words};
  json events = json::array();
  const json ready = or_default(row, "ready", json::array({0U, 0U}));
  if (ready.is_array() && ready.size() == 2 && ready[0].is_number_unsigned()
      && ready[1].is_number_unsigned())
    events.push_back(shown(
        stream.ready(ready[0].get<std::uint64_t>(), ready[1].get<std::uint64_t>()), settings));
  else if (!ready.is_null())
    return fail(ec::bad_format, "ready: expected [prompt tokens, cached tokens] or null");
  for (const json& chunk : or_default(run, "chunks", json::array())) {
    if (stream.ended())
      break;
    DI_TRY(const answer_events some, push_chunk(stream, chunk, words));
    events.push_back(shown(some, settings));
  }
  const std::optional<answer_end> why = end_of(row);
  if (why && !stream.ended())
    events.push_back(shown(stream.finish(*why), settings));
  answer_events last = stream.close();
  const answer_stream* const one = &stream;
  for (answer_event& e : engine::last_events(recipe, {&one, 1}))
    last.push_back(std::move(e));
  events.push_back(shown(last, settings));
  run["events"] = std::move(events);
  json final = stream.final();
  if (settings.stored_form)
    shorten_call_ids(final);
  return final;
}

// What several runs have in common.
void compare_runs(json& row, const std::vector<std::pair<std::string, json>>& finals) {
  const auto without_usage = [](json final) {
    final.erase("usage");
    return final;
  };
  bool same = true;
  json all = json::object();
  json usage = json::object();
  for (const auto& [split, final] : finals) {
    same = same && without_usage(final) == without_usage(finals.front().second);
    all[split] = final;
    usage[split] = or_default(final, "usage", nullptr);
  }
  row["final_same_for_all_splits"] = same;
  if (same)
    row.erase("finals");
  else
    row["finals"] = std::move(all);
  row["usage_by_split"] = std::move(usage);
}

struct command_options {
  line_files files;
  parse_settings settings;
};

} // namespace

result<json> parse_row(json row, const tokenizer* words, const parse_settings& settings) {
  DI_TRY(const answer_recipe recipe, recipe_of(row, settings));
  if (!row.contains("runs")) {
    json run = json::object();
    if (row.contains("ids"))
      run["chunks"] = json::array({row["ids"]});
    else
      run["chunks"] = json::array({or_default(row, "text", "")});
    DI_TRY(row["final"], run_chunks(run, row, recipe, words, settings));
    row["events"] = run["events"];
    return row;
  }
  json& runs = row["runs"];
  if (!runs.is_array())
    return fail(ec::bad_format, "runs: expected a list");
  std::vector<std::pair<std::string, json>> finals;
  for (json& run : runs) {
    const json split = or_default(run, "split", "");
    if (!run.is_object() || !split.is_string())
      return fail(ec::bad_format, "runs: expected objects with split and chunks");
    DI_TRY(json final, run_chunks(run, row, recipe, words, settings));
    finals.emplace_back(split.get<std::string>(), std::move(final));
  }
  if (!finals.empty())
    row["final"] = finals.front().second;
  if (finals.size() > 1)
    compare_runs(row, finals);
  return row;
}

line_counts parse_lines(const tokenizer* words, const parse_settings& settings, std::istream& in,
                        std::ostream& out, std::ostream& errors) {
  line_counts counts;
  std::string line;
  for (std::uint64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    const result<json> answer = [&]() -> result<json> {
      DI_TRY(json row, engine::parse_chat_json(line, {}));
      if (!row.is_object())
        return fail(ec::bad_format, "expected an object");
      return parse_row(std::move(row), words, settings);
    }();
    if (!answer.ok()) {
      ++counts.failed;
      errors << "dilaunch codec parse: line " << number << ": " << answer.error().what << '\n';
      continue;
    }
    ++counts.done;
    out << answer->dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
  }
  out.flush();
  return counts;
}

void add_codec_parse_command(CLI::App& app, int& exit_code) {
  const auto known = app.get_subcommands([](CLI::App* sub) { return sub->get_name() == "codec"; });
  CLI::App* codec = known.empty() ? nullptr : known.front();
  if (codec == nullptr) {
    codec =
        app.add_subcommand("codec", "Requests to prompts and outputs to answers, as JSON lines");
    codec->require_subcommand(1);
  }
  const auto options = std::make_shared<command_options>();
  CLI::App* const parse = codec->add_subcommand(
      "parse", "Model outputs to events and answers: lines {\"family\", \"request\", \"text\"} get "
               "\"events\" and \"final\"");
  parse->add_option("--tokenizer", options->files.tokenizer,
                    "tokenizer.json, or the folder of a model; needed for chunks of ids");
  add_line_files(*parse, options->files);
  parse->add_flag("--strict-reference", options->settings.strict_reference,
                  "exactly the reference parser (doc/serving.md, deviations)");
  parse->add_flag("--stored-form", options->settings.stored_form,
                  "as stored vectors: call ids without their random part, responses cut");
  parse->callback([options, &exit_code] {
    exit_code = run_lines(options->files, "codec parse",
                          [&](const tokenizer* words, std::istream& in, std::ostream& out) {
                            return parse_lines(words, options->settings, in, out, std::cerr);
                          });
  });
}

} // namespace di::launch
