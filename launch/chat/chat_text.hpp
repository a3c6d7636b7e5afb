// SPDX-License-Identifier: Apache-2.0
// What a chat shows and sends: JSON of requests, and text for the terminal out of the chunks of an
// answer. Pure.
#pragma once

#include "launch/chat/sse_reader.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::launch {

struct chat_settings {
  std::string model, system;
  bool thinking = true;
  std::string effort; ///< empty: the server's default
  std::optional<double> temperature;
  std::optional<std::uint32_t> max_tokens;
  std::optional<std::uint64_t> seed;
};

struct chat_turn {
  std::string role, text;
};

/// Body of POST /v1/chat/completions, streamed, with usage.
std::string chat_body(const chat_settings& with, const std::vector<chat_turn>& turns);

/// First id of GET /v1/models. @errors bad_format
result<std::string> first_model(std::string_view body);

/// "HTTP 400: what the server says"; takes error bodies of OpenAI's and Anthropic's shape, and
/// none.
std::string error_words(int status, std::string_view body);

/// Text that cannot steer a terminal: control characters but newline and tab are left out.
std::string plain_text(std::string_view text);

/// Turns the chunks of one streamed answer into text.
class chat_view {
public:
  /// @param colours  reasoning is dimmed with escape sequences; without, it is shown between lines
  /// "[thinking]" and "[/thinking]"  @param reasoning  shown at all
  chat_view(bool colours, bool reasoning) : colours_{colours}, reasoning_{reasoning} {}

  /// @return text to print now. @errors bad_format (no JSON), unavailable (an error of the server)
  result<std::string> take(const sse_message& m);
  /// What is missing at the end: colours off, a line's end.
  std::string finish();

  const std::string& answer() const noexcept { return answer_; } ///< without reasoning
  bool done() const noexcept { return done_; }                   ///< [DONE] came
  const std::string& reason() const noexcept { return reason_; } ///< finish_reason
  std::uint64_t prompt_tokens() const noexcept { return prompt_; }
  std::uint64_t output_tokens() const noexcept { return output_; }
  std::uint64_t cached_tokens() const noexcept { return cached_; }

private:
  enum class part : std::uint8_t { nothing, reasoning, answer, tools };
  void enter(part next, std::string& out);

  bool colours_, reasoning_, done_ = false;
  part part_ = part::nothing;
  std::string answer_, reason_;
  char last_ = '\n';
  std::uint64_t prompt_ = 0, output_ = 0, cached_ = 0;
};

} // namespace di::launch
