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

marker output_parser::dsml(std::string_view before, std::string_view after) const {
  marker m;
  m.text(before);
  if (tokens_.dsml)
    m.special(*tokens_.dsml, dsml_spelling);
  else
    m.text(dsml_spelling);
  return m.text(after);
}

marker output_parser::think_end() const {
  return tokens_.think_end ? marker{}.special(*tokens_.think_end, think_end_spelling)
                           : marker{}.text(think_end_spelling);
}

// Stop strings come first: their index in the stage is their index in the request.
void output_parser::add_stops(stage_markers& to) const {
  for (const std::string& s : options_.stop)
    to.add(marker{}.text(s), action::stop);
}

void output_parser::add_block(stage_markers& to) const {
  if (options_.tool_calls)
    to.add(dsml("<", "").with_newlines(), action::open_block);
}

output_parser::stage_markers& output_parser::markers() {
  stage_markers& m = stages_[static_cast<std::size_t>(stage_)];
  if (!m.built) {
    m.built = true;
    build_text_stage(m);
    build_tool_stage(m);
  }
  return m;
}

void output_parser::build_text_stage(stage_markers& m) const {
  switch (stage_) {
  case stage::reasoning:
    m.add(think_end().with_newlines(), action::end_reasoning);
    return add_block(m);
  case stage::answer:
    add_stops(m);
    if (options_.plain)
      return;
    m.add(think_end(), action::remove);
    return add_block(m);
  case stage::json_search:
    add_stops(m);
    m.add(think_end(), action::remove);
    m.add(marker{}.text("```json\n"), action::fence);
    m.add(marker{}.text("```\n"), action::fence);
    m.add(marker{}.text("{"), action::bracket);
    m.add(marker{}.text("["), action::bracket);
    return add_block(m);
  case stage::json_bare:
  case stage::json_fenced:
    add_stops(m);
    m.add(marker{}.text("\n```"), action::end_document);
    if (options_.strict)
      return;
    m.add(think_end(), action::remove);
    return add_block(m);
  case stage::json_after:
    return add_block(m);
  default:
    return;
  }
}

// Once a block is open its tags count with or without their marker, as in the reference.
void output_parser::build_tool_stage(stage_markers& m) const {
  switch (stage_) {
  case stage::calls:
    m.add(marker{}.text("invoke name=\""), action::open_call);
    return m.add(dsml("</", ""), action::end_block);
  case stage::call:
    m.add(marker{}.text("parameter name="), action::open_parameter);
    if (!options_.strict)
      for (const std::string_view rest : {" invoke name=\"", "invoke name=\""})
        m.add(dsml("<", rest), action::next_call);
    return m.add(dsml("</", ""), action::end_call);
  case stage::name:
    return m.add(marker{}.text("\""), action::end_name);
  case stage::key:
    return m.add(marker{}.text(" "), action::end_key);
  case stage::attribute:
    m.add(marker{}.text("\"true\">"), action::text_value);
    return m.add(marker{}.text("\"false\">"), action::json_value);
  case stage::header:
    m.add(marker{}.text("\" string=\"true\">"), action::text_value);
    m.add(marker{}.text("\" string=\"false\">"), action::json_value);
    m.add(marker{}.text("\">"), action::bare_value);
    return m.add(dsml("</", ""), action::end_value);
  case stage::text_value:
  case stage::other_value:
    return m.add(dsml("</", ""), action::end_value);
  default:
    return;
  }
}

} // namespace di::engine
