// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/conversation.hpp"

#include <algorithm>
#include <array>

namespace di::engine {
namespace {

constexpr std::string_view bos = "<｜begin▁of▁sentence｜>", eos = "<｜end▁of▁sentence｜>",
                           system_token = "<｜System｜>", user_token = "<｜User｜>",
                           assistant_token = "<｜Assistant｜>",
                           reminder_token = "<｜latest_reminder｜>", think_open = "<think>",
                           think_close = "</think>", dsml = "｜DSML｜",
                           image_token = "<｜deepseek_image｜>";

// Spellings that stay special inside what the assistant wrote.
constexpr std::array<std::string_view, 8> grounding = {
    "<｜ref｜>",   "<｜/ref｜>",   "<｜box｜>",     "<｜/box｜>",
    "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>"};
constexpr std::array<std::string_view, 3> template_tokens = {dsml, think_open, think_close};

constexpr std::string_view tools_head =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜@calls>" block like the following:

<｜DSML｜@calls>
<｜DSML｜@invoke name="$TOOL_NAME">
<｜DSML｜@parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜@parameter>
...
</｜DSML｜@invoke>
<｜DSML｜@invoke name="$TOOL_NAME2">
...
</｜DSML｜@invoke>
</｜DSML｜@calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view tools_tail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";
constexpr std::string_view format_head =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

constexpr std::string_view v4_high =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in "
    "your thinking and comprehensively decompose the problem to resolve the root cause, rigorously "
    "stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\nExplicitly write out your entire deliberation process, documenting every "
    "intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no "
    "assumption is left unchecked.\n\n";
constexpr std::string_view v4_max =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST "
    "reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the problem into its most fundamental components, trace every causal chain to its "
    "root, and resolve the underlying cause rather than any surface symptom.\nDo not stop "
    "reasoning until you have independently verified the solution from multiple angles and are "
    "certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

/// What differs between the encodings.
struct dialect {
  prompt_encoding encoding;
  std::string_view gap;   // between the marker and a name
  std::string_view calls; // name of the block of calls
  exponent_form exponents;
  bool v41() const { return encoding == prompt_encoding::v41; }
};
constexpr dialect v41{prompt_encoding::v41, " ", "calls", exponent_form::python};
constexpr dialect v4{prompt_encoding::v4, "", "tool_calls", exponent_form::shortest};

/// Appends to a list of segments; neighbouring plain texts become one.
class segment_writer {
public:
  explicit segment_writer(std::vector<prompt_segment>& out) : out_{&out} {}

  void special(std::string_view token) { out_->push_back({true, std::string{token}}); }

  bool ends_with(std::string_view token) const {
    return !out_->empty() && out_->back().special && out_->back().text == token;
  }

  void plain(std::string_view text) {
    if (text.empty())
      return;
    if (out_->empty() || out_->back().special)
      out_->push_back({false, {}});
    out_->back().text += text;
  }

  /// Text in which some spellings are special.
  template <class Tokens>
  void marked(std::string_view text, const Tokens& tokens) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '<' && text[at] != dsml.front())
        continue;
      const auto token = std::find_if(tokens.begin(), tokens.end(), [&](std::string_view t) {
        return text.compare(at, t.size(), t) == 0;
      });
      if (token == tokens.end())
        continue;
      plain(text.substr(done, at - done));
      special(*token);
      at += token->size() - 1;
      done = at + 1;
    }
    plain(text.substr(done));
  }

private:
  std::vector<prompt_segment>* out_;
};

/// Renders one conversation.
class conversation_writer {
public:
  conversation_writer(const conversation& talk, const dialect& words,
                      std::vector<prompt_segment>& segments, std::vector<prompt_image>& images)
      : talk_{talk}, words_{words}, out_{segments}, images_{images} {}

