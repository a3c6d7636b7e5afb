// SPDX-License-Identifier: Apache-2.0
// Showing, cancelling and forgetting of responses that are kept.
#include "launch/serve/routes_responses.hpp"

#include "launch/json_text.hpp"
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

/// Answers with the response as it is shown; a large one is put together aside.
void answer_shown(service& home, const call_ptr& c, found_response f) {
  const auto bytes = found_bytes(f.record);
  make_aside<text_or_error>(
      home, c, bytes, [&home, f = std::move(f)] { return json_text(shown(home, f)); },
      [&home, c](text_or_error made) { answer_made(home, *c, std::move(made)); });
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
    answer_shown(home, from, std::move(f));
  });
}

void drop(service& home, call_ptr c) {
  find_response(home, std::move(c), [&home](call_ptr from, const found_response& f) {
    home.desk().forget(f.record.request, [&home, from,
                                          id = f.id](result<proto::request_forgotten> gone) {
      from->client->post([&home, from, id, gone = std::move(gone)] {
        if (!gone)
          return home.refuse(*from, from_cluster(gone.error().code, gone.error().what, 0));
        home.answer(*from, 200,
                    json_text(json{{"id", id.text()}, {"object", "response"}, {"deleted", true}}));
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
          answer_shown(home, c, std::move(f));
        });
  });
}

void cancel(service& home, call_ptr c) {
  find_response(home, std::move(c), [&home](call_ptr from, found_response f) {
    if (!f.kept.background)
      return home.refuse(
          *from, make_error(400, "only responses created with background=true can be cancelled; "
                                 "to cancel another, close its connection"));
    if (f.record.closed) // a second time: as it ended
      return answer_shown(home, from, std::move(f));
    home.desk().stop(f.record.request);
    show_ended(home, std::move(from), std::move(f),
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
                  home.answer(*from, 200, json_text(std::get<json>(made)));
                });
}

/// [tokens] that a request would bring, without computing it.
void count_input(service& home, call_ptr c) {
  answer_count(home, c, api::responses, json{{"object", "response.input_tokens"}});
}

} // namespace

void show_response(service& home, const call_ptr& c, const public_id& id) {
  look_up(home, c, id, [&home, c, id](std::variant<found_request, api_error> found) {
    if (const auto* no = std::get_if<api_error>(&found))
      return home.refuse(*c, *no);
    auto& [note, record] = std::get<found_request>(found);
    auto kept = stored_response::from_json(note.extra).value_or(stored_response{});
    answer_shown(home, c, {id, std::move(note), std::move(kept), std::move(record)});
  });
}

void add_responses_routes(router& to, service& home) {
  const route_options options{dialect::openai, true, served_route::responses};
  const auto add = [&](const char* method, const std::string& tail,
                       void (*handle)(service&, call_ptr)) {
    for (const std::string_view root : {"/v1/responses", "/responses"})
      to.add(
          method, std::string{root} + tail,
          [&home, handle](call_ptr c) { handle(home, std::move(c)); }, options);
  };
  add("POST", "", create_response);
  add("POST", "/input_tokens", count_input);
  add("GET", "/{id}", show);
  add("DELETE", "/{id}", drop);
  add("POST", "/{id}/cancel", cancel);
  add("GET", "/{id}/input_items", list_input);
}

} // namespace di::serve
