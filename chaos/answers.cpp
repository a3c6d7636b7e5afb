// SPDX-License-Identifier: Apache-2.0
#include "chaos/answers.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace di::chaos {
namespace {

using nlohmann::json;

void read_choice(const json& c, std::uint64_t request, std::uint32_t index, answer& into) {
  stream s;
  s.request = request;
  s.choice = index;
  if (c.contains("ids"))
    s.ids = c.at("ids").get<std::vector<std::int64_t>>();
  if (c.contains("error") && into.error.empty())
    into.error = c.at("error").value("code", "unknown");
  if (c.contains("timings")) {
    const json& t = c.at("timings");
    s.attempts = t.value("attempts", 1U);
    s.submitted_ms = t.value("submitted_ms", 0.0);
    if (t.contains("token_ms"))
      s.token_ms = t.at("token_ms").get<std::vector<double>>();
    if (t.contains("ranks"))
      for (const json& pair : t.at("ranks"))
        s.served_by.emplace_back(pair.at(0).get<std::uint32_t>(), pair.at(1).get<std::uint32_t>());
  }
  into.streams.push_back(std::move(s));
}

} // namespace

result<std::vector<answer>> read_answers(std::string_view lines) {
  std::vector<answer> out;
  for (std::size_t number = 1; !lines.empty(); ++number) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view text = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    try {
      json j = json::parse(text);
      answer a;
      a.id = j.at("id").is_number() ? j.at("id").get<std::uint64_t>() : 0;
      if (j.contains("error"))
        a.error = j.at("error").value("code", "unknown");
      if (j.contains("choices"))
        for (const json& c : j.at("choices"))
          read_choice(c, a.id, c.value("index", 0U), a);
      else
        read_choice(j, a.id, 0, a);
      j.erase("timings");
      if (j.contains("choices"))
        for (json& c : j.at("choices"))
          c.erase("timings");
      a.canonical = j.dump();
      out.push_back(std::move(a));
    } catch (const json::exception& e) {
      return fail(ec::bad_format, "answer line {}: {}", number, e.what());
    }
  }
  return out;
}

} // namespace di::chaos