  void write() {
    out_.special(bos);
    leading_system();
    const auto& messages = talk_.messages;
    std::size_t at = has_leading_message() ? 1 : 0;
    for (bool open = true; at < messages.size(); ++at) {
      const chat_message& message = messages[at];
      const bool of_user = message.role == chat_role::user || message.role == chat_role::tool;
      if (message.role == chat_role::system && !words_.v41())
        continue; // stands in front
      // V4 puts no line feeds behind an empty beginning of a turn.
      if (of_user && !open && (words_.v41() || !out_.ends_with(user_token)))
        out_.plain("\n\n");

      if (of_user && open)
        out_.special(user_token);
      open = !of_user;
      write_message(message);
    }
    if (!continued())
      generation_header();
  }

private:
  bool has_leading_message() const {
    return !talk_.messages.empty() && talk_.messages.front().role == chat_role::system;
  }
  bool has_tools() const { return !talk_.tools.empty(); }
  bool continued() const { return !talk_.messages.empty() && talk_.messages.back().prefix; }

  void effort_line() {
    if (!talk_.thinking)
      return;
    if (!words_.v41()) {
      if (talk_.effort == effort_level::max)
        out_.plain(v4_max);
      else if (talk_.effort != effort_level::low)
        out_.plain(v4_high);
      return;
    }
    const std::uint32_t level = talk_.effort_number > 0             ? talk_.effort_number
                                : talk_.effort == effort_level::low ? 50
                                : talk_.effort == effort_level::max ? 100
                                                                    : 75;
    out_.plain(fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more "
                           "thorough the reasoning)\n\n",
                           level));
  }

  void leading_system() {
    if (talk_.bare)
      return;
    if (words_.v41()
        && (has_leading_message() || talk_.thinking || has_tools() || talk_.format_text))
      out_.special(system_token);
    effort_line();
    if (words_.v41() && has_leading_message())
      parts(talk_.messages.front());
    if (!words_.v41())
      all_system_messages();
    if (has_tools())
      tools_part();
    if (talk_.format_text) {
      out_.plain("\n\n");
      out_.plain(format_head);
      out_.plain(*talk_.format_text);
    }
  }

  void all_system_messages() {
    bool first = true;
    for (const chat_message& message : talk_.messages) {
      if (message.role != chat_role::system)
        continue;
      if (!first)
        out_.plain("\n\n");
      first = false;
      parts(message);
    }
  }

  // The sample uses @ where a name of the encoding stands behind the marker.
  std::string in_dialect(std::string_view text) const {
    std::string out;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '@') {
        out += text[at];
        continue;
      }
      out += words_.gap;
      if (text.substr(at + 1, 5) == "calls") {
        out += words_.calls;
        at += 5;
      }
    }
    return out;
  }

  void tools_part() {
    out_.plain("\n\n");
    out_.marked(in_dialect(tools_head), template_tokens);
    bool first = true;
    for (const tool_definition& tool : talk_.tools) {
      if (tool.deferred || (!talk_.shown_tool.empty() && tool.name != talk_.shown_tool))
        continue;
      if (!first)
        out_.plain("\n");
      first = false;
      out_.plain("{\"name\": ");
      out_.plain(prompt_json(tool.name));
      out_.plain(", \"description\": ");
      out_.plain(prompt_json(tool.description.value_or("")));
      out_.plain(", \"parameters\": ");
      out_.plain(tool.parameters ? prompt_json(*tool.parameters, words_.exponents) : "{}");
      out_.plain("}");
    }
    out_.plain(tools_tail);
  }

  void parts(const chat_message& message) {
    bool first = true;
    for (const content_part& part : message.parts) {
      if (!first)
        out_.plain("\n\n");
      first = false;
      if (!part.image) {
        out_.plain(part.text);
      } else if (words_.v41()) {
        out_.special(image_token);
        images_.push_back(*part.image);
      } else {
        out_.plain("[Unsupported Image]");
      }
    }
  }

  void write_message(const chat_message& message) {
    switch (message.role) {
    case chat_role::system:
      out_.special(system_token);
      return parts(message);
    case chat_role::user:
      return parts(message);
    case chat_role::tool:
      out_.plain("<tool_result>");
      parts(message);
      return out_.plain("</tool_result>");
    case chat_role::latest_reminder:
      out_.special(reminder_token);
      return parts(message);
    case chat_role::assistant:
      return assistant(message);
    }
  }

  void assistant(const chat_message& message) {
    out_.special(assistant_token);
    const std::string text = joined_text(message);
    if (talk_.thinking && (has_tools() || message.prefix)) {
      out_.special(think_open);
      out_.marked(message.reasoning.value_or(""), grounding);
      if (message.prefix && text.empty())
        return;
    }
    out_.special(think_close);
    out_.marked(text, grounding);
    if (!message.calls.empty())
      calls(message);
    if (!message.prefix)
      out_.special(eos);
  }

  void tag(std::string_view before, std::string_view name) {
    out_.plain(before);
    out_.special(dsml);
    out_.plain(words_.gap);
    out_.plain(name);
  }

  void calls(const chat_message& message) {
    out_.plain("\n\n");
    tag("<", words_.calls);
    out_.plain(">\n");
    for (const call_of_history& call : message.calls) {
      tag("<", "invoke");
      out_.plain(" name=\"");
      out_.plain(call.name);
      out_.plain("\">\n");
      if (parameters(call) || words_.v41())
        out_.plain("\n"); // V4.1 leaves an empty line where no parameter stands
      tag("</", "invoke");
      out_.plain(">\n");
    }
    tag("</", words_.calls);
    out_.plain(">");
  }

  // Returns whether there was one.
  bool parameters(const call_of_history& call) {
    const json* object = nullptr;
    result<json> parsed = json{};
    if (call.object) {
      object = &*call.object;
    } else {
      chat_json_limits limits;
      limits.repeated = repeated_keys::keep_last;
      parsed = parse_chat_json(call.arguments, limits);
      if (parsed.ok())
        object = &*parsed;
    }
    if (object == nullptr || !object->is_object()) {
      parameter("arguments", true, call.arguments);
      return true;
    }
    bool first = true;
    for (const auto& [key, value] : *object->get_ptr<const json::object_t*>()) {
      if (!first)
        out_.plain("\n");
      first = false;
      if (value.is_string())
        parameter(key, true, *value.get_ptr<const std::string*>());
      else
        parameter(key, false, prompt_json(value, words_.exponents));
    }
    return !first;
  }

  void parameter(std::string_view name, bool is_string, std::string_view value) {
    tag("<", "parameter");
    out_.plain(" name=\"");
    out_.plain(name);
    out_.plain(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    out_.plain(value);
    tag("</", "parameter");
    out_.plain(">");
  }

  void generation_header() {
    out_.special(assistant_token);
    out_.special(talk_.thinking ? think_open : think_close);
    if (!talk_.forced_call)
      return;
    out_.plain("\n\n");
    tag("<", words_.calls);
    out_.plain(">\n");
  }

  const conversation& talk_;
  const dialect& words_;
  segment_writer out_;
  std::vector<prompt_image>& images_;
};

} // namespace

void render_conversation(const conversation& talk, prompt_encoding encoding,
                         std::vector<prompt_segment>& segments, std::vector<prompt_image>& images) {
  conversation_writer{talk, encoding == prompt_encoding::v4 ? v4 : v41, segments, images}.write();
}

start_stage start_of_answer(const conversation& talk) {
  if (talk.forced_call)
    return start_stage::tool_calls;
  if (!talk.thinking)
    return start_stage::answer;
  if (talk.messages.empty() || !talk.messages.back().prefix)
    return start_stage::reasoning;
  return joined_text(talk.messages.back()).empty() ? start_stage::reasoning_continuation
                                                   : start_stage::answer_continuation;
}

std::string joined_text(const chat_message& message) {
  std::string out;
  bool first = true;
  for (const content_part& part : message.parts) {
    if (!first)
      out += "\n\n";
    first = false;
    out += part.text;
  }
  return out;
}

} // namespace di::engine
