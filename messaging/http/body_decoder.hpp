// SPDX-License-Identifier: Apache-2.0
// The body of a request: so many bytes, or chunks with trailers (RFC 9112 7.1). Pure; decides the
// same however the bytes are cut. Beast's own decoder is not used: its verdict on chunk extensions
// depends on what stands behind them in the buffer.
#pragma once

#include "messaging/http/head_scanner.hpp"
#include "messaging/http/request.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace di::http {

class body_decoder {
public:
  enum class state : std::uint8_t { more, whole, refused };

  /// A body of `bytes`.
  static body_decoder of_length(std::uint64_t bytes);
  static body_decoder of_chunks(const limits& bounds);

  bool done() const noexcept { return phase_ == phase::done; }

  /// Takes bytes from the front of `input` into body and trailers of `into`.
  /// @param consumed [bytes] that must not be brought again
  state feed(std::string_view input, std::size_t& consumed, request& into);
  /// @pre refused
  const parse_refusal& refusal() const noexcept { return refusal_; }

private:
  enum class phase : std::uint8_t { data, size_line, chunk, chunk_end, trailers, done };

  state refuse(int status, std::string code, std::string detail);
  state size_line(std::string_view line, const request& into);
  state trailer(std::string_view line, request& into);

  limits bounds_;
  phase phase_ = phase::data;
  std::uint64_t left_ = 0;        ///< [bytes] of the body or of the chunk
  std::size_t trailer_bytes_ = 0; ///< so far, with line ends
  parse_refusal refusal_;
};

} // namespace di::http
