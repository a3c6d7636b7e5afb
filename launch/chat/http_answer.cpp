// SPDX-License-Identifier: Apache-2.0
// Reading an answer part by part.
#include "launch/chat/http_answer.hpp"

#include <algorithm>
#include <charconv>

namespace di::launch {
namespace {

std::string lower(std::string_view text) {
  std::string out{text};
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

} // namespace

std::string_view http_answer::header(const std::string& name) const {
  const auto found = headers_.find(name);
  return found == headers_.end() ? std::string_view{} : found->second;
}

bool http_answer::take_line(std::string& line) {
  const auto end = held_.find('\n');
  if (end == std::string::npos)
    return false;
  line = std::string{trimmed(std::string_view{held_}.substr(0, end))};
  held_.erase(0, end + 1);
  return true;
}

result<void> http_answer::read_head() {
  std::string line;
  take_line(line);
  const auto blank = line.find(' ');
  const auto code =
      blank == std::string::npos ? std::string_view{} : std::string_view{line}.substr(blank + 1, 3);
  const auto read = std::from_chars(code.data(), code.data() + code.size(), status_);
  if (!line.starts_with("HTTP/1.") || read.ec != std::errc{} || status_ < 100 || status_ > 999)
    return fail(ec::bad_format, "no HTTP answer: {}", line.substr(0, 80));
  headers_.clear();
  while (take_line(line) && !line.empty()) {
    const auto colon = line.find(':');
    if (colon == std::string::npos)
      return fail(ec::bad_format, "no header: {}", line.substr(0, 80));
    headers_.emplace(lower(line.substr(0, colon)),
                     std::string{trimmed(std::string_view{line}.substr(colon + 1))});
  }
  if (status_ < 200)
    return {}; // the final one follows
  const auto length = header("content-length");
  if (lower(header("transfer-encoding")).find("chunked") != std::string::npos) {
    part_ = part::chunk_size;
  } else if (status_ == 204 || status_ == 304) {
    part_ = part::done;
  } else if (!length.empty()) {
    const auto n = std::from_chars(length.data(), length.data() + length.size(), left_);
    if (n.ec != std::errc{} || n.ptr != length.data() + length.size())
      return fail(ec::bad_format, "Content-Length: {}", length.substr(0, 40));
    part_ = left_ == 0 ? part::done : part::sized;
  } else {
    part_ = part::to_end;
  }
  return {};
}

/// Goes one part on. @return false: more bytes are needed, or nothing is left to do
result<bool> http_answer::step(std::string& body) {
  std::string line;
  switch (part_) {
  case part::head: {
    const auto rn = held_.find("\r\n\r\n"), n = held_.find("\n\n");
    if (std::min(rn, n) == std::string::npos)
      return false;
    DI_TRY_VOID(read_head());
    return true;
  }
  case part::sized:
  case part::chunk: {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, held_.size()));
    body.append(held_, 0, n);
    held_.erase(0, n);
    left_ -= n;
    if (left_ == 0)
      part_ = part_ == part::chunk ? part::chunk_end : part::done;
    return left_ == 0;
  }
  case part::chunk_size: {
    if (!take_line(line))
      return false;
    const auto size = std::string_view{line}.substr(0, line.find_first_of("; \t"));
    const auto n = std::from_chars(size.data(), size.data() + size.size(), left_, 16);
    if (size.empty() || n.ec != std::errc{} || n.ptr != size.data() + size.size())
      return fail(ec::bad_format, "no chunk size: {}", line.substr(0, 40));
    part_ = left_ == 0 ? part::trailer : part::chunk;
    return true;
  }
  case part::chunk_end:
    if (!take_line(line))
      return false;
    if (!line.empty())
      return fail(ec::bad_format, "bytes behind a chunk: {}", line.substr(0, 40));
    part_ = part::chunk_size;
    return true;
  case part::trailer:
    if (!take_line(line))
      return false;
    if (line.empty())
      part_ = part::done;
    return true;
  case part::to_end:
    body.append(std::exchange(held_, {}));
    return false;
  case part::done:
    held_.clear();
    return false;
  }
  return false;
}

result<void> http_answer::feed(std::string_view bytes, std::string& body) {
  held_ += bytes;
  for (bool more = true; more;) {
    DI_TRY(more, step(body));
  }
  if (held_.size() > head_bytes_max)
    return fail(ec::limit_exceeded, "an answer's header of more than {} bytes", head_bytes_max);
  return {};
}

result<void> http_answer::close() {
  if (part_ == part::to_end)
    part_ = part::done;
  if (part_ != part::done)
    return fail(ec::bad_format, "the connection ended inside the answer");
  return {};
}

} // namespace di::launch
