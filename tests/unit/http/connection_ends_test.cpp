// SPDX-License-Identifier: Apache-2.0
// A connection's patience, its slow readers and its ends, with time and bytes made by the test.
#include "tests/unit/http/core_world.hpp"

#include <gtest/gtest.h>

namespace di::http {
namespace {

using namespace std::chrono_literals;

// --- time ---------------------------------------------------------------------------------------

TEST(connection_core, times_out_a_slow_header_with_408) {
  world w;
  w.open();
  for (int i = 0; i < 9; ++i) { // a byte now and then does not help
    w.in(get.substr(static_cast<std::size_t>(i), 1));
    w.pass(1000ms);
    ASSERT_FALSE(w.core->finished());
  }
  w.pass(1001ms);
  EXPECT_EQ(status(w.out()), 408);
  EXPECT_TRUE(w.core->wants_half_close());
  w.pass(1001ms);
  EXPECT_TRUE(w.core->finished());
  EXPECT_EQ(w.stats->timed_out, 1u);
}

TEST(connection_core, closes_silently_what_never_says_anything) {
  world w;
  w.open();
  w.pass(9'999ms);
  EXPECT_FALSE(w.core->finished());
  w.pass(1ms);
  EXPECT_TRUE(w.core->finished());
  EXPECT_EQ(w.out(), "");
}

TEST(connection_core, times_out_a_slow_body_but_not_a_long_one) {
  world w;
  w.setup.limits.body_bytes_per_s = 1000;
  w.open();
  w.in("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
  for (int i = 0; i < 100; ++i) { // 1,000 bytes/s for 100 s
    w.in(std::string(1000, 'x'));
    w.pass(1000ms);
    ASSERT_EQ(w.out(), "");
  }
  for (int i = 0; i < 29; ++i) { // one byte/s: the 30 s of patience, and no more
    w.in("x");
    w.pass(1000ms);
    ASSERT_EQ(w.out(), "") << i;
  }
  w.pass(1500ms);
  EXPECT_EQ(status(w.out()), 408);
}

TEST(connection_core, closes_what_is_idle_between_requests) {
  world w;
  w.open();
  w.in(get);
  w.pass(1h); // computing takes its time
  EXPECT_FALSE(w.core->finished());
  w.last().respond(200, {}, "");
  w.out();
  w.pass(74'999ms);
  EXPECT_FALSE(w.core->finished());
  w.pass(1ms);
  EXPECT_TRUE(w.core->finished());
}

TEST(connection_core, aborts_a_client_that_takes_no_byte) {
  world w;
  w.open();
  w.in(get);
  gone why{};
  w.last().on_gone([&](gone g) { why = g; });
  w.last().begin_stream(200, {});
  w.last().write("abc");
  w.loop->run();
  w.pass(29'999ms);
  w.core->sent(1, w.now);
  w.pass(29'999ms);
  EXPECT_FALSE(w.core->finished()) << "it took a byte";
  w.pass(1ms);
  EXPECT_TRUE(w.core->finished());
  EXPECT_TRUE(w.core->reset());
  EXPECT_EQ(why, gone::stalled);
  EXPECT_EQ(w.last().write("x"), written::gone);
}

// --- slow readers -------------------------------------------------------------------------------

TEST(connection_core, tells_slow_and_drained) {
  world w;
  w.setup.limits.client_buffer_bytes = 1000;
  w.open();
  w.in(get);
  auto& e = w.last();
  int drained = 0;
  e.on_drained([&] { ++drained; });
  e.begin_stream(200, {});
  w.out();
  EXPECT_EQ(e.queued(), 0u);
  EXPECT_EQ(e.write(std::string(900, 'x')), written::ok);
  EXPECT_EQ(e.write(std::string(900, 'x')), written::full);
  EXPECT_EQ(e.write(std::string(900, 'x')), written::refused);
  EXPECT_GT(e.queued(), 1800u);
  w.loop->run();
  w.core->sent(1300, w.now);
  EXPECT_EQ(drained, 0);
  w.core->sent(200, w.now);
  EXPECT_EQ(drained, 1);
  w.out();
  EXPECT_EQ(drained, 1) << "once per time";
  EXPECT_EQ(e.queued(), 0u);
  EXPECT_EQ(e.write(std::string(100'000, 'x')), written::full) << "one of any size, if none waits";
  w.out();
  EXPECT_EQ(drained, 2);
}

// --- ends ---------------------------------------------------------------------------------------

TEST(connection_core, tells_that_the_client_left_while_computing) {
  world w;
  w.open();
  w.in(get);
  std::vector<gone> told;
  w.last().on_gone([&](gone g) { told.push_back(g); });
  w.core->input_ended(w.now);
  EXPECT_EQ(told, std::vector{gone::closed});
  EXPECT_TRUE(w.last().is_gone());
  EXPECT_TRUE(w.last().respond(200, {}, "still")) << "it may have closed only its own side";
  EXPECT_NE(w.out().find("still"), std::string::npos);
  EXPECT_TRUE(w.core->finished());
  EXPECT_EQ(told.size(), 1u);
}

TEST(connection_core, waits_only_a_moment_for_an_answer_to_who_left) {
  world w;
  w.open();
  w.in(get);
  w.core->input_ended(w.now);
  int told = 0;
  w.last().on_gone([&](gone) { ++told; });
  w.loop->run();
  EXPECT_EQ(told, 1) << "told at once, as it is gone already";
  w.pass(1001ms);
  EXPECT_TRUE(w.core->finished());
  EXPECT_FALSE(w.last().respond(200, {}, "late"));
  EXPECT_EQ(told, 1);
  EXPECT_EQ(w.stats->gone, 1u);
  EXPECT_EQ(w.stats->busy, 0u);
}

TEST(connection_core, serves_what_was_pipelined_before_the_half_close) {
  world w;
  w.calls.handler = [](request, exchange_ptr e) { e->respond(200, {}, "ok"); };
  w.open();
  w.in(get + get + get);
  w.core->input_ended(w.now);
  const auto out = w.out();
  EXPECT_EQ(status(out), 200);
  EXPECT_EQ(out.find("ok", out.find("ok", out.find("ok") + 1) + 1) == out.npos, false);
  EXPECT_TRUE(w.core->finished());
}

TEST(connection_core, refuses_a_request_that_ends_in_its_middle) {
  world w;
  w.open();
  w.in("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
  w.core->input_ended(w.now);
  EXPECT_EQ(status(w.out()), 400);
  EXPECT_TRUE(w.core->finished());
  EXPECT_TRUE(w.asked.empty());
}

TEST(connection_core, drops_everything_when_the_connection_breaks) {
  world w;
  w.open();
  w.in(get);
  auto held = std::make_shared<int>(1);
  gone why{};
  w.last().on_gone([&why, held](gone g) { why = g; });
  w.last().on_drained([held] {});
  EXPECT_EQ(held.use_count(), 3);
  w.core->failed(gone::reset);
  EXPECT_EQ(why, gone::reset);
  EXPECT_EQ(held.use_count(), 1) << "callbacks are released";
  EXPECT_TRUE(w.core->finished());
  EXPECT_FALSE(w.last().begin_stream(200, {}));
}

TEST(connection_core, releases_callbacks_when_the_answer_ends) {
  world w;
  w.open();
  w.in(get);
  auto held = std::make_shared<int>(1);
  w.last().on_gone([held](gone) { FAIL(); });
  w.last().respond(200, {}, "");
  EXPECT_EQ(held.use_count(), 1);
  w.out();
  w.core->failed(gone::reset);
}

TEST(connection_core, answers_500_when_the_exchange_is_dropped) {
  world w;
  w.open();
  w.in(get);
  w.asked.clear();
  EXPECT_EQ(status(w.out()), 500);
  EXPECT_FALSE(w.core->finished());
  w.in(get);
  w.last().begin_stream(200, {});
  w.out();
  w.asked.clear();
  w.loop->run();
  EXPECT_TRUE(w.core->finished()) << "a stream without end is cut";
  EXPECT_TRUE(w.core->reset());
}

TEST(connection_core, survives_a_handler_that_throws) {
  world w;
  w.calls.handler = [](request, exchange_ptr) { throw std::runtime_error{"no"}; };
  w.open();
  w.in(get);
  EXPECT_EQ(status(w.out()), 500);
}

TEST(connection_core, cuts_an_aborted_stream) {
  world w;
  w.open();
  w.in(get);
  w.last().begin_stream(200, {});
  w.last().write("abc");
  w.last().abort();
  w.loop->run();
  EXPECT_TRUE(w.core->finished());
  EXPECT_TRUE(w.core->reset());
}

TEST(connection_core, closes_after_an_answer_that_says_so) {
  world w;
  w.open();
  w.in(get);
  w.last().respond(200, {{"Connection", "close"}}, "abc");
  EXPECT_NE(w.out().find("Connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(w.core->wants_half_close());
  w.in("whatever it still sends");
  w.core->input_ended(w.now);
  EXPECT_TRUE(w.core->finished());
}

TEST(connection_core, drains) {
  world idle;
  idle.open();
  idle.in(get);
  idle.last().respond(200, {}, "");
  idle.out();
  idle.core->drain(idle.now);
  EXPECT_TRUE(idle.core->finished());

  world busy;
  busy.open();
  busy.in(get);
  busy.core->drain(busy.now);
  EXPECT_FALSE(busy.core->finished());
  busy.last().respond(200, {}, "abc");
  EXPECT_NE(busy.out().find("Connection: close"), std::string::npos);
  EXPECT_TRUE(busy.core->wants_half_close());

  world fresh; // its request may be on its way
  fresh.open();
  fresh.core->drain(fresh.now);
  EXPECT_FALSE(fresh.core->finished());
  fresh.pass(500ms);
  fresh.core->drain(fresh.now); // once more gives no more time
  fresh.pass(500ms);
  EXPECT_TRUE(fresh.core->finished());
}

TEST(connection_core, resets_at_a_stop_only_what_is_not_out) {
  for (const bool out : {false, true}) {
    world w;
    w.open();
    w.in(get);
    w.last().respond(200, {{"Connection", "close"}}, "abc");
    if (out)
      w.out();
    w.loop->run();
    w.core->failed(gone::stopped);
    EXPECT_TRUE(w.core->finished());
    EXPECT_EQ(w.core->reset(), !out);
  }
}

TEST(connection_core, bounds_all_bodies_together) {
  world w;
  w.setup.limits.all_bodies_bytes = 1000;
  w.open();
  w.stats->body_bytes = 900; // of others
  w.in("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\n");
  w.in(std::string(90, 'x'));
  EXPECT_EQ(w.out(), "");
  w.in(std::string(20, 'x'));
  EXPECT_EQ(status(w.out()), 503);
  EXPECT_EQ(w.stats->body_bytes, 900u) << "and gives back what it held";
}

TEST(connection_core, reads_the_same_at_every_cut) {
  const std::string text = post("hello") + get
                           + "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
                             "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    world w;
    std::string seen;
    w.calls.handler = [&](request r, exchange_ptr e) {
      seen += r.path + ' ' + r.body + '\n';
      e->respond(200, {}, r.body);
    };
    w.open();
    w.in(text.substr(0, cut));
    w.in(text.substr(cut));
    ASSERT_EQ(seen, "/p hello\n/a \n/c abc\n") << cut;
  }
}

} // namespace
} // namespace di::http
