// SPDX-License-Identifier: Apache-2.0
// JSON in and out of a chat.
#include "launch/chat/chat_text.hpp"

#include <nlohmann/json.hpp>

namespace di::launch {
namespace {

using nlohmann::json;

constexpr const char* dim = "\033[2m";
constexpr const char* usual = "\033[0m";
constexpr std::size_t words_max = 600;

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// A string of an object; empty if it is not one.
std::string text_of(const json& j, const char* field) {
  const auto found = j.is_object() ? j.find(field) : j.end();
  return j.is_object() && found != j.end() && found->is_string() ? found->get<std::string>()
                                                                 : std::string{};
}

std::uint64_t number_of(const json& j, const char* field) {
  const auto found = j.is_object() ? j.find(field) : j.end();
  return j.is_object() && found != j.end() && found->is_number_unsigned()
             ? found->get<std::uint64_t>()
             : 0;
}

} // namespace

std::string chat_body(const chat_settings& with, const std::vector<chat_turn>& turns) {
  json messages = json::array();
  if (!with.system.empty())
    messages.push_back({{"role", "system"}, {"content", with.system}});
  for (const auto& [role, text] : turns)
    messages.push_back({{"role", role}, {"content", text}});
  json j{{"model", with.model},
         {"messages", std::move(messages)},
         {"stream", true},
         {"stream_options", {{"include_usage", true}}},
         {"thinking", {{"type", with.thinking ? "enabled" : "disabled"}}}};
  if (with.thinking && !with.effort.empty())
    j["reasoning_effort"] = with.effort;
  if (with.temperature)
    j["temperature"] = *with.temperature;
  if (with.max_tokens)
    j["max_tokens"] = *with.max_tokens;
  if (with.seed)
    j["seed"] = *with.seed;
  return dump(j);
}

result<std::string> first_model(std::string_view body) {
  const auto j = json::parse(body, nullptr, false);
  if (j.is_object() && j.contains("data") && j["data"].is_array() && !j["data"].empty())
    if (auto id = text_of(j["data"][0], "id"); !id.empty())
      return id;
  return fail(ec::bad_format, "the server names no model; --model says which one");
}

std::string error_words(int status, std::string_view body) {
  const auto j = json::parse(body, nullptr, false);
  std::string what;
  if (j.is_object() && j.contains("error"))
    what = j["error"].is_string() ? j["error"].get<std::string>() : text_of(j["error"], "message");
  if (what.empty())
    what = std::string{body};
  return fmt::format("HTTP {}: {}", status, plain_text(what).substr(0, words_max));
}

std::string plain_text(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too: C2 80 to C2 9F.
    if (c == 0xC2 && i + 1 < text.size()
        && (static_cast<unsigned char>(text[i + 1]) & 0xE0U) == 0x80)
      ++i;
    else if ((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t')
      out += text[i];
  }
  return out;
}

void chat_view::enter(part next, std::string& out) {
  if (next == part_)
    return;
  if (part_ == part::reasoning && reasoning_)
    out += colours_ ? fmt::format("{}{}", usual, last_ == '\n' ? "" : "\n")
                    : fmt::format("{}[/thinking]\n", last_ == '\n' ? "" : "\n");
  else if (part_ != part::nothing && last_ != '\n')
    out += '\n';
  part_ = next;
  last_ = '\n';
  if (next == part::reasoning && reasoning_)
    out += colours_ ? dim : "[thinking]\n";
}

result<std::string> chat_view::take(const sse_message& m) {
  if (m.data == "[DONE]") {
    done_ = true;
    return std::string{};
  }
  const auto j = json::parse(m.data, nullptr, false);
  if (!j.is_object())
    return fail(ec::bad_format, "an event that is no JSON: {}", plain_text(m.data).substr(0, 80));
  if (j.contains("error") && !j["error"].is_null())
    return fail(ec::unavailable, "{}",
                error_words(200, m.data).substr(std::size("HTTP 200: ") - 1));
  if (const auto found = j.find("usage"); found != j.end() && found->is_object()) {
    prompt_ = number_of(*found, "prompt_tokens");
    output_ = number_of(*found, "completion_tokens");
    if (found->contains("prompt_tokens_details"))
      cached_ = number_of((*found)["prompt_tokens_details"], "cached_tokens");
  }
  std::string out;
  if (!j.contains("choices") || !j["choices"].is_array() || j["choices"].empty())
    return out;
  const json& choice = j["choices"][0];
  if (!choice.is_object())
    return out;
  const json delta = choice.value("delta", json::object());
  auto thought = text_of(delta, "reasoning_content");
  if (thought.empty())
    thought = text_of(delta, "reasoning");
  const auto say = [&](part where, const std::string& text, bool shown) {
    if (text.empty())
      return;
    enter(where, out);
    const auto plain = plain_text(text);
    if (!shown || plain.empty())
      return;
    out += plain;
    last_ = plain.back();
  };
  say(part::reasoning, thought, reasoning_);
  const auto text = text_of(delta, "content");
  say(part::answer, text, true);
  answer_ += text;
  if (delta.is_object() && delta.contains("tool_calls") && delta["tool_calls"].is_array())
    for (const json& call : delta["tool_calls"]) {
      const json function = call.is_object() ? call.value("function", json::object()) : json{};
      if (const auto name = text_of(function, "name"); !name.empty())
        say(part::tools, fmt::format("{}{} ", last_ == '\n' ? "" : "\n", name), true);
      say(part::tools, text_of(function, "arguments"), true);
    }
  if (const auto reason = text_of(choice, "finish_reason"); !reason.empty())
    reason_ = reason;
  return out;
}

std::string chat_view::finish() {
  std::string out;
  enter(part::nothing, out);
  return out;
}

} // namespace di::launch
