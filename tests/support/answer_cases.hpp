// SPDX-License-Identifier: Apache-2.0
// Random model outputs full of markers, and what must hold for every one of them.
#pragma once

#include "messaging/base/utf8.hpp"
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
  p.one_call = below(4) == 3;
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

/// Whether two views are the same. Arguments of Messages count as JSON: the whole answer has them
/// as an object.
inline bool same_view(api protocol, client_view a, client_view b) {
  if (protocol == api::messages)
    for (client_view* v : {&a, &b})
      for (client_view::call& call : v->calls)
        call.arguments = json::parse(call.arguments, nullptr, false).dump();
  return a == b;
}

/// What does not hold for the case as text; empty: all does.
///
/// Joined deltas are the whole answer; every cut gives the same; arguments are JSON objects.
/// @param cuts  how many are tried
inline std::string broken_in_text(const answer_case& c, const tokenizer& words,
                                  const std::function<std::size_t(std::size_t)>& below, int cuts) {
  const auto recipe = std::make_shared<const answer_recipe>(c.recipe);
  const api protocol = c.recipe.protocol;
  answer_stream whole{recipe, &words};
  const client_view view = client_of(protocol, stream_text(whole, {c.text}, c.why));
  if (!view.problem.empty())
    return view.problem;
  const json shown = whole.final();
  if (!same_view(protocol, view, client_of_final(protocol, shown)))
    return "joined deltas are not the whole answer";
  for (const client_view::call& call : view.calls)
    if (!json::parse(call.arguments, nullptr, false).is_object())
      return "arguments are no object: " + call.arguments;
  const json final = without_usage(shown);
  for (int i = 0; i < cuts; ++i) {
    answer_stream again{recipe, &words};
    const client_view other =
        client_of(protocol, stream_text(again, cut_text(c.text, below), c.why));
    if (!other.problem.empty())
      return other.problem;
    if (!(other == view) || without_usage(again.final()) != final)
      return "another cut gives another answer";
  }
  return {};
}

/// What does not hold for the case as tokens; empty: all does.
///
/// Joined deltas are the whole answer; no character is shown in halves; the events are the same
/// however the tokens are grouped.
inline std::string broken_in_tokens(const answer_case& c, const tokenizer& words,
                                    const std::function<std::size_t(std::size_t)>& below) {
  const auto recipe = std::make_shared<const answer_recipe>(c.recipe);
  const api protocol = c.recipe.protocol;
  const auto ids = words.encode(c.text, encode_mode::full);
  if (!ids)
    return ids.error().what;
  answer_stream single{recipe, &words};
  const answer_events events = stream_tokens(single, *ids, 1, c.why);
  const client_view view = client_of(protocol, events);
  if (!view.problem.empty())
    return view.problem;
  const json shown = single.final();
  if (!same_view(protocol, view, client_of_final(protocol, shown)))
    return "joined deltas of tokens are not the whole answer";
  std::string all = view.reasoning + view.content;
  for (const client_view::call& call : view.calls)
    all += call.name + call.arguments;
  if (all.find(utf8_replacement) != std::string::npos
      && c.text.find(utf8_replacement) == std::string::npos)
    return "half a character is shown";
  answer_stream grouped{recipe, &words};
  const answer_events others = stream_tokens(grouped, *ids, 2 + below(8), c.why);
  if (events.size() != others.size() || shown != grouped.final())
    return "another grouping of tokens gives other events";
  for (std::size_t i = 0; i < events.size(); ++i)
    if (events[i].name != others[i].name || events[i].data != others[i].data)
      return "another grouping of tokens gives another event";
  return {};
}

/// Both. @param cuts  of the text, how many are tried
inline std::string broken_rule(const answer_case& c, const tokenizer& words,
                               const std::function<std::size_t(std::size_t)>& below, int cuts = 3) {
  std::string broken = broken_in_text(c, words, below, cuts);
  return broken.empty() ? broken_in_tokens(c, words, below) : broken;
}

} // namespace di::engine::testing
