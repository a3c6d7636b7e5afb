// SPDX-License-Identifier: Apache-2.0
// The operators' listener over HTTP, with actors of control that a test plays.
#include "launch/chat/http_client.hpp"
#include "launch/chat/sse_reader.hpp"
#include "launch/serve/admin_listener.hpp"
#include "launch/serve/gateway_pages.hpp"
#include "tests/unit/serve_metrics/fake_control.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <thread>

namespace di::serve {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

struct said {
  int status = 0;
  std::string body, type, allow, retry;
};

struct operators {
  fake_control control;
  std::unique_ptr<admin_listener> listener;

  operators() {
    admin_listener_options o;
    o.topology = "local4";
    o.model = "tiny";
    o.period = 10ms;
    auto made = admin_listener::start(control.office(), std::move(o));
    EXPECT_TRUE(made.ok()) << made.error().what;
    listener = std::move(*made);
  }

  launch::http_url url() const {
    return {false, "127.0.0.1", std::to_string(listener->port()), ""};
  }

  said ask(const std::string& method, const std::string& target, const std::string& body = {},
           std::vector<std::pair<std::string, std::string>> headers = {}) const {
    said s;
    const auto a = launch::exchange_http(url(), {method, target, std::move(headers), body}, {},
                                         [&](const launch::http_answer&, std::string_view part) {
                                           s.body += part;
                                           return true;
                                         });
    EXPECT_TRUE(a.ok()) << target << ": " << a.error().what;
    if (!a.ok())
      return s;
    s.status = a->status();
    s.type = a->header("content-type");
    s.allow = a->header("allow");
    s.retry = a->header("retry-after");
    return s;
  }

