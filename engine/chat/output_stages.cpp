// SPDX-License-Identifier: Apache-2.0
// What the output parser looks for in each of its stages.
#include "engine/chat/output_parser.hpp"

#include <utility>

namespace di::engine {
namespace {

constexpr std::string_view think_end_spelling = "</think>";
constexpr std::string_view dsml_spelling = "｜DSML｜";

} // namespace

void output_parser::stage_markers::add(marker m, action a) {
  set.add(std::move(m));
  actions.push_back(a);
}

marker output_parser::dsml(std::string_view before, std::string_view after,
                           const marker_tokens& tokens) const {
  marker m;
  m.text(before);
  if (tokens.dsml)
    m.special(*tokens.dsml, dsml_spelling);
  else
    m.text(dsml_spelling);
  return m.text(after);
}

// Stop strings come first: their index in the stage is their index in the request.
void output_parser::add_stops(stage_markers& to) const {
  for (const std::string& s : options_.stop)
    to.add(marker{}.text(s), action::stop);
}

void output_parser::prepare_text_stages(const marker_tokens& tokens) {
  marker think_end;
  if (tokens.think_end)
    think_end.special(*tokens.think_end, think_end_spelling);
  else
    think_end.text(think_end_spelling);
  const marker block = dsml("<", "", tokens).with_newlines();

  stage_markers& reasoning = of(stage::reasoning);
  reasoning.add(marker{think_end}.with_newlines(), action::end_reasoning);
  if (options_.tool_calls)
    reasoning.add(block, action::open_block);

  add_stops(of(stage::answer));
  if (options_.plain)
    return;
  of(stage::answer).add(think_end, action::remove);
  if (options_.tool_calls)
    of(stage::answer).add(block, action::open_block);
  if (!options_.json)
    return;

  stage_markers& search = of(stage::json_search);
  add_stops(search);
  search.add(think_end, action::remove);
  search.add(marker{}.text("```json\n"), action::fence);
  search.add(marker{}.text("```\n"), action::fence);
  search.add(marker{}.text("{"), action::bracket);
  search.add(marker{}.text("["), action::bracket);
  for (const stage inside : {stage::json_bare, stage::json_fenced}) {
    add_stops(of(inside));
    of(inside).add(marker{}.text("\n```"), action::end_document);
    if (!options_.strict)
      of(inside).add(think_end, action::remove);
    if (!options_.strict && options_.tool_calls)
      of(inside).add(block, action::open_block);
  }
  if (options_.tool_calls) {
    search.add(block, action::open_block);
    of(stage::json_after).add(block, action::open_block);
  }
}

void output_parser::prepare_tool_stages(const marker_tokens& tokens) {
  if (!options_.tool_calls)
    return;
  const marker end = dsml("</", "", tokens);
  // Once a block is open its tags count with or without their marker, as in the reference.
  of(stage::calls).add(marker{}.text("invoke name=\""), action::open_call);
  of(stage::call).add(marker{}.text("parameter name="), action::open_parameter);
  if (!options_.strict)
    for (const std::string_view rest : {" invoke name=\"", "invoke name=\""})
      of(stage::call).add(dsml("<", rest, tokens), action::next_call);
  of(stage::calls).add(end, action::end_block);
  of(stage::call).add(end, action::end_call);
  of(stage::name).add(marker{}.text("\""), action::end_name);
  of(stage::text_value).add(end, action::end_value);
  of(stage::other_value).add(end, action::end_value);
  if (options_.strict) {
    of(stage::key).add(marker{}.text(" "), action::end_key);
    of(stage::attribute).add(marker{}.text("\"true\">"), action::text_value);
    of(stage::attribute).add(marker{}.text("\"false\">"), action::json_value);
    return;
  }
  of(stage::header).add(marker{}.text("\" string=\"true\">"), action::text_value);
  of(stage::header).add(marker{}.text("\" string=\"false\">"), action::json_value);
  of(stage::header).add(marker{}.text("\">"), action::bare_value);
  of(stage::header).add(end, action::end_value);
}

} // namespace di::engine
