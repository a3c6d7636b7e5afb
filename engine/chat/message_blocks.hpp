// SPDX-License-Identifier: Apache-2.0
// Messages of the Messages protocol: blocks in, texts, calls and tool results out.
#pragma once

#include "engine/chat/request_draft.hpp"

namespace di::engine {

/// One message of a body: its texts, and the tool results in front of them.
struct message_blocks {
  chat_message message;
  std::vector<chat_message> results; ///< in the order given
  std::size_t leading_results = 0;   ///< of them: those before any other block
  bool others = false;               ///< a block that is no tool result was seen
  bool empty_list = false;
  bool thinking_of_user = false;
};

/// Reads one message of a body.
message_blocks read_message_blocks(const json& value, const body_place& at, std::size_t index,
                                   const request_context& context);

/// The rules of messages: content, images, and a result for every call right behind it.
void check_blocks(std::vector<message_blocks>& all, const request_context& context);

} // namespace di::engine
