// SPDX-License-Identifier: Apache-2.0
// How a request or a rank wants to speculate: off, fixed:N or varlen. The spelling of the topology
// key roles.decode.speculation, of `dilaunch run --speculation` and of a prompt line's field.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace di::engine {

/// Drafts per sequence and step at most. The checkpoint's block size is the tighter bound.
inline constexpr std::uint32_t drafts_max = 16;

enum class speculation_mode : std::uint8_t {
  off,    ///< no drafts
  fixed,  ///< `drafts` are verified for every sequence in every step
  varlen, ///< as many as the model of costs says, none included
};

struct speculation_choice {
  speculation_mode mode = speculation_mode::off;
  std::uint32_t drafts = 0; ///< fixed: 1 to drafts_max; else 0
  friend bool operator==(const speculation_choice&, const speculation_choice&) = default;
};

/// "off", "fixed:5", "varlen". @errors bad_argument, with what is allowed and the nearest word
result<speculation_choice> parse_speculation(std::string_view text);
std::string to_string(const speculation_choice& choice);

/// One number for wire formats: 0 off, 1 to drafts_max fixed, -1 varlen.
std::int32_t speculation_code(const speculation_choice& choice) noexcept;
/// @errors bad_argument
result<speculation_choice> speculation_from_code(std::int32_t code);

} // namespace di::engine
