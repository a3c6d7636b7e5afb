// SPDX-License-Identifier: Apache-2.0
// Random model outputs full of markers, and what must hold for every one of them.
#pragma once

#include "tests/support/answer_client.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace di::engine::testing {

/// A model output and how it is read.
struct answer_case {
  answer_recipe recipe;
  std::string text;
  answer_end why = answer_end::stop;
};

/// Makes a case from numbers: `below(n)` gives one in [0, n).
inline answer_case make_answer_case(const std::function<std::size_t(std::size_t)>& below) {
  static constexpr std::array<std::string_view, 38> parts{
      "a",
      " word",
      "\n",
      "\n\n",
      "漢字",
      "😀",
      "\"",
      "\\",
      "{",
      "}",
      "[1, 2]",
      "{\"k\": \"v\"}",
      ":",
      "<",
      "</",
      "<｜",
      "｜DSML",
      "</think>",
      "<think>",
      "<｜DSML｜",
      "</｜DSML｜",
      "<｜DSML｜ calls>\n",
      "</｜DSML｜ calls>",
      "<｜DSML｜ invoke name=\"f\">\n",
      "</｜DSML｜ invoke>\n",
      "<｜DSML｜ parameter name=\"a\" string=\"true\">",
      "<｜DSML｜ parameter name=\"b\" string=\"false\">",
      "<｜DSML｜ parameter name=\"c\">",
      "<｜DSML｜ parameter name=\"x \"y\" string=\"yes\">",
      "</｜DSML｜ parameter>\n",
      "```json\n",
      "```",
      "\n```",
      "END",
      "EN",
      "<｜end▁of▁sentence｜>",
      "<｜User｜>",
      "\x01"};
  answer_case out;
  out.recipe.id = "id";
  out.recipe.seed = below(1000);
  out.recipe.protocol = static_cast<api>(below(4));
  parse_options& p = out.recipe.parsing;
  p.begins = static_cast<start_stage>(below(5));
  p.thinking = p.begins == start_stage::reasoning;
  p.tool_calls = below(3) > 0 || p.begins == start_stage::tool_calls;
  p.json = below(4) == 0;
  if (below(2) == 0)
    p.stop = {"END", "\n\n\n", "字"};
  out.why = below(4) == 0 ? answer_end::length : answer_end::stop;
  for (std::size_t i = below(24); i > 0; --i)
    out.text += parts[below(parts.size())];
  return out;
}

/// The text cut at characters.
inline std::vector<std::string> cut_text(const std::string& text,
                                         const std::function<std::size_t(std::size_t)>& below) {
  std::vector<std::string> out;
  const std::size_t most = 1 + below(12);
  std::size_t left = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && left-- == 0) {
      out.emplace_back();
      left = below(most);
    }
    out.back() += text[i];
  }
  return out;
}

/// The whole answer without what counts chunks of text.
inline json without_usage(json final) {
  final.erase("usage");
  return final;
}

/// What does not hold for the case; empty: all does.
///
/// Joined deltas are the whole answer; every cut gives the same; arguments are JSON objects; tokens
/// give the same events however they are grouped. @param cuts  how many are tried
inline std::string broken_rule(const answer_case& c, const tokenizer& words,
                               const std::function<std::size_t(std::size_t)>& below, int cuts = 3) {
  const auto recipe = std::make_shared<const answer_recipe>(c.recipe);
  const api protocol = c.recipe.protocol;
  const auto same = [&](const client_view& streamed, const client_view& whole) {
    client_view a = streamed;
    client_view b = whole;
    for (client_view* v : {&a, &b})
      for (client_view::call& call : v->calls)
        if (protocol == api::messages)
          call.arguments = json::parse(call.arguments, nullptr, false).dump();
    return a == b;
  };
  answer_stream whole{recipe, &words};
  const client_view view = client_of(protocol, stream_text(whole, {c.text}, c.why));
  const json final = without_usage(whole.final());
  if (!view.problem.empty())
    return view.problem;
  if (!same(view, client_of_final(protocol, whole.final())))
    return "joined deltas are not the whole answer";
  for (const client_view::call& call : view.calls)
    if (!json::parse(call.arguments, nullptr, false).is_object())
      return "arguments are no object: " + call.arguments;
  for (int i = 0; i < cuts; ++i) {
    answer_stream again{recipe, &words};
    const client_view other =
        client_of(protocol, stream_text(again, cut_text(c.text, below), c.why));
    if (!other.problem.empty())
      return other.problem;
    if (!(other == view) || without_usage(again.final()) != final)
      return "another cut gives another answer";
  }
  const auto ids = words.encode(c.text, encode_mode::full);
  if (!ids)
    return ids.error().what;
  answer_stream single{recipe, &words};
  const answer_events events = stream_tokens(single, *ids, 1, c.why);
  if (!same(client_of(protocol, events), client_of_final(protocol, single.final())))
    return "joined deltas of tokens are not the whole answer";
  answer_stream grouped{recipe, &words};
  const answer_events others = stream_tokens(grouped, *ids, 1 + below(9), c.why);
  if (events.size() != others.size() || single.final() != grouped.final())
    return "another grouping of tokens gives other events";
  for (std::size_t i = 0; i < events.size(); ++i)
    if (events[i].data != others[i].data)
      return "another grouping of tokens gives another event";
  return {};
}

} // namespace di::engine::testing
