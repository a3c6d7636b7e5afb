// SPDX-License-Identifier: Apache-2.0
// answer_recipe as JSON, version 1.
#include "engine/chat/answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

namespace di::engine {
namespace {

constexpr int version = 1;
constexpr std::array<std::string_view, 4> api_words{"completions", "chat", "responses", "messages"};
constexpr std::array<std::string_view, 5> stage_words{
    "answer", "reasoning", "reasoning_continuation", "answer_continuation", "tool_calls"};

// Takes fields out of an object and remembers the first that is missing or of another type.
class recipe_reader {
public:
  explicit recipe_reader(const json& object) : object_{object} {}

  template <class T>
  void take(const char* key, T& out) {
    const auto found = object_.find(key);
    if (found == object_.end())
      return note(key, "is missing");
    if (!fits<T>(*found))
      return note(key, "has another type");
    out = found->get<T>();
  }

  template <class Enum, std::size_t N>
  void take_word(const char* key, const std::array<std::string_view, N>& words, Enum& out) {
    std::string word;
    take(key, word);
    for (std::size_t i = 0; i < N; ++i)
      if (words[i] == word) {
        out = static_cast<Enum>(i);
        return;
      }
    note(key, "is no known word");
  }

  const std::string& problem() const noexcept { return problem_; }

private:
  template <class T>
  static bool fits(const json& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value.is_boolean();
    } else if constexpr (std::is_same_v<T, std::string>) {
      return value.is_string();
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) {
               return v.is_string();
             });
    } else if constexpr (std::is_same_v<T, json>) {
      return value.is_object() || value.is_null();
    } else if constexpr (std::is_unsigned_v<T>) {
      return value.is_number_unsigned()
             && value.get<std::uint64_t>() <= std::numeric_limits<T>::max();
    } else {
      return value.is_number_integer() && value.get<std::int64_t>() >= std::numeric_limits<T>::min()
             && value.get<std::int64_t>() <= std::numeric_limits<T>::max();
    }
  }

  void note(const char* key, std::string_view what) {
    if (problem_.empty())
      problem_ = fmt::format("field `{}` {}", key, what);
  }

  const json& object_;
  std::string problem_;
};

json parsing_json(const parse_options& p) {
  json out{{"begins", stage_words[static_cast<std::size_t>(p.begins)]},
           {"tool_calls", p.tool_calls},
           {"json", p.json},
           {"thinking", p.thinking},
           {"stop", p.stop},
           {"include_stop", p.include_stop},
           {"strict", p.strict},
           {"plain", p.plain}};
  if (p.one_call) // notes of earlier builds have no such field
    out["one_call"] = true;
  return out;
}

void read_parsing(const json& object, parse_options& p, std::string& problem) {
  recipe_reader in{object};
  in.take_word("begins", stage_words, p.begins);
  in.take("tool_calls", p.tool_calls);
  in.take("json", p.json);
  in.take("thinking", p.thinking);
  in.take("stop", p.stop);
  in.take("include_stop", p.include_stop);
  in.take("strict", p.strict);
  in.take("plain", p.plain);
  if (object.contains("one_call"))
    in.take("one_call", p.one_call);
  problem = in.problem();
}

} // namespace

std::string answer_recipe::to_json() const {
  const json out{{"v", version},
                 {"protocol", api_words[static_cast<std::size_t>(protocol)]},
                 {"id", id},
                 {"model", model},
                 {"fingerprint", fingerprint},
                 {"created", created},
                 {"parsing", parsing_json(parsing)},
                 {"include_usage", include_usage},
                 {"n", n},
                 {"top_logprobs", top_logprobs},
                 {"seed", seed},
                 {"echo_text", echo_text},
                 {"custom_tools", custom_tools},
                 {"echo", echo}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

result<answer_recipe> answer_recipe::from_json(std::string_view text) {
  const json in = json::parse(text, nullptr, false);
  if (!in.is_object())
    return fail(ec::bad_format, "answer recipe of {} bytes is no JSON object", text.size());
  answer_recipe out;
  std::int64_t found = 0;
  recipe_reader fields{in};
  fields.take("v", found);
  if (!fields.problem().empty() || found != version)
    return fail(ec::bad_format, "answer recipe has version {}, this build reads {}", found,
                version);
  fields.take_word("protocol", api_words, out.protocol);
  fields.take("id", out.id);
  fields.take("model", out.model);
  fields.take("fingerprint", out.fingerprint);
  fields.take("created", out.created);
  fields.take("include_usage", out.include_usage);
  fields.take("n", out.n);
  fields.take("top_logprobs", out.top_logprobs);
  fields.take("seed", out.seed);
  fields.take("echo_text", out.echo_text);
  fields.take("custom_tools", out.custom_tools);
  fields.take("echo", out.echo);
  json parsing;
  fields.take("parsing", parsing);
  std::string problem = fields.problem();
  if (problem.empty())
    read_parsing(parsing, out.parsing, problem);
  if (!problem.empty())
    return fail(ec::bad_format, "answer recipe: {}", problem);
  if (out.n == 0)
    return fail(ec::bad_format, "answer recipe: field `n` is 0");
  return out;
}

} // namespace di::engine
