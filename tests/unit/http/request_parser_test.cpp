// SPDX-License-Identifier: Apache-2.0
// Bytes -> requests: what is read, what is refused and how, at every cut.
#include "messaging/http/request_parser.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace di::http {
namespace {

using step = request_parser::step;

struct outcome {
  step last = step::need_more;
  std::vector<request> requests;
  parse_refusal refusal;
  std::string rest;
};

/// Brings the pieces of `text` as a connection does.
outcome read(const std::vector<std::string_view>& pieces, const limits& bounds = {},
             bool length_required = false) {
  outcome out;
  request_parser parser;
  parser.begin(bounds, length_required);
  std::string held;
  for (const auto piece : pieces) {
    held += piece;
    for (bool going = true; going && !held.empty();) {
      std::size_t used = 0;
      out.last = parser.feed(held, used);
      held.erase(0, used);
      if (out.last == step::head && !parser.has_body())
        out.last = step::done;
      switch (out.last) {
      case step::need_more:
        going = false;
        break;
      case step::head:
        break;
      case step::done:
        out.requests.push_back(std::move(parser.message()));
        parser.begin(bounds, length_required);
        break;
      case step::refused:
        out.refusal = parser.refusal();
        return out;
      }
    }
  }
  out.rest = held;
  return out;
}

outcome read(std::string_view text, const limits& bounds = {}, bool length_required = false) {
  return read(std::vector{text}, bounds, length_required);
}

int refused(std::string_view text, const limits& bounds = {}) {
  const auto out = read(text, bounds);
  return out.last == step::refused ? out.refusal.status : 0;
}

TEST(request_parser, reads_a_request_with_a_body) {
  const auto out = read("POST /v1/a%20b?x=1&y HTTP/1.1\r\nHost: h\r\nX-Y:  z \r\n"
                        "Content-Length: 5\r\n\r\nhello");
  ASSERT_EQ(out.requests.size(), 1u);
  const auto& r = out.requests[0];
  EXPECT_EQ(r.method, "POST");
  EXPECT_EQ(r.target, "/v1/a%20b?x=1&y");
  EXPECT_EQ(r.path, "/v1/a b");
  EXPECT_EQ(r.query, "x=1&y");
  EXPECT_EQ(r.headers.get("x-y"), "z");
  EXPECT_EQ(r.body, "hello");
  EXPECT_TRUE(r.length_given);
}

constexpr std::string_view mixed =
    "\r\nPOST /a?b=c HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\nGET / HTTP/1"
    "GET /b HTTP/1.1\r\nHost: h\r\n\r\n"
    "PUT http://h:1/c?d HTTP/1.1\r\nhost: h\r\ntransfer-encoding: Chunked\r\n\r\n"
    "4;x=\"y\"\r\nwiki\r\n00a\r\n0123456789\r\n0\r\nX-Sum: 9\r\nY: 2\r\n\r\n"
    "OPTIONS * HTTP/1.0\r\n\r\n"
    "POST /e HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";

TEST(request_parser, reads_the_same_at_every_cut_into_three) {
  const auto whole = read(mixed);
  ASSERT_EQ(whole.requests.size(), 5u) << whole.refusal.detail;
  EXPECT_EQ(whole.requests[2].path, "/c");
  EXPECT_EQ(whole.requests[2].query, "d");
  EXPECT_EQ(whole.requests[2].body, "wiki0123456789");
  EXPECT_EQ(whole.requests[2].trailers.get("x-sum"), "9");
  EXPECT_EQ(whole.requests[2].trailers.size(), 2u);
  EXPECT_EQ(whole.requests[3].path, "*");
  EXPECT_EQ(whole.requests[3].minor, 0u);
  const auto all = mixed;
  for (std::size_t i = 0; i <= all.size(); ++i)
    for (std::size_t j = i; j <= all.size(); j += 1 + (j - i) / 3) {
      const auto out = read({all.substr(0, i), all.substr(i, j - i), all.substr(j)});
      ASSERT_EQ(out.requests.size(), 5u) << i << ' ' << j << ' ' << out.refusal.detail;
      for (std::size_t k = 0; k < 5; ++k) {
        ASSERT_EQ(out.requests[k].target, whole.requests[k].target) << i << ' ' << j;
        ASSERT_EQ(out.requests[k].body, whole.requests[k].body) << i << ' ' << j;
        ASSERT_EQ(out.requests[k].trailers.size(), whole.requests[k].trailers.size());
      }
    }
}

TEST(request_parser, reads_the_same_byte_by_byte) {
  std::vector<std::string_view> bytes;
  for (std::size_t i = 0; i < mixed.size(); ++i)
    bytes.push_back(mixed.substr(i, 1));
  const auto out = read(bytes);
  ASSERT_EQ(out.requests.size(), 5u) << out.refusal.detail;
  EXPECT_EQ(out.requests[0].body, "GET / HTTP/1");
}

TEST(request_parser, refuses_what_two_readers_could_take_for_different_lengths) {
  const std::string line = "POST / HTTP/1.1\r\nHost: h\r\n";
  for (const std::string fields : {
           "Content-Length: 5\r\nContent-Length: 5\r\n",
           "Content-Length: 5\r\nContent-Length: 6\r\n",
           "Content-Length: 5, 5\r\n",
           "Content-Length: +5\r\n",
           "Content-Length: -1\r\n",
           "Content-Length: 0x5\r\n",
           "Content-Length: 5 5\r\n",
           "Content-Length: \r\n",
           "Content-Length: 99999999999999999999999\r\n",
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
           "Content-Length : 5\r\n",
           " Content-Length: 5\r\n",
           "X: y\r\n Content-Length: 5\r\n",
           "X: y\r\n\tfolded\r\n",
           "Content\x01Length: 5\r\n",
           "X: a\rContent-Length: 5\r\n",
           "X: a\nContent-Length: 5\r\n",
           "NoColon\r\n",
           ": empty\r\n",
       })
    EXPECT_EQ(refused(line + fields + "\r\nhello"), 400) << fields;
  EXPECT_EQ(refused(line + std::string{"X: a\0b\r\n\r\n", 10}), 400);
  for (const auto* coding : {"gzip", "gzip, chunked", "chunked, gzip", "identity", "chunked;a=b"})
    EXPECT_EQ(refused(line + "Transfer-Encoding: " + coding + "\r\n\r\n"), 501) << coding;
  EXPECT_EQ(refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

TEST(request_parser, refuses_first_lines_that_are_none) {
  for (const std::string line : {
           "GET\r\n",
           "GET /\r\n",
           "GET / HTTP/1.1 x\r\n",
           "GET  / HTTP/1.1\r\n",
           "GET / HTTP/1.1\n",
           "GET / http/1.1\r\n",
           "GET / HTTP/11\r\n",
           "G@T / HTTP/1.1\r\n",
           " GET / HTTP/1.1\r\n",
           "GET x HTTP/1.1\r\n",
           "GET * HTTP/1.1\r\n",
           "GET /%zz HTTP/1.1\r\n",
           "GET /%00 HTTP/1.1\r\n",
           "GET /\xc3\xa4 HTTP/1.1\r\n",
           "GET /#a HTTP/1.1\r\n",
           "GET /a b HTTP/1.1\r\n",
           "GET /\tb HTTP/1.1\r\n",
           "\x16\x03\x01\x02",
           "{\"a\": 1}",
           "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n",
           "AVERYLONGMETHODAVERYLONGMETHODAVERYLONGMETHOD",
       })
    EXPECT_EQ(refused(line + "Host: h\r\n\r\n"), 400) << line;
  EXPECT_EQ(refused("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"), 501);
}

TEST(request_parser, answers_the_http2_preface_and_other_versions_with_505) {
  EXPECT_EQ(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(refused("GET / HTTP/3.0\r\nHost: h\r\n\r\n"), 505);
  EXPECT_EQ(refused("GET / HTTP/0.9\r\n\r\n"), 505);
}

TEST(request_parser, wants_exactly_one_host) {
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.0\r\n\r\n"), 0);
}

TEST(request_parser, holds_its_bounds) {
  limits b;
  b.header_bytes = 200;
  b.target_bytes = 20;
  b.header_fields = 3;
  b.body_bytes = 10;
  const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(refused(get + "X: " + std::string(200, 'x') + "\r\n\r\n", b), 431);
  EXPECT_EQ(refused(get + "X: " + std::string(200, 'x'), b), 431) << "before its end has come";
  EXPECT_EQ(refused(get + "a: 1\r\nb: 2\r\nc: 3\r\n\r\n", b), 431);
  EXPECT_EQ(refused(get + "a: 1\r\nb: 2\r\n\r\n", b), 0);
  EXPECT_EQ(refused("GET /" + std::string(19, 'x') + " HTTP/1.1\r\nHost: h\r\n\r\n", b), 0);
  EXPECT_EQ(refused("GET /" + std::string(20, 'x') + " HTTP/1.1\r\nHost: h\r\n\r\n", b), 414);
  EXPECT_EQ(refused("GET /" + std::string(20, 'x'), b), 414) << "before its end has come";
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  EXPECT_EQ(refused(post + "Content-Length: 11\r\n\r\n", b), 413) << "before any of it";
  EXPECT_EQ(refused(post + "Content-Length: 10\r\n\r\n0123456789", b), 0);
  const auto chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(refused(chunked + "a\r\n0123456789\r\n0\r\n\r\n", b), 0);
  EXPECT_EQ(refused(chunked + "b\r\n01", b), 413);
  EXPECT_EQ(refused(chunked + "6\r\n012345\r\n5\r\n01", b), 413);
  EXPECT_EQ(refused(chunked + "ffffffffffffffff\r\n", b), 413);
  EXPECT_EQ(refused(chunked + "1ffffffffffffffff\r\n", b), 400);
  EXPECT_EQ(refused(chunked + "1;" + std::string(5'000, 'x'), b), 431);
  EXPECT_EQ(refused(chunked + "0\r\na: 1\r\nb: 2\r\nc: 3\r\n\r\n", b), 431);
}

TEST(request_parser, refuses_broken_chunks) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string body :
       {"x\r\n", "-1\r\n", "5\r\nhelloXX0\r\n", "5\nhello\r\n", "\r\n", "5 x\r\nhello\r\n",
        "0\r\nContent-Length: 5\r\n\r\n", "0\r\nNoColon\r\n\r\n", "0x5\r\nhello\r\n",
        "5 \r\nhello\r\n", "5;a=\"\x01\r\nhello\r\n", "00000000000000005\r\nhello\r\n",
        "5\r\nhellohello\r\n"})
    EXPECT_EQ(refused(head + body + "0\r\n\r\n"), 400) << body;
}

TEST(request_parser, tells_whether_a_length_was_given) {
  EXPECT_FALSE(read("POST / HTTP/1.1\r\nHost: h\r\n\r\n").requests.at(0).length_given);
  EXPECT_EQ(read("POST / HTTP/1.1\r\nHost: h\r\n\r\n", {}, true).refusal.status, 411);
  EXPECT_EQ(read("POST / HTTP/1.0\r\n\r\n").refusal.status, 411) << "its body has no end";
  EXPECT_EQ(read("GET / HTTP/1.1\r\nHost: h\r\n\r\n", {}, true).requests.size(), 1u);
}

TEST(request_parser, knows_one_expectation) {
  request_parser p;
  p.begin({}, false);
  std::size_t used = 0;
  EXPECT_EQ(
      p.feed("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n",
             used),
      step::head);
  EXPECT_TRUE(p.expects_continue());
  EXPECT_EQ(refused("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: x\r\n\r\n"), 417);
}

TEST(request_parser, knows_the_path_of_what_it_refuses) {
  request_parser p;
  p.begin({}, false);
  std::size_t used = 0;
  EXPECT_EQ(p.feed("POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", used),
            step::refused);
  EXPECT_EQ(p.message().path, "/v1/messages");
}

} // namespace
} // namespace di::http
