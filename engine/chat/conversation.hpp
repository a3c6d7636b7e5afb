// SPDX-License-Identifier: Apache-2.0
// The one form that the requests of all protocols are turned into before they are rendered.
#pragma once

#include "engine/chat/json.hpp"
#include "engine/chat/prepared.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine {

enum class chat_role : std::uint8_t { system, user, assistant, tool, latest_reminder };

/// A part of a message: text, or one image.
struct content_part {
  std::string text;
  std::optional<prompt_image> image; ///< text is empty if set
};

/// A call in the history. `arguments` is the text that the client sent.
struct call_of_history {
  std::string id;
  std::string name;
  std::string arguments;
  std::optional<json> object; ///< the arguments as a value, if the protocol carries one
};

/// One message of a conversation, of any role.
struct chat_message {
  chat_role role = chat_role::user;
  std::vector<content_part> parts;      ///< joined by two line feeds; none: the empty text
  bool content_given = true;            ///< assistant: false if null or missing
  std::optional<std::string> reasoning; ///< assistant
  std::vector<call_of_history> calls;   ///< assistant
  bool calls_given = false;             ///< assistant: the list is there, maybe empty
  std::string call_id;                  ///< tool: which call it answers
  bool prefix = false;                  ///< the answer goes on from this message
};

struct tool_definition {
  std::string name;
  std::optional<std::string> description;
  std::optional<json> parameters; ///< none: no parameters
  std::optional<bool> strict;
  bool deferred = false; ///< not shown in the prompt
};

/// A conversation that is checked and can be rendered.
struct conversation {
  std::vector<chat_message> messages;
  std::vector<tool_definition> tools; ///< none if the tool choice is none; strict ones normalised
  bool thinking = true;
  effort_level effort = effort_level::high;
  std::uint32_t effort_number = 0;        ///< [1, 100] of the effort line; 0: that of `effort`
  bool forced_call = false;               ///< the answer begins inside a tool block
  std::string shown_tool;                 ///< only this tool is shown; empty: all
  std::optional<std::string> format_text; ///< JSON of the response format part
  bool bare = false;                      ///< no message at all: not even the effort line
};

/// The prompt of a conversation, and its images in prompt order.
///
/// @source   prompt encoding specification, sections 1-4 (V4.1) and 8 (V4)
void render_conversation(const conversation& talk, prompt_encoding encoding,
                         std::vector<prompt_segment>& segments, std::vector<prompt_image>& images);

/// Where the answer to a conversation begins.
start_stage start_of_answer(const conversation& talk);

/// The text parts of a message, joined as in the prompt; images leave their place empty.
std::string joined_text(const chat_message& message);

} // namespace di::engine
