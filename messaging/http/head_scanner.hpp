// SPDX-License-Identifier: Apache-2.0
// Finds the end of a request's header while it arrives, and refuses early what no header can be.
// Pure.
#pragma once

#include "messaging/http/options.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace di::http {

/// Why a request is refused.
struct parse_refusal {
  int status = 400;
  std::string code;
  std::string detail;
};

/// Looks at each byte once, however the header is cut into pieces.
class head_scanner {
public:
  explicit head_scanner(const limits& bounds) : bounds_{bounds} {}

  enum class state { more, whole, refused };
  /// @param head all bytes of the header that are there, from its first one
  state scan(std::string_view head);
  /// @pre whole. [bytes] of the header with its empty line.
  std::size_t bytes() const noexcept { return line_begin_; }
  /// @pre refused
  const parse_refusal& refusal() const noexcept { return refusal_; }
  bool begun() const noexcept { return scanned_ > 0; }

private:
  state refuse(int status, std::string code, std::string detail);
  state check_line(std::string_view line);
  state check_prefix(std::string_view head);

  limits bounds_;
  parse_refusal refusal_;
  std::size_t line_begin_ = 0; ///< where the line under way begins
  std::size_t scanned_ = 0;
  std::size_t lines_ = 0;
};

} // namespace di::http
