// SPDX-License-Identifier: Apache-2.0
// The body of a request.
#include "messaging/http/body_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::http {

namespace {

/// [bytes] of one chunk's size line with its extensions, which nobody needs.
constexpr std::size_t size_line_bytes_max = 4u << 10;
/// More digits than any length has, leading zeros included.
constexpr std::size_t size_digits_max = 16;

bool control(char c) noexcept {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
}

} // namespace

body_decoder body_decoder::of_length(std::uint64_t bytes) {
  body_decoder d;
  d.left_ = bytes;
  d.phase_ = bytes > 0 ? phase::data : phase::done;
  return d;
}

body_decoder body_decoder::of_chunks(const limits& bounds) {
  body_decoder d;
  d.bounds_ = bounds;
  d.phase_ = phase::size_line;
  return d;
}

body_decoder::state body_decoder::refuse(int status, std::string code, std::string detail) {
  refusal_ = {status, std::move(code), std::move(detail)};
  return state::refused;
}

body_decoder::state body_decoder::feed(std::string_view input, std::size_t& consumed,
                                       request& into) {
  const auto begin = input.size();
  const auto take = [&](std::size_t bytes) {
    input.remove_prefix(bytes);
    consumed = begin - input.size();
  };
  while (phase_ != phase::done && !input.empty()) {
    if (phase_ == phase::data || phase_ == phase::chunk) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, input.size()));
      into.body.append(input.substr(0, n));
      take(n);
      if ((left_ -= n) == 0)
        phase_ = phase_ == phase::data ? phase::done : phase::chunk_end;
      continue;
    }
    const bool trailers = phase_ == phase::trailers;
    const auto most = trailers
                          ? bounds_.header_bytes - std::min(trailer_bytes_, bounds_.header_bytes)
                      : phase_ == phase::chunk_end ? 2
                                                   : size_line_bytes_max;
    const auto end = input.substr(0, most).find('\n');
    if (end == input.npos) {
      if (input.size() < most)
        return state::more;
      return phase_ == phase::chunk_end
                 ? refuse(400, "bad_chunk", "a chunk is longer than its size line says")
                 : refuse(431, "header_too_large",
                          "a chunk's size line or the trailers are too long");
    }
    if (end == 0 || input[end - 1] != '\r')
      return refuse(400, "bad_chunk", "a line of the chunked body ends without CR");
    const auto line = input.substr(0, end - 1);
    if (std::any_of(line.begin(), line.end(), control))
      return refuse(400, "bad_chunk", "control character between chunks");
    state next = state::more;
    if (trailers)
      next = trailer(line, into);
    else if (phase_ == phase::chunk_end)
      phase_ = phase::size_line; // an empty line: it had no room for more
    else
      next = size_line(line, into);
    if (next == state::refused)
      return next;
    take(end + 1);
  }
  return done() ? state::whole : state::more;
}

body_decoder::state body_decoder::size_line(std::string_view line, const request& into) {
  std::uint64_t size = 0;
  std::size_t digits = 0;
  for (; digits < line.size(); ++digits) {
    const char c = line[digits];
    const int value = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (value < 0)
      break;
    size = size * 16 + static_cast<std::uint64_t>(value);
  }
  auto extension = line.substr(digits);
  while (!extension.empty() && (extension[0] == ' ' || extension[0] == '\t'))
    extension.remove_prefix(1);
  if (digits == 0 || digits > size_digits_max
      || (extension.size() < line.size() - digits && extension.empty())
      || (!extension.empty() && extension[0] != ';'))
    return refuse(400, "bad_chunk", "a chunk does not begin with its size in hexadecimal");
  if (size > bounds_.body_bytes - std::min(into.body.size(), bounds_.body_bytes))
    return refuse(413, "body_too_large",
                  fmt::format("the body has more than {} bytes", bounds_.body_bytes));
  left_ = size;
  phase_ = size > 0 ? phase::chunk : phase::trailers;
  return state::more;
}

body_decoder::state body_decoder::trailer(std::string_view line, request& into) {
  if (line.empty()) {
    phase_ = phase::done;
    return state::whole;
  }
  trailer_bytes_ += line.size() + 2;
  const auto colon = line.find(':');
  const auto name = line.substr(0, colon);
  if (colon == line.npos || name.empty() || !std::all_of(name.begin(), name.end(), token_char))
    return refuse(400, "bad_trailer", "a trailer field is malformed");
  for (const std::string_view framing : {"content-length", "transfer-encoding", "host"})
    if (same_name(name, framing))
      return refuse(400, "bad_trailer", fmt::format("{} in the trailers", framing));
  if (into.headers.size() + into.trailers.size() >= bounds_.header_fields)
    return refuse(431, "too_many_headers",
                  fmt::format("more than {} fields with the trailers", bounds_.header_fields));
  into.trailers.add(std::string{name}, std::string{trimmed(line.substr(colon + 1))});
  return state::more;
}

} // namespace di::http
