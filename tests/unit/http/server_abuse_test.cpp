// SPDX-License-Identifier: Apache-2.0
// Clients that are slow, many, or mean.
#include "messaging/http/server.hpp"
#include "tests/support/http_client.hpp"
#include "tests/unit/http/server_fixture.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <fcntl.h>
#include <sys/resource.h>
#include <thread>

namespace di::http {
namespace {

using testing::http_client;
using namespace std::chrono_literals;

const std::string get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const auto echo = [](request r, exchange_ptr e) { e->respond(200, {}, r.body); };

TEST(http_abuse, answers_each_malformed_request_and_closes) {
  options o = quick();
  o.limits.header_bytes = 2'000;
  o.limits.target_bytes = 500;
  o.limits.body_bytes = 1'000;
  served s{echo, o};
  const std::pair<std::string, int> cases[] = {
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"\x16\x03\x01\x02\x00\x01", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
       400},
      {"GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(3'000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(600, 'x') + " HTTP/1.1\r\nHost: h\r\n\r\n", 414},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: h\r\nExpect: magic\r\nContent-Length: 1\r\n\r\n", 417},
  };
  for (const auto& [text, status] : cases) {
    http_client c{s.port()};
    c.send(text);
    const auto r = c.response();
    EXPECT_EQ(r.status, status) << text.substr(0, 60);
    EXPECT_EQ(r.headers.get("connection"), "close");
    EXPECT_TRUE(c.closed()) << text.substr(0, 60);
  }
  EXPECT_EQ(s->count().refused, std::size(cases));
  http_client c{s.port()};
  EXPECT_EQ(c.ask(get).status, 200) << "and lives";
}

TEST(http_abuse, lets_a_client_read_its_413_while_it_still_sends) {
  options o = quick();
  o.limits.body_bytes = 1'000;
  served s{echo, o};
  http_client c{s.port()};
  c.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n");
  const std::string block(100'000, 'x');
  for (int i = 0; i < 30; ++i)
    if (!c.send(block))
      break;
  EXPECT_EQ(c.response().status, 413);
}

TEST(http_abuse, times_out_slow_loris_while_others_are_served) {
  options o = quick();
  o.timeouts.header = 500ms;
  o.timeouts.body = 200ms;
  o.limits.body_bytes_per_s = 1'000'000;
  served s{echo, o};
  std::vector<http_client> slow;
  for (int i = 0; i < 40; ++i) {
    slow.emplace_back(s.port());
    slow.back().send(i % 2 == 0 ? "POST / HTTP/1.1\r\nHo"
                                : "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  }
  http_client c{s.port()};
  EXPECT_EQ(c.ask(get).status, 200);
  for (auto& l : slow) {
    EXPECT_EQ(l.response().status, 408);
    EXPECT_TRUE(l.closed());
  }
  EXPECT_EQ(s->count().timed_out, 40u);
}

TEST(http_abuse, closes_idle_connections) {
  options o = quick();
  o.timeouts.idle = 50ms;
  served s{echo, o};
  http_client c{s.port()};
  EXPECT_EQ(c.ask(get).status, 200);
  EXPECT_TRUE(c.closed());
  EXPECT_EQ(c.buffered(), "");
}

TEST(http_abuse, a_slow_reader_holds_nobody) {
  options o = quick();
  o.limits.client_buffer_bytes = 64 << 10;
  waiting w;
  served s{w.handler(), o};
  http_client slow{s.port(), 4096}, fast{s.port()};
  slow.send(get);
  const auto to_slow = w.next();
  fast.send(get);
  const auto to_fast = w.next();
  to_slow->begin_stream(200, {});
  to_fast->begin_stream(200, {});
  const std::string chunk(8'000, 'x');
  auto drained = std::make_shared<event<bool>>();
  std::size_t taken = 0;
  for (bool more = true; more;) { // until the kernel's buffers are full too
    drained = std::make_shared<event<bool>>();
    to_slow->on_drained([drained] { drained->set(true); });
    while (to_slow->write(chunk) != written::refused)
      ASSERT_LT(taken += chunk.size(), 100u << 20);
    more = drained->wait(200ms).has_value();
  }
  EXPECT_LE(to_slow->queued(), 2 * o.limits.client_buffer_bytes + 1'000);
  fast.read_until("\r\n\r\n");
  for (int i = 0; i < 200; ++i) {
    ASSERT_NE(to_fast->write("data: " + std::to_string(i) + "\n\n"), written::refused);
    ASSERT_TRUE(fast.read_until("data: " + std::to_string(i) + "\n\n")) << i;
  }
  EXPECT_FALSE(drained->wait(0ms).has_value());
  std::size_t got = 0;
  ASSERT_TRUE(slow.skip_head());
  while (got < taken) {
    const auto part = slow.chunk();
    ASSERT_TRUE(part.has_value());
    got += part->size();
  }
  EXPECT_EQ(got, taken) << "nothing is lost";
  EXPECT_TRUE(drained->wait().has_value());
  to_slow->end();
  EXPECT_EQ(slow.chunk(), std::nullopt);
}

TEST(http_abuse, aborts_a_reader_that_stands_still) {
  options o = quick();
  o.timeouts.write = 100ms;
  waiting w;
  served s{w.handler(), o};
  http_client c{s.port(), 4096};
  c.send(get);
  const auto e = w.next();
  event<gone> told;
  e->on_gone([&](gone g) { told.set(g); });
  e->begin_stream(200, {});
  e->write(std::string(8 << 20, 'x'));
  EXPECT_EQ(told.wait(), gone::stalled);
  EXPECT_EQ(e->queued(), 0u);
}

TEST(http_abuse, serves_many_connections_and_frees_them) {
  options o = quick();
  o.threads = 2;
  std::atomic<int> counted{0};
  callbacks calls{echo, {}, {}, [&](int change) { counted += change; }};
  served s{std::move(calls), o};
  for (int i = 0; i < 2; ++i) // each loop opens descriptors of its own with its first connection
    http_client{s.port()}.ask(get);
  EXPECT_TRUE(s.eventually([&] { return s->count().open == 0; }));
  const auto before = open_descriptors();
  {
    std::vector<http_client> clients;
    for (int i = 0; i < 300; ++i)
      clients.emplace_back(s.port());
    for (int round = 0; round < 3; ++round) {
      for (auto& c : clients)
        ASSERT_TRUE(c.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"));
      for (auto& c : clients)
        ASSERT_EQ(c.response().body, "hi");
    }
    EXPECT_EQ(s->count().open, 300u);
    EXPECT_EQ(counted, 300);
  }
  EXPECT_TRUE(s.eventually([&] { return s->count().open == 0; }));
  EXPECT_EQ(counted, 0);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(http_abuse, makes_room_among_idle_connections_at_the_bound) {
  options o = quick();
  o.limits.connections = 5;
  o.timeouts.linger = 50ms;
  served s{echo, o};
  std::vector<http_client> clients;
  for (int i = 0; i < 12; ++i) { // each keeps its connection
    clients.emplace_back(s.port());
    EXPECT_EQ(clients.back().ask(get).status, 200) << i;
  }
  EXPECT_LE(s->count().open, 5u);
}

TEST(http_abuse, waits_for_room_if_all_are_busy) {
  options o = quick();
  o.limits.connections = 2;
  waiting w;
  served s{w.handler(), o};
  http_client a{s.port()}, b{s.port()}, c{s.port()};
  a.send(get);
  const auto ea = w.next();
  b.send(get);
  const auto eb = w.next();
  c.send(get);
  EXPECT_EQ(s->count().open, 2u);
  ea->respond(200, {}, "a");
  EXPECT_EQ(a.response().body, "a");
  w.next()->respond(200, {}, "c");
  EXPECT_EQ(c.response().body, "c");
  eb->respond(200, {}, "b");
  EXPECT_EQ(b.response().body, "b");
}

TEST(http_abuse, goes_on_after_running_out_of_descriptors) {
  served s{echo};
  http_client kept{s.port()};
  EXPECT_EQ(kept.ask(get).status, 200);
  http_client late{s.port()}; // accepted below, when no descriptor is free
  EXPECT_EQ(late.ask(get).status, 200);
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  const int probe = ::dup(0);
  http_client starved{s.port() == 0 ? std::uint16_t{1}
                                    : std::uint16_t{0}}; // its socket, unconnected
  const rlimit none{static_cast<rlim_t>(probe), old.rlim_max};
  ::close(probe);
  ::setrlimit(RLIMIT_NOFILE, &none);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(s.port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(starved.fd(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  EXPECT_TRUE(s.eventually([&] { return s->count().accept_errors > 0; }));
  ::setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_EQ(starved.ask(get).status, 200);
}

TEST(http_abuse, survives_a_writer_after_the_client_is_gone) {
  waiting w;
  served s{w.handler()};
  http_client c{s.port()};
  c.send(get);
  const auto e = w.next();
  e->begin_stream(200, {});
  c.reset();
  while (e->write(std::string(1'000, 'x')) != written::gone) // SIGPIPE would end the test
    std::this_thread::yield();
  EXPECT_TRUE(e->is_gone());
}

} // namespace
} // namespace di::http
