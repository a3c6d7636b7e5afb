// SPDX-License-Identifier: Apache-2.0
// Spelling of speculation choices.
#include "engine/core/speculation_choice.hpp"

#include <charconv>

namespace di::engine {

result<speculation_choice> parse_speculation(std::string_view text) {
  if (text == "off")
    return speculation_choice{};
  if (text == "varlen")
    return speculation_choice{speculation_mode::varlen, 0};
  constexpr std::string_view fixed = "fixed:";
  if (text.substr(0, fixed.size()) == fixed) {
    const std::string_view digits = text.substr(fixed.size());
    std::uint32_t n = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (code == std::errc{} && end == digits.data() + digits.size() && n >= 1 && n <= drafts_max)
      return speculation_choice{speculation_mode::fixed, n};
  }
  return fail(ec::bad_argument, "{} is not known; choose off, fixed:N (N from 1 to {}) or varlen",
              text.empty() ? "the empty word" : text.substr(0, 64), drafts_max);
}

std::string to_string(const speculation_choice& choice) {
  switch (choice.mode) {
  case speculation_mode::off:
    return "off";
  case speculation_mode::fixed:
    return fmt::format("fixed:{}", choice.drafts);
  case speculation_mode::varlen:
    return "varlen";
  }
  DI_UNREACHABLE();
}

std::int32_t speculation_code(const speculation_choice& choice) noexcept {
  if (choice.mode == speculation_mode::varlen)
    return -1;
  return choice.mode == speculation_mode::fixed ? static_cast<std::int32_t>(choice.drafts) : 0;
}

result<speculation_choice> speculation_from_code(std::int32_t code) {
  if (code == -1)
    return speculation_choice{speculation_mode::varlen, 0};
  if (code < 0 || code > static_cast<std::int32_t>(drafts_max))
    return fail(ec::bad_argument, "{} drafts, choose from -1 (varlen) to {}", code, drafts_max);
  if (code == 0)
    return speculation_choice{};
  return speculation_choice{speculation_mode::fixed, static_cast<std::uint32_t>(code)};
}

} // namespace di::engine
