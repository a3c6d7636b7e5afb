// SPDX-License-Identifier: Apache-2.0
// Completions: text without a conversation, also with a suffix (fill in the middle).
#include "engine/chat/request_draft.hpp"

namespace di::engine {
namespace {

constexpr std::string_view bos = "<｜begin▁of▁sentence｜>", fim_begin = "<｜fim▁begin｜>",
                           fim_hole = "<｜fim▁hole｜>", fim_end = "<｜fim▁end｜>";

void add(std::vector<prompt_segment>& out, bool special, std::string_view text) {
  if (!text.empty())
    out.push_back({special, std::string{text}});
}

// A string, a list with one string, a list of ids, or a list with one such list.
void read_prompt(const field_reader& body, const request_context& context, prepared_request& out) {
  const json* prompt = body.need("prompt");
  if (prompt == nullptr)
    return;
  if (prompt->is_array() && !prompt->empty()
      && (prompt->front().is_string() || prompt->front().is_array())) {
    if (prompt->size() > 1)
      return context.problems.broken_rule(
          fmt::format("a list of {} prompts: one prompt a request is supported", prompt->size()),
          "prompt");
    prompt = &prompt->front();
  }
  const std::string* const suffix = body.text("suffix");
  if (prompt->is_array()) {
    if (suffix != nullptr)
      return context.problems.broken_rule("suffix needs a prompt that is text", "suffix");
    if (prompt->empty())
      return context.problems.broken_rule("the prompt has no token", "prompt");
    out.prompt_ids = read_ids(body, "prompt", *prompt, context);
    return;
  }
  if (!prompt->is_string())
    return body.wrong("prompt",
                      fmt::format("expected a string, a list of token ids, or a list with "
                                  "one of them, found {}",
                                  found(*prompt)));
  add(out.segments, true, bos);
  if (suffix != nullptr)
    add(out.segments, true, fim_begin);
  add(out.segments, false, *prompt->get_ptr<const std::string*>());
  if (suffix == nullptr)
    return;
  add(out.segments, true, fim_hole);
  add(out.segments, false, *suffix);
  add(out.segments, true, fim_end);
}

// `logprobs` counts alternatives here; true counts as 0.
void read_logprobs(const field_reader& body, request_draft& draft) {
  const json* const value = body.find("logprobs");
  if (value == nullptr)
    return;
  if (value->is_boolean()) {
    draft.logprobs = value->get<bool>();
    return;
  }
  draft.top_logprobs = body.unsigned_integer("logprobs", 0xFFFF'FFFF);
  draft.logprobs = draft.top_logprobs.has_value();
}

} // namespace

prepare_outcome prepare_completions(const json& body, const request_rules& rules) {
  // No reference knows this protocol; there is nothing to be strict about.
  request_rules own = rules;
  own.strict_reference = false;
  request_problems problems;
  const request_context context{own, problems};
  const body_place root;
  const field_reader fields{body, root, problems};
  request_draft draft;
  draft.protocol = api::completions;
  read_common(fields, draft, context);
  read_stop(fields, "stop", true, draft);
  draft.max_tokens = fields.unsigned_integer("max_tokens", 0xFFFF'FFFF);
  draft.n = fields.unsigned_integer("n", 0xFFFF'FFFF);
  read_logprobs(fields, draft);
  read_stream_options(fields, draft);
  const auto best_of = fields.unsigned_integer("best_of", 0xFFFF'FFFF);
  prepared_request out;
  read_prompt(fields, context, out);
  out.echo = fields.boolean("echo").value_or(false);
  if (fields.find("response_format") != nullptr && draft.grammar_field.empty())
    draft.grammar_field = "response_format";
  check_unknown_fields(fields,
                       {"n", "logprobs", "stop", "max_tokens", "stream_options", "prompt", "suffix",
                        "echo", "best_of", "response_format"},
                       context);
  check_ranges(draft, context);
  if (best_of && *best_of != draft.n.value_or(1))
    problems.broken_rule("best_of is supported only if it equals n", "best_of");
  if (!draft.grammar_field.empty()) {
    request_error error;
    error.message = fmt::format("{} is not supported by this server: constrained output is not "
                                "available.",
                                draft.grammar_field);
    error.code = "unsupported_parameter";
    error.param = draft.grammar_field;
    problems.fail(std::move(error));
  }
  if (problems.any())
    return problems.take_error();
  fill_sampling(draft, out);
  if (!out.max_tokens)
    out.max_tokens = 16; // what the API documents
  out.sampling.stop = draft.stop;
  out.model_name = find_model(own, draft.model)->name;
  out.warnings = problems.take_warnings();
  return out;
}

} // namespace di::engine
