// SPDX-License-Identifier: Apache-2.0
// Status line and header fields of an answer as bytes.
#include "messaging/http/answer_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>

namespace di::http {

namespace {

bool token(std::string_view name) noexcept {
  return !name.empty() && std::all_of(name.begin(), name.end(), token_char);
}

bool of_server(std::string_view name) noexcept {
  for (const std::string_view own :
       {"content-length", "transfer-encoding", "connection", "date", "keep-alive", "trailer"})
    if (same_name(name, own))
      return true;
  return false;
}

} // namespace

std::string_view reason_phrase(int status) noexcept {
  switch (status) {
  case 100:
    return "Continue";
  case 200:
    return "OK";
  case 201:
    return "Created";
  case 202:
    return "Accepted";
  case 204:
    return "No Content";
  case 301:
    return "Moved Permanently";
  case 302:
    return "Found";
  case 304:
    return "Not Modified";
  case 307:
    return "Temporary Redirect";
  case 308:
    return "Permanent Redirect";
  case 400:
    return "Bad Request";
  case 401:
    return "Unauthorized";
  case 402:
    return "Payment Required";
  case 403:
    return "Forbidden";
  case 404:
    return "Not Found";
  case 405:
    return "Method Not Allowed";
  case 406:
    return "Not Acceptable";
  case 408:
    return "Request Timeout";
  case 409:
    return "Conflict";
  case 410:
    return "Gone";
  case 411:
    return "Length Required";
  case 412:
    return "Precondition Failed";
  case 413:
    return "Content Too Large";
  case 414:
    return "URI Too Long";
  case 415:
    return "Unsupported Media Type";
  case 416:
    return "Range Not Satisfiable";
  case 417:
    return "Expectation Failed";
  case 422:
    return "Unprocessable Content";
  case 425:
    return "Too Early";
  case 429:
    return "Too Many Requests";
  case 431:
    return "Request Header Fields Too Large";
  case 499:
    return "Client Closed Request";
  case 500:
    return "Internal Server Error";
  case 501:
    return "Not Implemented";
  case 502:
    return "Bad Gateway";
  case 503:
    return "Service Unavailable";
  case 504:
    return "Gateway Timeout";
  case 505:
    return "HTTP Version Not Supported";
  case 529:
    return "Site Overloaded";
  default:
    return "Unknown";
  }
}

std::string_view http_date() {
  thread_local std::time_t made_at = 0;
  thread_local char text[32] = {};
  const std::time_t now = std::time(nullptr);
  if (now != made_at) {
    std::tm t{};
    ::gmtime_r(&now, &t);
    constexpr const char* days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    *fmt::format_to_n(text, sizeof text - 1, "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
                      days[t.tm_wday], t.tm_mday, months[t.tm_mon], t.tm_year + 1900, t.tm_hour,
                      t.tm_min, t.tm_sec)
         .out = 0;
    made_at = now;
  }
  return text;
}

void append_head(std::string& out, int status, const header_list& headers, framing body,
                 std::size_t length, bool keep_alive, bool old_client) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\nDate: {}\r\n", status,
                 reason_phrase(status), http_date());
  for (const auto& [name, value] : headers) {
    if (!token(name) || of_server(name))
      continue;
    out += name;
    out += ": ";
    for (const char c : value)
      out.push_back((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f ? ' ' : c);
    out += "\r\n";
  }
  if (body == framing::length)
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", length);
  else if (body == framing::chunked)
    out += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive)
    out += "Connection: close\r\n";
  else if (old_client)
    out += "Connection: keep-alive\r\n";
  out += "\r\n";
}

} // namespace di::http
