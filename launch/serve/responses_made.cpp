// SPDX-License-Identifier: Apache-2.0
// Making of responses: from a body, and the conversation before it, to the cluster.
#include "launch/json_text.hpp"
#include "launch/serve/generations.hpp"
#include "launch/serve/response_store.hpp"
#include "launch/serve/routes_responses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace di::serve {
namespace {

using engine::api;
using engine::json;

/// [bytes] of what a note holds besides the recipe: JOURNAL takes 1 MiB in all.
constexpr std::size_t kept_bytes_max = 900u << 10;
/// [ms] that a background response may take where requests have no bound.
constexpr std::uint64_t background_ms = 3'600'000;

/// A response on its way from a body to the cluster.
struct making {
  call_ptr c;
  admission::ticket place;
  json body;
  keeping how;
  stored_response kept;
  std::size_t earlier = 0; ///< [items] of responses before it
};
using making_ptr = std::shared_ptr<making>;

/// The first answer to a background response, which has no token yet.
json queued_response(const engine::answer_recipe& recipe) {
  const engine::answer_stream none{std::make_shared<const engine::answer_recipe>(recipe), nullptr};
  json body = none.final();
  body["status"] = "queued";
  return body;
}

void start_background(service& home, making_ptr m, generation g) {
  auto recipe = g.recipe;
  m->c->record.prompt_tokens = g.prompts.at(0).size();
  m->place.spend(m->c->record.prompt_tokens, home.world().now());
  submit_detached(home, std::move(g), [&home, m, recipe](std::variant<public_id, api_error> told) {
    m->c->client->post([&home, m, recipe, told = std::move(told)]() mutable {
      if (const auto* no = std::get_if<api_error>(&told))
        return home.refuse(*m->c, *no);
      const auto& id = std::get<public_id>(told);
      m->c->record.public_id = recipe.id = id.text();
      m->c->record.request = id.request;
      if (!m->c->asked.headers.get("idempotency-key").empty()) // perhaps begun before
        return show_response(home, m->c, id);
      home.answer(*m->c, 200, json_text(queued_response(recipe)));
    });
  });
}

/// What the note keeps; or that it would be too much, and then nothing but the answer is.
void keep(const service& home, making& m, generation& g) {
  m.kept.background = m.how.background;
  m.kept.previous = m.how.previous;
  g.extra = m.kept.to_json();
  const auto bytes = json_text(g.extra).size() + json_text(g.recipe.echo).size();
  if (m.how.store && bytes > kept_bytes_max && !m.how.background) {
    m.c->warnings.push_back(fmt::format("the response is not stored: its input has {} bytes, at "
                                        "most {} are kept",
                                        bytes, kept_bytes_max));
    m.how.store = false;
    g.recipe.echo["store"] = false;
  }
  m.kept.store = m.how.store;
  if (!m.how.store)
    m.kept.items = json::array();
  g.extra = m.kept.to_json();
  if (json_text(g.recipe.echo).size() > kept_bytes_max)
    for (const char* const large : {"tools", "instructions"})
      g.recipe.echo.erase(large);
  if (m.how.store)
    g.keep_ms = std::max(g.keep_ms, home.settings()->timeouts.stored_ttl_ms);
}

using outcome = std::variant<generation, api_error>;

outcome prepare(const service& home, making& m) {
  call& c = *m.c;
  const json own = input_as_items(m.body.value("input", json{}), home.world().random());
  if (m.earlier > 0 || !m.how.previous.empty()) {
    m.body["input"] = m.kept.items;
    for (const json& item : own)
      m.body["input"].push_back(item);
  }
  append_items(m.kept.items, own, home.world().random());
  for (std::string& unused : unused_fields(m.body))
    c.warnings.push_back(std::move(unused));
  json echo = repeated_fields(m.body, m.how);
  auto custom = custom_tool_names(m.body);
  auto made = make_generation(home, c, api::responses, std::move(m.body));
  if (auto* no = std::get_if<api_error>(&made)) {
    count_from_own_items(*no, m.earlier);
    return made;
  }
  auto& g = std::get<generation>(made);
  g.recipe.echo = std::move(echo);
  g.recipe.custom_tools = std::move(custom);
  keep(home, m, g);
  if (json_text(g.recipe.echo).size() > kept_bytes_max)
    return make_error(400, "fields that a response repeats are too large");
  if (m.how.background && json_text(g.extra).size() > kept_bytes_max)
    return bad_field("input", "the input is too large to be kept, and a background response must "
                              "be");
  return made;
}

void begin(service& home, const making_ptr& m, outcome made) {
  if (const auto* no = std::get_if<api_error>(&made))
    return home.refuse(*m->c, *no);
  auto& g = std::get<generation>(made);
  std::string{}.swap(m->c->asked.body);
  if (m->how.background) {
    const auto most = home.settings()->timeouts.request_ms;
    g.detached_ms = std::max(g.detached_ms, most > 0 ? most : background_ms);
    g.leave_on_disconnect = true;
    if (!g.stream)
      return start_background(home, m, std::move(g));
  }
  session::start(home, m->c, std::move(g), std::move(m->place));
}

api_error no_previous(const std::string& id) {
  auto e = make_error(400, "previous_response_not_found",
                      fmt::format("Previous response with id '{}' not found.", id.substr(0, 100)));
  e.param = "previous_response_id";
  return e;
}

/// Puts the conversation before it into place, then prepares.
outcome prepare_after(const service& home, making& m, const found_request& found) {
  const auto before = stored_response::from_json(found.note.extra);
  if (!before || !before->store)
    return no_previous(m.how.previous);
  if (!found.record.closed)
    return bad_field("previous_response_id", "the previous response is not complete yet");
  const public_id id{api::responses, found.record.request, found.note.secret};
  m.kept.items = conversation_after(*before, recorded_answer(home, found.note, id, found.record));
  m.earlier = m.kept.items.size();
  return prepare(home, m);
}

void generate(service& home, const making_ptr& m) {
  make_aside<outcome>(
      home, m->c, m->c->asked.body.size(), [&home, m] { return prepare(home, *m); },
      [&home, m](outcome made) { begin(home, m, std::move(made)); });
}

void continue_from(service& home, const making_ptr& m,
                   std::variant<found_request, api_error> found) {
  if (const auto* no = std::get_if<api_error>(&found))
    return home.refuse(*m->c, no->status == 404 ? no_previous(m->how.previous) : *no);
  auto& before = std::get<found_request>(found);
  const auto bytes = m->c->asked.body.size() + found_bytes(before.record);
  make_aside<outcome>(
      home, m->c, bytes,
      [&home, m, before = std::move(before)] { return prepare_after(home, *m, before); },
      [&home, m](outcome made) { begin(home, m, std::move(made)); });
}

void take_body(service& home, const making_ptr& m, std::variant<json, api_error> body) {
  if (const auto* no = std::get_if<api_error>(&body))
    return home.refuse(*m->c, *no);
  m->body = std::move(std::get<json>(body));
  auto how = read_keeping(m->body);
  if (const auto* no = std::get_if<api_error>(&how))
    return home.refuse(*m->c, *no);
  m->how = std::get<keeping>(how);
  if (m->how.previous.empty())
    return generate(home, m);
  const auto id = public_id::parse(m->how.previous);
  if (!id || id->protocol != api::responses)
    return home.refuse(*m->c, no_previous(m->how.previous));
  look_up(home, m->c, *id, [&home, m](std::variant<found_request, api_error> found) {
    continue_from(home, m, std::move(found));
  });
}

} // namespace

void create_response(service& home, call_ptr c) {
  if (!c->asked.headers.get("last-event-id").empty()) // comes back to a stream
    return run_generation(home, std::move(c), api::responses, [&home](call& of, json body) {
      return make_generation(home, of, api::responses, std::move(body));
    });
  auto place = admit(home, *c);
  if (const auto* no = std::get_if<api_error>(&place))
    return home.refuse(*c, *no);
  auto m = std::make_shared<making>();
  m->c = std::move(c);
  m->place = std::move(std::get<admission::ticket>(place));
  using body_or_error = std::variant<json, api_error>;
  make_aside<body_or_error>(
      home, m->c, m->c->asked.body.size(), [&home, m] { return read_body(home, *m->c); },
      [&home, m](body_or_error body) { take_body(home, m, std::move(body)); });
}

} // namespace di::serve
