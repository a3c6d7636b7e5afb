// SPDX-License-Identifier: Apache-2.0
// The server over loopback sockets: answers from other threads, streams, the end of clients and of
// the server.
#include "messaging/http/server.hpp"
#include "messaging/http/sse.hpp"
#include "tests/support/http_client.hpp"
#include "tests/unit/http/server_fixture.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace di::http {
namespace {

using testing::http_client;
using namespace std::chrono_literals;

const std::string get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

TEST(http_server, answers_and_keeps_the_connection) {
  served s{[](request r, exchange_ptr e) { e->respond(200, {{"X-Path", r.path}}, r.body); }};
  http_client c{s.port()};
  for (int i = 0; i < 3; ++i) {
    const auto r = c.ask("POST /x%20y HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body, "abc");
    EXPECT_EQ(r.headers.get("x-path"), "/x y");
  }
  EXPECT_EQ(s->count().accepted, 1u);
  EXPECT_EQ(s->count().requests, 3u);
}

TEST(http_server, is_answered_by_other_threads) {
  options o = quick();
  o.threads = 2;
  waiting w;
  served s{w.handler(), o};
  std::thread answering{[&] {
    for (int i = 0; i < 20; ++i)
      w.next()->respond(200, {}, "from afar");
  }};
  std::vector<http_client> clients;
  for (int i = 0; i < 20; ++i)
    clients.emplace_back(s.port()).send(get);
  for (auto& c : clients)
    EXPECT_EQ(c.response().body, "from afar");
  answering.join();
}

TEST(http_server, streams_each_chunk_at_once) {
  waiting w;
  served s{w.handler()};
  http_client c{s.port()};
  c.send(get);
  const auto e = w.next();
  e->begin_stream(200, sse_headers());
  ASSERT_TRUE(c.read_until("\r\n\r\n"));
  for (int i = 0; i < 5; ++i) {
    const auto text = sse_event(std::to_string(i));
    EXPECT_EQ(e->write(text), written::ok);
    EXPECT_TRUE(c.read_until(text)) << "before the next is written";
  }
  e->end();
  EXPECT_TRUE(c.read_until("0\r\n\r\n"));
}

TEST(http_server, reads_requests_cut_at_every_byte) {
  served s{[](request r, exchange_ptr e) { e->respond(200, {}, r.path + r.body); }};
  const std::string text = "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
  http_client c{s.port()};
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    ASSERT_TRUE(c.send(text.substr(0, cut)));
    ASSERT_TRUE(c.send(text.substr(cut)));
    const auto r = c.response();
    ASSERT_EQ(r.status, 200) << cut;
    ASSERT_EQ(r.body, "/phello") << cut;
  }
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int notice_ms_max = 1'000; // ten times slower there
#else
constexpr int notice_ms_max = 100;
#endif

// --- clients that leave -------------------------------------------------------------------------

/// Milliseconds until on_gone, for a client that leaves as `leave` says.
template <class Leave>
std::pair<gone, std::chrono::milliseconds> notice(waiting& w, http_client& c, Leave leave,
                                                  bool streaming) {
  c.send(get);
  const auto e = w.next();
  event<gone> told;
  e->on_gone([&](gone g) { told.set(g); });
  if (streaming) {
    e->begin_stream(200, sse_headers());
    e->write(sse_event("1"));
    c.read_until("data: 1");
  }
  const auto start = std::chrono::steady_clock::now();
  leave(c);
  const auto why = told.wait();
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(why.has_value()) << "never noticed";
  return {why.value_or(gone::stopped), std::chrono::duration_cast<std::chrono::milliseconds>(took)};
}

TEST(http_server, notices_within_100_ms_that_a_client_left) {
  for (const bool streaming : {false, true})
    for (const bool reset : {false, true}) {
      waiting w;
      served s{w.handler()};
      std::vector<std::chrono::milliseconds> took;
      for (int i = 0; i < 5; ++i) {
        http_client c{s.port()};
        const auto [why, t] = notice(
            w, c, [&](http_client& x) { reset ? x.reset() : x.close(); }, streaming);
        EXPECT_TRUE(why == (reset ? gone::reset : gone::closed)) << to_string(why);
        took.push_back(t);
      }
      std::sort(took.begin(), took.end());
      EXPECT_LT(took[1].count(), notice_ms_max)
          << streaming << reset; // not the worst: the machine is shared
    }
}

TEST(http_server, notices_that_a_client_left_with_a_request_read_ahead) {
  waiting w;
  served s{w.handler()};
  http_client c{s.port()};
  const auto [why, t] = notice(
      w, c,
      [](http_client& x) {
        x.send(get + get);
        x.close();
      },
      false);
  EXPECT_TRUE(why == gone::closed || why == gone::reset);
}

TEST(http_server, frees_what_clients_left_behind) {
  waiting w;
  served s{w.handler()};
  const auto before = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    http_client c{s.port()};
    if (i % 3 > 0)
      c.send(i % 3 == 1 ? get.substr(0, 20) : get);
    if (i % 3 == 2)
      w.next();
    i % 2 == 0 ? c.close() : c.reset();
  }
  EXPECT_TRUE(s.eventually([&] { return s->count().open == 0; }));
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(s->count().busy, 0u);
}

TEST(http_server, posts_work_to_the_thread_of_the_connection) {
  waiting w;
  served s{w.handler()};
  http_client c{s.port()};
  c.send(get);
  const auto e = w.next();
  event<std::thread::id> ran, again;
  e->post([&] { ran.set(std::this_thread::get_id()); });
  e->post([&] { again.set(std::this_thread::get_id()); });
  const auto one = ran.wait(), two = again.wait();
  ASSERT_TRUE(one && two);
  EXPECT_EQ(*one, *two);
  EXPECT_NE(*one, std::this_thread::get_id());
  e->respond(200, {}, "");
  c.response();
}

// --- the end of the server ----------------------------------------------------------------------

TEST(http_server, finishes_what_is_under_way_when_it_stops) {
  waiting w;
  served s{w.handler()};
  http_client idle{s.port()}, busy{s.port()};
  idle.send(get);
  w.next()->respond(200, {}, "");
  EXPECT_EQ(idle.response().status, 200);
  busy.send(get);
  auto e = w.next();
  event<bool> stopped;
  std::thread stopping{[&] { stopped.set(s->stop(10s)); }};
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(idle.buffered(), "");
  e->respond(200, {}, "last words");
  const auto r = busy.response();
  EXPECT_EQ(r.body, "last words");
  EXPECT_EQ(r.headers.get("connection"), "close");
  busy.close();
  EXPECT_EQ(stopped.wait(), true);
  stopping.join();
  EXPECT_FALSE(http_client{s.port()}.connected());
}

TEST(http_server, aborts_what_is_not_done_at_the_deadline) {
  waiting w;
  served s{w.handler()};
  http_client c{s.port()};
  c.send(get);
  const auto e = w.next();
  event<gone> told;
  e->on_gone([&](gone g) { told.set(g); });
  EXPECT_FALSE(s->stop(20ms));
  EXPECT_EQ(told.wait(), gone::stopped);
  EXPECT_TRUE(c.closed());
  EXPECT_FALSE(e->respond(200, {}, "late"));
  e->post([] { FAIL(); });
}

TEST(http_server, leaves_no_descriptor_open) {
  const auto before = open_descriptors();
  for (int i = 0; i < 3; ++i) {
    waiting w;
    served s{w.handler()};
    http_client c{s.port()};
    c.send(get);
    w.next();
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(http_server, accepts_beside_another_on_one_socket) {
  auto made = listen_on("127.0.0.1", 0);
  ASSERT_TRUE(made.ok());
  options o = quick();
  o.listening = made->descriptors;
  {
    served a{[](request, exchange_ptr e) { e->respond(200, {}, "a"); }, o};
    auto b = std::make_unique<served>([](request, exchange_ptr e) { e->respond(200, {}, "b"); }, o);
    EXPECT_EQ(a.port(), made->port);
    for (int i = 0; i < 50; ++i) {
      http_client c{made->port};
      EXPECT_EQ(c.ask(get).status, 200);
    }
    EXPECT_EQ(a->count().accepted + (*b)->count().accepted, 50u);
    b.reset();
    for (int i = 0; i < 10; ++i) {
      http_client c{made->port};
      EXPECT_EQ(c.ask(get).body, "a") << "the other is gone";
    }
  }
  http_client waits{made->port}; // nobody accepts now, but the socket lives
  EXPECT_TRUE(waits.connected());
  served next{[](request, exchange_ptr e) { e->respond(200, {}, "next"); }, o};
  EXPECT_EQ(waits.ask(get).body, "next");
  for (const int fd : made->descriptors)
    ::close(fd);
}

TEST(http_server, says_why_it_cannot_listen) {
  served s{[](request, exchange_ptr) {}};
  auto taken = listen_on("127.0.0.1", s.port());
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ec::io_error);
  EXPECT_NE(taken.error().what.find(std::to_string(s.port())), std::string::npos);
  EXPECT_EQ(listen_on("no.such.host.invalid", 0).error().code, ec::bad_argument);
}

} // namespace
} // namespace di::http
