// SPDX-License-Identifier: Apache-2.0
// How the gateway and its cluster stand, for probes and people.
#include "engine/chat/json.hpp"
#include "launch/serve/routes.hpp"

#include <utility>

namespace di::serve {
namespace {

using engine::json;

json state_of(const health_state& h, bool well) {
  json j;
  j["status"] = well ? "ok" : "unavailable";
  j["phase"] = h.phase;
  j["ready"] = h.ready;
  j["started"] = h.started;
  j["draining"] = h.draining;
  j["progress"] = h.progress;
  j["ranks"] = h.ranks;
  j["ranks_ready"] = h.ranks_ready;
  if (!h.why.empty())
    j["why"] = h.why;
  return j;
}

void tell(service& home, call& c, const health_state& h, bool well) {
  http::header_list extra{{"cache-control", "no-store"}};
  if (!well)
    extra.add("retry-after", "1");
  home.answer(c, well ? 200 : 503, state_of(h, well).dump(), std::move(extra));
}

void version(service& home, call& c) {
  const auto s = home.settings();
  json j;
  j["version"] = s->version;
  j["model"] = s->model.name;
  j["contract"] = home.health().contract;
  j["system_fingerprint"] = home.fingerprint();
  j["gateway"] = s->gateway;
  home.answer(c, 200, j.dump());
}

/// For those who ask for SGLang's names: what a client may know of this server, no paths.
void server_info(service& home, call& c) {
  const auto s = home.settings();
  const auto h = home.health();
  json j = state_of(h, h.ready);
  j["version"] = s->version;
  j["served_model_name"] = s->model.name;
  j["context_length"] = s->model.context_tokens;
  j["vocab_size"] = s->model.vocabulary;
  j["contract"] = h.contract;
  j["gateway"] = s->gateway;
  j["max_running_requests"] = s->limits.requests;
  j["server_load"] = home.doors().open();
  home.answer(c, 200, j.dump());
}

void model_info(service& home, call& c) {
  const auto s = home.settings();
  json j;
  j["model_path"] = s->model.name;
  j["tokenizer_path"] = s->model.name;
  j["served_model_name"] = s->model.name;
  j["is_generation"] = true;
  j["max_model_len"] = s->model.context_tokens;
  j["vocab_size"] = s->model.vocabulary;
  home.answer(c, 200, j.dump());
}

} // namespace

void add_health_routes(router& to, service& home) {
  const route_options open{dialect::openai, false, served_route::health};
  for (const auto* path : {"/live", "/livez", "/liveness", "/ping"}) // this thread answers: alive
    to.add(
        "GET", path, [&home](call_ptr c) { tell(home, *c, home.health(), true); }, open);
  for (const auto* path :
       {"/health", "/healthz", "/health_generate", "/ready", "/readyz", "/readiness"})
    to.add(
        "GET", path,
        [&home](call_ptr c) {
          const auto h = home.health();
          tell(home, *c, h, h.ready);
        },
        open);
  for (const auto* path : {"/startup", "/startupz"})
    to.add(
        "GET", path,
        [&home](call_ptr c) {
          const auto h = home.health();
          tell(home, *c, h, h.started);
        },
        open);
  to.add(
      "GET", "/version", [&home](call_ptr c) { version(home, *c); }, open);
  to.add(
      "GET", "/load",
      [&home](call_ptr c) {
        home.answer(*c, 200, json{{"server_load", home.doors().open()}}.dump());
      },
      open);
  to.add(
      "GET", "/loads",
      [&home](call_ptr c) {
        const auto h = home.health();
        json j{{"server_load", home.doors().open()}, {"ranks", h.ranks}};
        j["ranks_ready"] = h.ranks_ready;
        home.answer(*c, 200, j.dump());
      },
      open);
  const route_options keyed{dialect::openai, true, served_route::models};
  for (const auto* path : {"/server_info", "/get_server_info"})
    to.add(
        "GET", path, [&home](call_ptr c) { server_info(home, *c); }, keyed);
  to.add(
      "GET", "/get_model_info", [&home](call_ptr c) { model_info(home, *c); }, keyed);
  to.add("GET", "/metrics",
         [&home](call_ptr c) {
           if (home.metrics() == nullptr)
             return home.refuse(*c, make_error(404, "this gateway counts nothing"));
           home.answer(*c, 200, home.metrics()->text(),
                       {{"content-type", serving_metrics::content_type}});
         },
         {dialect::openai, true, served_route::metrics});
}

void add_public_routes(router& to, service& home) {
  add_chat_routes(to, home);
  add_messages_routes(to, home);
  add_completions_routes(to, home);
  add_model_routes(to, home);
  add_health_routes(to, home);
}

} // namespace di::serve
