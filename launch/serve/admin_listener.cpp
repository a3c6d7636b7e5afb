// SPDX-License-Identifier: Apache-2.0
// Routes of operators.
#include "launch/serve/admin_listener.hpp"

#include "launch/admin_desk.hpp"
#include "launch/admin_server.hpp"
#include "launch/serve/asker.hpp"
#include "launch/serve/cluster_metrics.hpp"
#include "launch/serve/gateway_pages.hpp"
#include "launch/serve/live_feed.hpp"
#include "launch/serve/operator_door.hpp"
#include "launch/serve/ring_reader.hpp"
#include "launch/serve/ui_page.hpp"
#include "messaging/base/log.hpp"
#include "messaging/http/server.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

namespace di::serve {
namespace {

using nlohmann::json;

constexpr std::size_t body_bytes_max = 64U << 10U;

http::header_list of_type(const char* type) {
  return {
      {"Content-Type", type}, {"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}};
}

void answer_json(http::exchange& to, int status, const std::string& line) {
  auto headers = of_type("application/json");
  if (status == 503)
    headers.add("Retry-After", "1");
  to.respond(status, std::move(headers), line + "\n");
}

void refuse(http::exchange& to, int status, const char* code, std::string_view what) {
  answer_json(to, status, launch::admin_error(code, what));
}

} // namespace

struct admin_listener::impl {
  bus::post_office& office;
  admin_listener_options options;
  std::unique_ptr<cluster_reader> reader;
  std::unique_ptr<asker> questions;
  std::shared_ptr<launch::admin_desk> desk;
  std::unique_ptr<live_feed> feed;
  std::unique_ptr<http::server> server;

  /// Who waits for the desk. Shared with its replies, which may come late.
  struct waiting {
    std::mutex guard;
    std::uint64_t last = 0;
    std::map<std::uint64_t, http::exchange_ptr> by_number;
  };
  std::shared_ptr<waiting> asked = std::make_shared<waiting>();
  static constexpr std::size_t asked_max = 256;

  impl(bus::post_office& o, admin_listener_options opt) : office{o}, options{std::move(opt)} {}

  result<void> start();
  void handle(const http::request& asked_for, const http::exchange_ptr& client);
  void ask_desk(const http::exchange_ptr& client, const std::string& line);
  void order(const http::request& q, const http::exchange_ptr& client, const std::string& what);
  void metrics(const http::exchange_ptr& client);
  void events(const http::request& q, const http::exchange_ptr& client);
  void health(const http::exchange_ptr& client);
};

result<void> admin_listener::impl::start() {
  DI_TRY(reader, cluster_reader::open(office, options.prefix + "/admin_reader"));
  DI_TRY(questions, asker::open(office, options.prefix + "/admin_questions"));
  const auto reply = [w = asked](std::uint64_t number, const std::string& line) {
    http::exchange_ptr client;
    {
      const std::lock_guard lock{w->guard};
      const auto at = w->by_number.find(number);
      if (at == w->by_number.end())
        return;
      client = std::move(at->second);
      w->by_number.erase(at);
    }
    answer_json(*client, status_of(line), line);
  };
  DI_TRY(desk, launch::admin_desk::open(office, reply, options.prefix + "/admin_desk"));
  live_feed_options f;
  f.topology = options.topology;
  f.model = options.model;
  f.period = options.period;
  feed = std::make_unique<live_feed>(*reader, f);
  http::options o;
  o.listening = options.listening;
  o.host = options.host;
  o.port = options.port;
  o.limits.body_bytes = body_bytes_max;
  o.limits.connections = 256;
  http::callbacks c;
  c.handler = [this](const http::request& q, const http::exchange_ptr& client) {
    handle(q, client);
  };
  c.format = [](const http::refusal& r) {
    return http::answer{r.status, of_type("application/json"),
                        launch::admin_error(r.code, r.detail) + "\n"};
  };
  DI_TRY(server, http::server::start(std::move(o), std::move(c)));
  return {};
}

void admin_listener::impl::handle(const http::request& q, const http::exchange_ptr& client) {
  const bool get = q.method == "GET" || q.method == "HEAD";
  const std::string order_path = "/admin/";
  const bool orders = is_order(q.path);
  constexpr std::array<std::string_view, 8> pages{
      "/",           "/ui", "/events", "/health", "/metrics", "/metrics/gateways", "/admin/status",
      "/admin/trace"};
  const bool reads = std::find(pages.begin(), pages.end(), q.path) != pages.end();
  if (!orders && !reads)
    return refuse(*client, 404, "not_found", "no such path; / lists what there is");
  if (orders ? q.method != "POST" : !get) {
    auto headers = of_type("application/json");
    headers.add("Allow", orders ? "POST" : "GET, HEAD");
    client->respond(405, std::move(headers),
                    launch::admin_error("bad_argument", "not with this method") + "\n");
    return;
  }
  if (orders)
    return order(q, client, q.path.substr(order_path.size()));
  if (q.path == "/")
    client->respond(302, {{"Location", "/ui"}}, "");
  else if (q.path == "/ui") {
    auto headers = of_type("text/html; charset=utf-8");
    headers.add("Content-Security-Policy",
                "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                "connect-src 'self'; frame-ancestors 'none'");
    client->respond(200, std::move(headers), std::string{ui_page()});
  } else if (q.path == "/events")
    events(q, client);
  else if (q.path == "/health")
    health(client);
  else if (q.path == "/metrics")
    metrics(client);
  else if (q.path == "/metrics/gateways")
    read_gateways(office, *questions, options.prefix, [client](const std::string& text) {
      client->respond(200, of_type(serving_metrics::content_type), text);
    });
  else if (q.path == "/admin/trace")
    send_rings(office, *questions, options.prefix, client);
  else
    ask_desk(client, R"({"command":"status"})");
}

void admin_listener::impl::ask_desk(const http::exchange_ptr& client, const std::string& line) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock{asked->guard};
    if (asked->by_number.size() < asked_max) {
      number = ++asked->last;
      asked->by_number[number] = client;
    }
  }
  if (number == 0)
    return refuse(*client, 503, "limit_exceeded", "too many questions at a time");
  client->on_gone([w = asked, number](http::gone) { // an order goes on
    const std::lock_guard lock{w->guard};
    w->by_number.erase(number);
  });
  desk->take(number, line);
}

void admin_listener::impl::order(const http::request& q, const http::exchange_ptr& client,
                                 const std::string& what) {
  if (const auto why = foreign(q.headers.get("origin"), q.headers.get("host"), options.host);
      !why.empty())
    return refuse(*client, 403, "refused", why);
  const auto line = order_line(what, q.body, q.parameter("rank"), q.parameter("ranks"));
  if (!line.ok())
    return refuse(*client, 400, "bad_argument", line.error().what);
  log::warn("operator_order", {{"order", *line}, {"peer", q.peer}});
  ask_desk(client, *line);
}

void admin_listener::impl::metrics(const http::exchange_ptr& client) {
  reader->read(false,
               [client, vllm = options.compat_metrics, model = options.model](cluster_reading now) {
                 client->post([client, vllm, model, now = std::move(now)] {
                   metric_page page;
                   fill_cluster(page, now, vllm, model);
                   client->respond(200, of_type(serving_metrics::content_type), page.text());
                 });
               });
}

void admin_listener::impl::events(const http::request& q, const http::exchange_ptr& client) {
  if (q.method == "HEAD") {
    client->respond(200, of_type("text/event-stream"), "");
    return;
  }
  if (!feed->add(client, q.headers.get("last-event-id")))
    refuse(*client, 503, "limit_exceeded", "too many viewers");
}

void admin_listener::impl::health(const http::exchange_ptr& client) {
  reader->read(false, [client](const cluster_reading& now) {
    json j{{"status", "ok"}, {"control", now.keeper ? "up" : "restarting"}};
    if (!now.keeper)
      j["why"] = now.missing;
    answer_json(*client, 200, j.dump(-1, ' ', false, json::error_handler_t::replace));
  });
}

admin_listener::admin_listener(std::unique_ptr<impl> i) : impl_{std::move(i)} {
}

result<std::unique_ptr<admin_listener>> admin_listener::start(bus::post_office& office,
                                                              admin_listener_options options) {
  auto made = std::make_unique<impl>(office, std::move(options));
  std::unique_ptr<admin_listener> listener{new admin_listener{std::move(made)}};
  DI_TRY_VOID(listener->impl_->start());
  return listener;
}

admin_listener::~admin_listener() {
  stop(std::chrono::milliseconds{0});
}

std::uint16_t admin_listener::port() const {
  return impl_->server ? impl_->server->port() : 0;
}

void admin_listener::stop(std::chrono::milliseconds deadline) {
  if (impl_->feed)
    impl_->feed->stop(); // its streams end; handlers may still ask it
  if (impl_->server)
    impl_->server->stop(deadline);
  impl_->server.reset();
  impl_->feed.reset();
  if (impl_->desk)
    impl_->office.unbind(impl_->options.prefix + "/admin_desk", {ec::ok, ""});
  impl_->desk.reset();
  impl_->questions.reset();
  impl_->reader.reset();
}

} // namespace di::serve
