// SPDX-License-Identifier: Apache-2.0
// Making, showing, cancelling and forgetting of responses.
#include "launch/serve/routes_responses.hpp"

#include "launch/serve/generations.hpp"
#include "launch/serve/response_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

namespace di::serve {
namespace {

using engine::api;
using engine::json;

/// [bytes] of what a note holds besides the recipe: JOURNAL takes 1 MiB in all.
constexpr std::size_t kept_bytes_max = 900u << 10;
/// [ms] that a background response may take where requests have no bound.
constexpr std::uint64_t background_ms = 3'600'000;

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

// --- making -----------------------------------------------------------------------------------

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

void show_found(service& home, const call_ptr& c, const public_id& id);

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
        return show_found(home, m->c, id);
      home.answer(*m->c, 200, dump(queued_response(recipe)));
    });
  });
}

/// What the note keeps; or that it would be too much, and then nothing but the answer is.
void keep(const service& home, making& m, generation& g) {
  m.kept.background = m.how.background;
  m.kept.previous = m.how.previous;
  g.extra = m.kept.to_json();
  const auto bytes = dump(g.extra).size() + dump(g.recipe.echo).size();
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
  if (dump(g.recipe.echo).size() > kept_bytes_max)
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
  if (dump(g.recipe.echo).size() > kept_bytes_max)
    return make_error(400, "fields that a response repeats are too large");
  if (m.how.background && dump(g.extra).size() > kept_bytes_max)
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

void generate(service& home, const making_ptr& m) {
  make_aside<outcome>(
      home, m->c, [&home, m] { return prepare(home, *m); },
      [&home, m](outcome made) { begin(home, m, std::move(made)); });
}

api_error no_previous(const std::string& id) {
  auto e = make_error(400, "previous_response_not_found",
                      fmt::format("Previous response with id '{}' not found.", id.substr(0, 100)));
  e.param = "previous_response_id";
  return e;
}

/// Puts the conversation before it into place, then generates.
void continue_from(service& home, const making_ptr& m,
                   std::variant<found_request, api_error> found) {
  if (const auto* no = std::get_if<api_error>(&found))
    return home.refuse(*m->c, no->status == 404 ? no_previous(m->how.previous) : *no);
  auto& [note, record] = std::get<found_request>(found);
  const auto before = stored_response::from_json(note.extra);
  if (!before || !before->store)
    return home.refuse(*m->c, no_previous(m->how.previous));
  if (!record.closed)
    return home.refuse(
        *m->c, bad_field("previous_response_id", "the previous response is not complete yet"));
  const public_id id{api::responses, record.request, note.secret};
  m->kept.items = conversation_after(*before, recorded_answer(home, note, id, record));
  m->earlier = m->kept.items.size();
  generate(home, m);
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

void create(service& home, call_ptr c) {
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
      home, m->c, [&home, m] { return read_body(home, *m->c); },
      [&home, m](body_or_error body) { take_body(home, m, std::move(body)); });
}

// --- what is kept -----------------------------------------------------------------------------

api_error no_response(std::string_view id) {
  auto e = make_error(404, fmt::format("Response with id '{}' not found.", id.substr(0, 100)));
  e.param = "response_id";
  return e;
}

/// A stored response of this client; else it is refused.
struct found_response {
  public_id id;
  session_note note;
  stored_response kept;
  proto::recorded_request record;
};
using found_fn = std::function<void(call_ptr, found_response)>;

void find_response(service& home, call_ptr c, found_fn then) {
  const auto id = public_id::parse(c->captures.at(0));
  if (!id || id->protocol != api::responses)
    return home.refuse(*c, no_response(c->captures.at(0)));
  look_up(home, c, *id,
          [&home, c, id, then = std::move(then)](std::variant<found_request, api_error> found) {
            if (const auto* no = std::get_if<api_error>(&found))
              return home.refuse(*c, no->status == 404 ? no_response(c->captures.at(0)) : *no);
            auto& [note, record] = std::get<found_request>(found);
            auto kept = stored_response::from_json(note.extra);
            if (!kept || !kept->store)
              return home.refuse(*c, no_response(c->captures.at(0)));
            c->record.public_id = id->text();
            c->record.request = record.request;
            then(c, {*id, std::move(note), std::move(*kept), std::move(record)});
          });
}

json shown(const service& home, const found_response& f) {
  json body = recorded_answer(home, f.note, f.id, f.record);
  const bool begun = std::any_of(f.record.choices.begin(), f.record.choices.end(),
                                 [](const auto& choice) { return !choice.tokens.empty(); });
  if (!f.record.closed && f.kept.background && !begun)
    body["status"] = "queued";
  return body;
}

void show_found(service& home, const call_ptr& c, const public_id& id) {
  look_up(home, c, id, [&home, c, id](std::variant<found_request, api_error> found) {
    if (const auto* no = std::get_if<api_error>(&found))
      return home.refuse(*c, *no);
    auto& [note, record] = std::get<found_request>(found);
    auto kept = stored_response::from_json(note.extra).value_or(stored_response{});
    home.answer(*c, 200,
                dump(shown(home, {id, std::move(note), std::move(kept), std::move(record)})));
  });
}

/// The number of the last event that a client has, from the query or the header.
std::variant<std::uint64_t, api_error> events_seen(const call& c, const public_id& id) {
  if (const auto last = c.asked.headers.get("last-event-id"); !last.empty()) {
    const auto event = event_id::parse(last);
    if (!event || !(event->answer == id))
      return bad_field("last-event-id", "the Last-Event-ID is none of this response");
    return event->seen.empty() ? std::uint64_t{0} : event->seen.front();
  }
  const auto after = c.asked.parameter("starting_after");
  if (!after)
    return std::uint64_t{0};
  std::uint64_t number = 0;
  const char* const end = after->data() + after->size();
  const auto [at, wrong] = std::from_chars(after->data(), end, number);
  if (after->empty() || wrong != std::errc{} || at != end || number == UINT64_MAX)
    return bad_field("starting_after", "starting_after is the sequence_number of an event");
  return number + 1;
}

void stream_again(service& home, call_ptr c, const public_id& id) {
  auto seen = events_seen(*c, id);
  if (const auto* no = std::get_if<api_error>(&seen))
    return home.refuse(*c, *no);
  auto place = admit(home, *c, id.request);
  if (const auto* no = std::get_if<api_error>(&place))
    return home.refuse(*c, *no);
  session::resume(home, std::move(c), {id, {std::get<std::uint64_t>(seen)}, 0, true},
                  std::move(std::get<admission::ticket>(place)));
}

void show(service& home, call_ptr c) {
  const auto stream = c->asked.parameter("stream");
  if (stream && *stream != "true" && *stream != "false")
    return home.refuse(*c, bad_field("stream", "stream is true or false"));
  const bool streamed = stream == "true" || !c->asked.headers.get("last-event-id").empty();
  if (!streamed && c->asked.parameter("starting_after"))
    return home.refuse(*c, bad_field("starting_after", "starting_after needs stream=true"));
  find_response(home, std::move(c), [&home, streamed](call_ptr from, found_response f) {
    if (streamed)
      return stream_again(home, std::move(from), f.id);
    home.answer(*from, 200, dump(shown(home, f)));
  });
}

void drop(service& home, call_ptr c) {
  find_response(home, std::move(c), [&home](call_ptr from, const found_response& f) {
    home.desk().forget(
        f.record.request, [&home, from, id = f.id](result<proto::request_forgotten> gone) {
          from->client->post([&home, from, id, gone = std::move(gone)] {
            if (!gone)
              return home.refuse(*from, from_cluster(gone.error().code, gone.error().what, 0));
            home.answer(*from, 200,
                        dump({{"id", id.text()}, {"object", "response"}, {"deleted", true}}));
          });
        });
  });
}

/// Shows a response once JOURNAL has written down that it ended; if that takes too long or JOURNAL
/// is away, as it was known before, and ended: what was asked of it is repeated until it is done.
void show_ended(service& home, call_ptr c, found_response f,
                std::chrono::steady_clock::time_point until) {
  const auto request = f.record.request;
  home.desk().get(request, [&home, c = std::move(c), f = std::move(f),
                            until](result<proto::recorded_request> now) mutable {
    auto* const client = c->client.get();
    client->post(
        [&home, c = std::move(c), f = std::move(f), until, now = std::move(now)]() mutable {
          const bool known = now.ok() && now->known;
          if (known)
            f.record = std::move(*now);
          if (known && !f.record.closed && std::chrono::steady_clock::now() < until)
            return show_ended(home, std::move(c), std::move(f), until);
          f.record.closed = true;
          home.answer(*c, 200, dump(shown(home, f)));
        });
  });
}

void cancel(service& home, call_ptr c) {
  find_response(home, std::move(c), [&home](call_ptr from, const found_response& f) {
    if (!f.kept.background)
      return home.refuse(
          *from, make_error(400, "only responses created with background=true can be cancelled; "
                                 "to cancel another, close its connection"));
    if (f.record.closed) // a second time: as it ended
      return home.answer(*from, 200, dump(shown(home, f)));
    home.desk().stop(f.record.request);
    show_ended(home, std::move(from), f,
               std::chrono::steady_clock::now() + std::chrono::seconds{2});
  });
}

void list_input(service& home, call_ptr c) {
  auto page = read_page(c->asked.parameter("limit"), c->asked.parameter("order"),
                        c->asked.parameter("after"));
  if (const auto* no = std::get_if<api_error>(&page))
    return home.refuse(*c, *no);
  find_response(home, std::move(c),
                [&home, page = std::get<page_query>(page)](call_ptr from, const found_response& f) {
                  const auto made = page_of(f.kept.items, page);
                  if (const auto* no = std::get_if<api_error>(&made))
                    return home.refuse(*from, *no);
                  home.answer(*from, 200, dump(std::get<json>(made)));
                });
}

/// [tokens] that a request would bring, without computing it.
void count_input(service& home, call_ptr c) {
  answer_count(home, c, api::responses, json{{"object", "response.input_tokens"}});
}

} // namespace

void add_responses_routes(router& to, service& home) {
  const route_options options{dialect::openai, true, served_route::responses};
  const auto add = [&](const char* method, const std::string& tail,
                       void (*handle)(service&, call_ptr)) {
    for (const std::string_view root : {"/v1/responses", "/responses"})
      to.add(
          method, std::string{root} + tail,
          [&home, handle](call_ptr c) { handle(home, std::move(c)); }, options);
  };
  add("POST", "", create);
  add("POST", "/input_tokens", count_input);
  add("GET", "/{id}", show);
  add("DELETE", "/{id}", drop);
  add("POST", "/{id}/cancel", cancel);
  add("GET", "/{id}/input_items", list_input);
}

} // namespace di::serve
