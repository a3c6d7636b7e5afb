// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 answer as it arrives, cut anywhere: status, headers, body. Pure.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace di::launch {

/// Reads one final answer; 1xx answers before it are skipped. Bytes behind it are ignored.
class http_answer {
public:
  static constexpr std::size_t head_bytes_max = 64U << 10U; ///< headers, and one chunk-size line

  /// Takes bytes and appends what of them is body (without transfer coding) to `body`.
  /// @errors bad_format, limit_exceeded
  result<void> feed(std::string_view bytes, std::string& body);
  /// The connection was closed. @errors bad_format: in the middle of the answer
  result<void> close();

  bool done() const noexcept { return part_ == part::done; }
  int status() const noexcept { return status_; } ///< of the newest head; 0: none came yet
  /// Empty if there is none. @param name in lower case
  std::string_view header(const std::string& name) const;

private:
  enum class part : std::uint8_t {
    head,
    sized,
    chunk_size,
    chunk,
    chunk_end,
    trailer,
    to_end,
    done
  };
  result<void> read_head();
  result<bool> step(std::string& body);
  bool take_line(std::string& line);

  part part_ = part::head;
  int status_ = 0;
  std::map<std::string, std::string> headers_; ///< names in lower case
  std::string held_;                           ///< not looked at yet
  std::uint64_t left_ = 0;                     ///< [bytes] of the body or chunk
};

} // namespace di::launch
