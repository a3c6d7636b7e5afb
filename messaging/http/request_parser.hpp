// SPDX-License-Identifier: Apache-2.0
// Bytes -> requests, one after the other. Pure: no socket, no clock. Stricter than its parser
// (Beast): what two readers could understand differently is refused.
#pragma once

#include "messaging/http/head_scanner.hpp"
#include "messaging/http/options.hpp"
#include "messaging/http/request.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace di::http {

/// Reads one request; begin() makes it ready for the next.
class request_parser {
public:
  enum class step : std::uint8_t {
    need_more, ///< all that could be used is consumed; bring the rest again with more behind it
    head,      ///< the header is complete: message() has all but the body
    done,      ///< message() is whole
    refused,   ///< see refusal(); nothing more can be read from this client
  };

  request_parser();
  ~request_parser();
  request_parser(const request_parser&) = delete;
  request_parser& operator=(const request_parser&) = delete;

  void begin(const limits& bounds, bool length_required);

  /// Takes bytes from the front of `input`, which begins with what the last call left.
  /// @param consumed [bytes] that must not be brought again
  step feed(std::string_view input, std::size_t& consumed);

  request& message() noexcept;
  const parse_refusal& refusal() const noexcept;
  bool head_done() const noexcept;
  /// The client waits for `100 Continue` before it sends the body.
  bool expects_continue() const noexcept;
  /// The request as such allows another one after it.
  bool keeps_alive() const noexcept;
  /// The header announced a body.
  bool has_body() const noexcept;

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace di::http
