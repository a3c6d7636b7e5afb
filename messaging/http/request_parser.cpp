// SPDX-License-Identifier: Apache-2.0
// The one place that sees Beast: it takes heads apart; what it lets pass too kindly is refused
// here.
#include "messaging/http/request_parser.hpp"

#include "messaging/http/body_decoder.hpp"

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace di::http {

namespace beast = boost::beast;

namespace {

/// [bytes] of empty lines before a request that are forgiven (RFC 9112 2.2).
constexpr std::size_t empty_line_bytes_max = 16;
/// [bytes] reserved for a body at once; Content-Length is only a promise.
constexpr std::size_t body_reserve_bytes_max = 64u << 10;

/// Beast's parser, writing into a request.
class beast_parser final : public beast::http::basic_parser<true> {
public:
  using error_code = beast::error_code;
  using text = beast::string_view;

  beast_parser(request& into, std::size_t fields_max) : into_{into}, fields_max_{fields_max} {
    eager(false);
    body_limit(std::numeric_limits<std::uint64_t>::max());   // check_framing() judges lengths
    header_limit(std::numeric_limits<std::uint32_t>::max()); // head_scanner counts
  }

private:
  void on_request_impl(beast::http::verb, text method, text target, int version,
                       error_code&) override {
    into_.method.assign(method.data(), method.size());
    into_.target.assign(target.data(), target.size());
    into_.minor = static_cast<unsigned>(version % 10);
  }
  void on_response_impl(int, text, int, error_code&) override {}
  void on_field_impl(beast::http::field, text name, text value, error_code& ec) override {
    if (++fields_ > fields_max_)
      ec = beast::http::make_error_code(beast::http::error::header_limit);
    else
      into_.headers.add(std::string{name.data(), name.size()},
                        std::string{value.data(), value.size()});
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(text, error_code&) override { return 0; }
  void on_chunk_header_impl(std::uint64_t, text, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, text, error_code&) override { return 0; }
  void on_finish_impl(error_code&) override {}

  request& into_;
  std::size_t fields_max_;
  std::size_t fields_ = 0;
};

} // namespace

using step = request_parser::step;

struct request_parser::impl {
  http::limits bounds;
  bool length_required = false;
  request message;
  parse_refusal refusal;
  std::optional<head_scanner> scanner;
  body_decoder body = body_decoder::of_length(0);
  bool head_done = false, expects_continue = false;
  std::size_t empty_line_bytes = 0;

  step refuse(int status, std::string code, std::string detail) {
    refusal = {status, std::move(code), std::move(detail)};
    return step::refused;
  }
  step feed_head(std::string_view input, std::size_t& consumed);
  step take_head(std::string_view head);
  step head_error(std::string_view head, const beast::error_code& error);
  step check_framing(std::optional<std::uint64_t> length);
  step check_target();
  step feed_body(std::string_view input, std::size_t& consumed);
};

request_parser::request_parser() : impl_{std::make_unique<impl>()} {
}
request_parser::~request_parser() = default;

void request_parser::begin(const limits& bounds, bool length_required) {
  impl& m = *impl_;
  m.bounds = bounds;
  m.length_required = length_required;
  m.message = request{};
  m.refusal = {};
  m.scanner.emplace(bounds);
  m.head_done = m.expects_continue = false;
  m.empty_line_bytes = 0;
}

request& request_parser::message() noexcept {
  return impl_->message;
}
const parse_refusal& request_parser::refusal() const noexcept {
  return impl_->refusal;
}
bool request_parser::head_done() const noexcept {
  return impl_->head_done;
}
bool request_parser::expects_continue() const noexcept {
  return impl_->expects_continue;
}
bool request_parser::keeps_alive() const noexcept {
  const request& m = impl_->message;
  return m.minor == 0 ? m.headers.has_token("connection", "keep-alive")
                      : !m.headers.has_token("connection", "close");
}
bool request_parser::has_body() const noexcept {
  return impl_->head_done && !impl_->body.done();
}

step request_parser::feed(std::string_view input, std::size_t& consumed) {
  consumed = 0;
  return impl_->head_done ? impl_->feed_body(input, consumed) : impl_->feed_head(input, consumed);
}

step request_parser::impl::feed_head(std::string_view input, std::size_t& consumed) {
  while (!scanner->begun() && input.starts_with("\r\n")) {
    input.remove_prefix(2);
    consumed += 2;
    if ((empty_line_bytes += 2) > empty_line_bytes_max)
      return refuse(400, "bad_request_line", "only empty lines where a request should begin");
  }
  if (input.empty() || (!scanner->begun() && input == "\r"))
    return step::need_more;
  switch (scanner->scan(input)) {
  case head_scanner::state::more:
    return step::need_more;
  case head_scanner::state::refused:
    refusal = scanner->refusal();
    return step::refused;
  case head_scanner::state::whole:
    break;
  }
  consumed += scanner->bytes();
  return take_head(input.substr(0, scanner->bytes()));
}

step request_parser::impl::take_head(std::string_view head) {
  beast_parser parser{message, bounds.header_fields};
  beast::error_code error;
  std::size_t at = 0;
  while (at < head.size() && !parser.is_header_done() && !error)
    at += parser.put({head.data() + at, head.size() - at}, error);
  if (error || !parser.is_header_done() || at != head.size())
    return head_error(head, error);
  if (const step s = check_target(); s == step::refused)
    return s;
  const auto length = parser.content_length();
  if (const step s = check_framing(length ? std::optional{*length} : std::nullopt);
      s == step::refused)
    return s;
  head_done = true;
  return step::head;
}

step request_parser::impl::head_error(std::string_view head, const beast::error_code& error) {
  if (!message.target.empty())
    (void)check_target(); // so that the refusal's body can have the shape of its path
  const auto line = head.substr(0, head.find('\r'));
  const auto version = line.substr(line.rfind(' ') + 1);
  using e = beast::http::error;
  if (error == e::bad_version && version.size() == 8 && version.starts_with("HTTP/")
      && std::count(line.begin(), line.end(), ' ') == 2)
    return refuse(505, "bad_version", fmt::format("{} is not spoken here; HTTP/1.1 is", version));
  if (error == e::bad_method || error == e::bad_target || error == e::bad_version)
    return refuse(400, "bad_request_line", "the first line is not METHOD TARGET HTTP/1.1");
  if (error == e::bad_content_length)
    return refuse(400, "bad_content_length",
                  "Content-Length is no number, differs, or stands beside Transfer-Encoding");
  if (error == e::bad_transfer_encoding)
    return refuse(400, "bad_transfer_encoding",
                  "Transfer-Encoding comes twice or beside Content-Length");
  return refuse(400, "bad_header",
                fmt::format("a header field is malformed ({})", error.message()));
}

/// The length of the body must be beyond doubt (RFC 9112 6.1 and 6.3), the host named once.
step request_parser::impl::check_framing(std::optional<std::uint64_t> length) {
  const auto& h = message.headers;
  const auto lengths = h.count("content-length"), codings = h.count("transfer-encoding");
  if (lengths > 1 || h.get("content-length").find(',') != std::string_view::npos)
    return refuse(400, "bad_content_length", "Content-Length comes more than once");
  if (codings > 1 || (codings == 1 && lengths == 1))
    return refuse(400, "bad_transfer_encoding",
                  "Transfer-Encoding comes twice or beside Content-Length");
  if (codings == 1 && message.minor == 0)
    return refuse(400, "bad_transfer_encoding", "Transfer-Encoding in an HTTP/1.0 request");
  const bool chunked = codings == 1;
  if (chunked && !same_name(h.get("transfer-encoding"), "chunked"))
    return refuse(501, "unknown_transfer_coding", "the only transfer coding known is chunked");
  if (h.count("host") > 1 || (message.minor > 0 && !h.has("host")))
    return refuse(400, "bad_host", "an HTTP/1.1 request has exactly one Host field");
  message.length_given = lengths == 1 || chunked;
  const auto& m = message.method;
  if (!message.length_given && (length_required || message.minor == 0)
      && (m == "POST" || m == "PUT" || m == "PATCH"))
    return refuse(411, "length_required", fmt::format("{} needs a Content-Length", m));
  if (length && *length > bounds.body_bytes)
    return refuse(
        413, "body_too_large",
        fmt::format("the body has {} bytes, at most {} are taken", *length, bounds.body_bytes));
  if (const auto expected = h.find("expect"); expected && message.minor > 0) {
    if (!same_name(*expected, "100-continue") || h.count("expect") > 1)
      return refuse(417, "bad_expectation", "the only expectation known is 100-continue");
    expects_continue = true;
  }
  body = chunked ? body_decoder::of_chunks(bounds) : body_decoder::of_length(length.value_or(0));
  message.body.reserve(static_cast<std::size_t>(
      std::min<std::uint64_t>(length.value_or(0), body_reserve_bytes_max)));
  return step::head;
}

step request_parser::impl::check_target() {
  std::string_view t = message.target;
  const auto bad = [&](std::string_view why) {
    return refuse(400, "bad_target", fmt::format("the request target {}", why));
  };
  if (message.method == "CONNECT")
    return refuse(501, "no_proxy", "CONNECT is not served: this is no proxy");
  if (std::any_of(t.begin(), t.end(), [](char c) { return c <= 0x20 || c >= 0x7f || c == '#'; }))
    return bad("holds a character that must be percent-encoded");
  for (const std::string_view scheme : {"http://", "https://"})
    if (same_name(t.substr(0, scheme.size()), scheme)) {
      const auto path = t.find_first_of("/?", scheme.size());
      t = path == t.npos ? std::string_view{"/"} : t.substr(path);
      break;
    }
  const auto question = t.find('?');
  message.query = question == t.npos ? std::string{} : std::string{t.substr(question + 1)};
  auto path = percent_decode(t.substr(0, question));
  if (!path)
    return bad("holds a broken percent escape");
  if (path->find('\0') != std::string::npos)
    return bad("holds a NUL");
  if (path->empty() && question == 0)
    path = "/";
  if (!path->starts_with('/') && !(*path == "*" && message.method == "OPTIONS"))
    return bad("does not begin with '/'");
  message.path = std::move(*path);
  return step::head;
}

step request_parser::impl::feed_body(std::string_view input, std::size_t& consumed) {
  switch (body.feed(input, consumed, message)) {
  case body_decoder::state::more:
    return step::need_more;
  case body_decoder::state::whole:
    return step::done;
  case body_decoder::state::refused:
    break;
  }
  refusal = body.refusal();
  return step::refused;
}

} // namespace di::http
