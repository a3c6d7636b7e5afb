// SPDX-License-Identifier: Apache-2.0
// Text forms of the ids that clients see.
#include "launch/serve/public_id.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

namespace di::serve {
namespace {

using engine::api;

constexpr std::array<std::pair<api, std::string_view>, 4> prefixes{{{api::chat, "chatcmpl-"},
                                                                    {api::completions, "cmpl-"},
                                                                    {api::responses, "resp_"},
                                                                    {api::messages, "msg_"}}};
constexpr std::size_t choices_max = 1'024;

std::optional<std::uint64_t> number(std::string_view text, int base) {
  std::uint64_t read = 0;
  const auto* end = text.data() + text.size();
  const auto [at, err] = std::from_chars(text.data(), end, read, base);
  if (text.empty() || err != std::errc{} || at != end)
    return std::nullopt;
  return read;
}

} // namespace

std::string public_id::text() const {
  for (const auto& [which, prefix] : prefixes)
    if (which == protocol)
      return fmt::format("{}{:016x}{:016x}", prefix, request.v, secret);
  return {};
}

std::optional<public_id> public_id::parse(std::string_view text) {
  for (const auto& [which, prefix] : prefixes) {
    if (!text.starts_with(prefix) || text.size() != prefix.size() + 32)
      continue;
    const auto request = number(text.substr(prefix.size(), 16), 16);
    const auto secret = number(text.substr(prefix.size() + 16), 16);
    if (request && secret)
      return public_id{which, request_id{*request}, *secret};
  }
  return std::nullopt;
}

std::string event_id::text() const {
  auto out = answer.text() + ':';
  for (std::size_t i = 0; i < seen.size(); ++i)
    out += fmt::format("{}{}", i == 0 ? "" : ",", seen[i]);
  if (tail > 0)
    out += fmt::format(",t{}", tail);
  return out;
}

std::optional<event_id> event_id::parse(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos)
    return std::nullopt;
  const auto answer = public_id::parse(text.substr(0, colon));
  if (!answer)
    return std::nullopt;
  event_id made{*answer, {}, 0};
  auto rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const auto word = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    const bool tail = word.starts_with('t');
    const auto count = number(tail ? word.substr(1) : word, 10);
    if (!count || made.tail > 0 || made.seen.size() >= choices_max)
      return std::nullopt;
    if (tail)
      made.tail = *count;
    else
      made.seen.push_back(*count);
  }
  return made;
}

} // namespace di::serve