  /// Events of the feed until `enough` is true of one. @return all of them
  std::vector<launch::sse_message>
  watch(const std::function<bool(const launch::sse_message&)>& enough,
        const std::string& last_id = {}) const {
    std::vector<launch::sse_message> all;
    launch::sse_reader events;
    launch::http_call call{"GET", "/events", {}, ""};
    if (!last_id.empty())
      call.headers.emplace_back("Last-Event-ID", last_id);
    launch::http_client_options patience;
    patience.silence = 10s;
    const auto a = launch::exchange_http(url(), call, patience,
                                         [&](const launch::http_answer&, std::string_view part) {
                                           bool more = true;
                                           auto heard = *events.feed(part);
                                           for (std::size_t i = 0; more && i < heard.size(); ++i) {
                                             more = !enough(heard[i]);
                                             all.push_back(std::move(heard[i]));
                                           }
                                           return more;
                                         });
    EXPECT_TRUE(a.ok()) << a.error().what;
    return all;
  }
};

TEST(admin_listener, serves_status_health_metrics_and_the_page) {
  const operators o;
  const auto status = o.ask("GET", "/admin/status");
  EXPECT_EQ(status.status, 200);
  EXPECT_EQ(json::parse(status.body)["view"], 3);
  EXPECT_EQ(json::parse(o.ask("GET", "/health").body)["control"], "up");
  const auto metrics = o.ask("GET", "/metrics");
  EXPECT_EQ(metrics.type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(metrics.body.find("\ndi_view_epoch 3\n"), std::string::npos) << metrics.body;
  const auto page = o.ask("GET", "/ui");
  EXPECT_EQ(page.type, "text/html; charset=utf-8");
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_EQ(o.ask("GET", "/").status, 302);
}

TEST(admin_listener, shows_the_metrics_of_gateways_that_answer) {
  operators o;
  EXPECT_EQ(o.ask("GET", "/metrics/gateways").body, "") << "none does";
  const auto counted = std::make_shared<serving_metrics>(serving_metrics_options{0, "tiny", false});
  const auto desk = *metrics_desk::open(o.control.office(), "/gateway/0", counted);
  EXPECT_NE(o.ask("GET", "/metrics/gateways").body.find(R"(di_http_streams_open{gateway="0"} 0)"),
            std::string::npos);
}

TEST(admin_listener, says_that_nothing_is_recorded) {
  const operators o;
  const auto none = o.ask("GET", "/admin/trace");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(none.body.find("--trace-spans"), std::string::npos);
}

TEST(admin_listener, carries_orders_to_keeper_and_answers_when_they_are_done) {
  const operators o;
  const auto killed = o.ask("POST", "/admin/kill", R"({"rank":3})");
  EXPECT_EQ(killed.status, 200);
  EXPECT_EQ(json::parse(killed.body), json({{"ok", true}, {"ranks", 1}, {"view", 4}}));
  EXPECT_EQ(o.ask("POST", "/admin/scale?ranks=2").status, 200);
  EXPECT_EQ(o.ask("POST", "/admin/upgrade").status, 200);
  EXPECT_EQ(o.control.orders(), (std::vector<std::string>{"kill 3", "scale 2", "upgrade_group"}));
}

TEST(admin_listener, refuses_what_makes_no_sense_and_foreign_pages) {
  const operators o;
  EXPECT_EQ(o.ask("GET", "/nothing").status, 404);
  EXPECT_EQ(o.ask("POST", "/metrics").status, 405);
  const auto get = o.ask("GET", "/admin/kill");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(get.allow, "POST");
  EXPECT_EQ(o.ask("POST", "/admin/kill", "{").status, 400);
  EXPECT_EQ(o.ask("POST", "/admin/kill", R"({"rank":-1})").status, 400);
  EXPECT_EQ(o.ask("POST", "/admin/kill", R"({"rank":"x"})").status, 400);
  EXPECT_EQ(
      o.ask("POST", "/admin/kill", R"({"rank":1})", {{"Origin", "http://evil.example"}}).status,
      403);
  EXPECT_EQ(o.ask("POST", "/admin/kill", std::string(100'000, ' ')).status, 413);
  EXPECT_TRUE(o.control.orders().empty());
}

TEST(admin_listener, outlives_control_and_says_that_it_is_away) {
  operators o;
  o.control.stop();
  EXPECT_EQ(json::parse(o.ask("GET", "/health").body)["control"], "restarting");
  const auto status = o.ask("GET", "/admin/status");
  EXPECT_EQ(status.status, 503);
  EXPECT_EQ(status.retry, "1");
  EXPECT_EQ(o.ask("POST", "/admin/drain?rank=1").status, 503);
  EXPECT_NE(o.ask("GET", "/metrics").body.find("\ndi_control_up 0\n"), std::string::npos);
  o.watch([](const auto& m) {
    return m.event == "state" && !json::parse(m.data)["control"].template get<bool>();
  });
  o.control.start();
  const auto seen = o.watch([](const auto& m) {
    return m.event == "state" && json::parse(m.data)["control"].template get<bool>();
  });
  EXPECT_EQ(o.ask("GET", "/admin/status").status, 200);
  EXPECT_EQ(seen.front().event, "hello");
}

TEST(admin_listener, tells_viewers_state_heat_and_events) {
  operators o;
  const auto first = o.watch([](const auto& m) { return m.event == "heat"; });
  ASSERT_GE(first.size(), 3U);
  EXPECT_EQ(first[0].event, "hello");
  EXPECT_EQ(json::parse(first[0].data)["topology"], "local4");
  EXPECT_EQ(json::parse(first.back().data)["groups"][0]["cells"], "Oo");
  std::string id;
  for (const auto& m : first)
    if (m.event == "log")
      id = m.id;
  EXPECT_FALSE(id.empty());
  auto next = o.control.get();
  next.keeper->ranks[0].deaths = 1;
  next.keeper->ranks[0].last_reason = "signal 9";
  o.control.set(next);
  // The viewer comes back with what it has: it gets the death, and not what was before.
  const auto again = o.watch([](const auto& m) { return m.event == "log"; }, id);
  const auto log = json::parse(again.back().data);
  EXPECT_EQ(log[0]["text"], "rank 0 died: signal 9");
  // And without: everything.
  const auto all = o.watch([](const auto& m) { return m.event == "log"; });
  EXPECT_EQ(json::parse(all.back().data)[0]["kind"], "view");
}

TEST(admin_listener, bounds_its_viewers_and_lets_go_of_those_who_left) {
  const operators o;
  std::atomic<int> looking{0}, refused{0};
  std::atomic<bool> enough{false};
  {
    std::vector<std::jthread> viewers;
    for (int i = 0; i < 33; ++i)
      viewers.emplace_back([&] {
        bool counted = false;
        launch::http_client_options patience;
        patience.silence = 20s;
        const auto a =
            launch::exchange_http(o.url(), {"GET", "/events", {}, ""}, patience,
                                  [&](const launch::http_answer& h, std::string_view) {
                                    if (h.status() == 200 && !std::exchange(counted, true))
                                      ++looking;
                                    if (h.status() == 503)
                                      ++refused;
                                    if (looking + refused == 33)
                                      enough = true;
                                    return !enough;
                                  });
        EXPECT_TRUE(a.ok()) << a.error().what;
      });
  }
  EXPECT_EQ(looking, 32);
  EXPECT_EQ(refused, 1);
  EXPECT_FALSE(o.watch([](const auto& m) { return m.event == "state"; }).empty())
      << "there is room again";
}

TEST(admin_listener, ends_streams_when_it_stops) {
  operators o;
  std::jthread stopper;
  o.watch([&](const auto& m) {
    if (m.event == "state" && !stopper.joinable())
      stopper = std::jthread{[&] { o.listener->stop(5s); }};
    return false;
  });
}

} // namespace
} // namespace di::serve
