// SPDX-License-Identifier: Apache-2.0
// What is served: the list of models, and the tokenizer for clients that count for themselves.
#include "launch/serve/generations.hpp"
#include "launch/serve/routes.hpp"
#include "messaging/base/utf8.hpp"

#include <fmt/chrono.h>

#include <ctime>
#include <utility>

namespace di::serve {
namespace {

using engine::api;
using engine::json;

constexpr std::size_t detokenize_max = 4'000'000; ///< [tokens]

// The fields that OpenAI's, vLLM's and Anthropic's clients read, in one object.
json model_object(const served_model& m, const std::string& name) {
  json j;
  j["id"] = name;
  j["object"] = "model";
  j["created"] = m.created;
  j["owned_by"] = "di";
  j["root"] = m.name;
  j["parent"] = nullptr;
  j["max_model_len"] = m.context_tokens;
  j["type"] = "model";
  j["display_name"] = name;
  j["created_at"] =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(m.created)));
  return j;
}

void list_models(service& home, call_ptr c) {
  const auto s = home.settings();
  json all = json::array({model_object(s->model, s->model.name)});
  for (const auto& alias : s->model.aliases)
    if (!alias.ends_with('*') && alias != s->model.name)
      all.push_back(model_object(s->model, alias));
  json j;
  j["object"] = "list";
  j["first_id"] = all.front()["id"];
  j["last_id"] = all.back()["id"];
  j["has_more"] = false;
  j["data"] = std::move(all);
  home.answer(*c, 200, j.dump());
}

void one_model(service& home, call_ptr c) {
  const auto name = utf8_lossy(c->captures.at(0));
  const bool anthropic = c->asked.headers.has("anthropic-version");
  if (!home.model_of(name, anthropic)) {
    auto e = make_error(404, "model_not_found",
                        fmt::format("the model `{}` is not served here", name.substr(0, 200)));
    e.param = "model";
    return home.refuse(*c, e);
  }
  home.answer(*c, 200, model_object(home.settings()->model, name).dump());
}

/// Token ids of a body with `messages` (as a chat would see them) or with `prompt` (as a completion
/// would; plain if add_special_tokens is false).
std::variant<std::vector<token_id>, api_error> tokens_of(const service& home, json& body) {
  const bool chat = body.contains("messages");
  if (!chat && body.contains("add_special_tokens") && body["add_special_tokens"] == false
      && body.contains("prompt") && body["prompt"].is_string()) {
    auto ids = home.words()->encode(body["prompt"].get_ref<const std::string&>(),
                                    engine::encode_mode::plain);
    if (!ids)
      return from_cluster(ids.error().code, ids.error().what, 0);
    return std::move(*ids);
  }
  if (!body.contains("model"))
    body["model"] = home.settings()->model.name;
  for (const auto* own : {"add_special_tokens", "return_token_strs", "add_generation_prompt",
                          "continue_final_message", "stream"})
    body.erase(own);
  auto prepared = engine::prepare_request(chat ? api::chat : api::completions, body, home.rules());
  if (const auto* no = std::get_if<engine::request_error>(&prepared))
    return to_api_error(*no);
  auto& r = std::get<engine::prepared_request>(prepared);
  if (!r.prompt_ids.empty())
    return std::move(r.prompt_ids);
  auto ids = engine::encode_segments(r.segments, *home.words());
  if (!ids)
    return from_cluster(ec::internal, ids.error().what, 0);
  return std::move(*ids);
}

text_or_error tokenized(const service& home, const call& c) {
  auto body = read_body(home, c);
  if (const auto* no = std::get_if<api_error>(&body))
    return *no;
  auto& asked = std::get<json>(body);
  const bool strings = asked.contains("return_token_strs") && asked["return_token_strs"] == true;
  const auto ids = tokens_of(home, asked);
  if (const auto* no = std::get_if<api_error>(&ids))
    return *no;
  const auto& list = std::get<std::vector<token_id>>(ids);
  json j;
  j["count"] = list.size();
  j["max_model_len"] = home.settings()->model.context_tokens;
  j["tokens"] = list;
  j["token_strs"] = nullptr;
  if (strings) {
    j["token_strs"] = json::array();
    for (const auto id : list)
      j["token_strs"].push_back(utf8_lossy(home.words()->token_bytes(id)));
  }
  return j.dump();
}

text_or_error detokenized(const service& home, const call& c) {
  auto body = read_body(home, c);
  if (const auto* no = std::get_if<api_error>(&body))
    return *no;
  const auto& asked = std::get<json>(body);
  const auto at = asked.find("tokens");
  if (at == asked.end() || !at->is_array() || at->size() > detokenize_max)
    return bad_field("tokens", "tokens is a list of token ids");
  std::vector<token_id> ids;
  ids.reserve(at->size());
  for (const auto& id : *at) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0
        || id.get<std::int64_t>() >= static_cast<std::int64_t>(home.words()->size()))
      return bad_field("tokens", "tokens is a list of token ids of this model");
    ids.push_back(id.get<token_id>());
  }
  return json{{"prompt", home.words()->decode(ids)}}.dump();
}

void answer_aside(service& home, const call_ptr& c,
                  text_or_error (*make)(const service&, const call&)) {
  make_aside<text_or_error>(
      home, c, c->asked.body.size(), [&home, c, make] { return make(home, *c); },
      [&home, c](text_or_error made) { answer_made(home, *c, std::move(made)); });
}

} // namespace

void add_model_routes(router& to, service& home) {
  const route_options models{dialect::openai, true, served_route::models};
  for (const std::string base : {"", "/v1", "/anthropic/v1"}) {
    to.add(
        "GET", base + "/models", [&home](call_ptr c) { list_models(home, std::move(c)); }, models);
    to.add(
        "GET", base + "/models/{id...}", [&home](call_ptr c) { one_model(home, std::move(c)); },
        models);
  }
  const route_options words{dialect::openai, true, served_route::tokenize};
  for (const std::string base : {"", "/v1"}) {
    to.add(
        "POST", base + "/tokenize", [&home](call_ptr c) { answer_aside(home, c, tokenized); },
        words);
    to.add(
        "POST", base + "/detokenize", [&home](call_ptr c) { answer_aside(home, c, detokenized); },
        words);
  }
}

} // namespace di::serve
