// SPDX-License-Identifier: Apache-2.0
// Ids that clients see, and what they give back: ids of answers and of the events of a stream.
#pragma once

#include "engine/chat/parse_options.hpp"
#include "messaging/base/ids.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::serve {

/// `chatcmpl-`, `cmpl-`, `resp_` or `msg_`, 16 hexadecimal digits of the request, 16 of a secret
/// that only its client and its note know: nobody finds the request of another by counting.
struct public_id {
  engine::api protocol = engine::api::chat;
  request_id request;
  std::uint64_t secret = 0;

  std::string text() const;
  static std::optional<public_id> parse(std::string_view text);
  friend bool operator==(const public_id&, const public_id&) = default;
};

/// `<public id>:<events of choice 0>,<of choice 1>,...[,t<events after the last choice>]`: what a
/// client that sends it has seen.
struct event_id {
  public_id answer;
  std::vector<std::uint64_t> seen; ///< [choices]
  std::uint64_t tail = 0;          ///< events that belong to no choice

  std::string text() const;
  static std::optional<event_id> parse(std::string_view text);
};

} // namespace di::serve
