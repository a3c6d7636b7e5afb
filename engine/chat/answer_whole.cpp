// SPDX-License-Identifier: Apache-2.0
// Whole answers of all choices, usage objects, data lines.
#include "engine/chat/answer_writer.hpp"

namespace di::engine {
namespace {

bool counts_reasoning(const answer_recipe& recipe) {
  return recipe.protocol == api::chat && recipe.parsing.thinking;
}

// The prompt is shared by all choices.
answer_usage sum_of(std::span<const answer_stream* const> choices) {
  answer_usage sum;
  for (const answer_stream* c : choices) {
    const answer_usage one = c->usage();
    sum.prompt = one.prompt;
    sum.cached = one.cached;
    sum.completion += one.completion;
    sum.reasoning += one.reasoning;
  }
  return sum;
}

} // namespace

std::string event_data(const answer_event& event) {
  return event.data.dump(-1, ' ', false, json::error_handler_t::replace);
}

json usage_object(api protocol, const answer_usage& u, bool with_reasoning) {
  if (protocol == api::messages)
    return {{"input_tokens", u.prompt - u.cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", u.cached},
            {"output_tokens", u.completion},
            {"service_tier", "standard"}};
  if (protocol == api::responses)
    return {{"input_tokens", u.prompt},
            {"input_tokens_details", {{"cached_tokens", u.cached}}},
            {"output_tokens", u.completion},
            {"output_tokens_details", {{"reasoning_tokens", u.reasoning}}},
            {"total_tokens", u.prompt + u.completion}};
  json out{{"prompt_tokens", u.prompt},
           {"completion_tokens", u.completion},
           {"total_tokens", u.prompt + u.completion},
           {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
  if (with_reasoning)
    out["completion_tokens_details"] = json{{"reasoning_tokens", u.reasoning}};
  out["prompt_cache_hit_tokens"] = u.cached;
  out["prompt_cache_miss_tokens"] = u.prompt - u.cached;
  return out;
}

json whole_answer(const answer_recipe& recipe, std::span<const answer_stream* const> choices) {
  if (recipe.protocol == api::responses || recipe.protocol == api::messages)
    return choices.empty() ? json(nullptr) : choices.front()->final_choice();
  const bool chat = recipe.protocol == api::chat;
  json list = json::array();
  for (const answer_stream* c : choices)
    list.push_back(c->final_choice());
  json out = envelope(recipe, chat ? "chat.completion" : "text_completion");
  json fingerprint = out["system_fingerprint"];
  out.erase("system_fingerprint");
  out["choices"] = std::move(list);
  out["usage"] = usage_object(recipe.protocol, sum_of(choices), counts_reasoning(recipe));
  out["system_fingerprint"] = std::move(fingerprint);
  return out;
}

answer_events last_events(const answer_recipe& recipe,
                          std::span<const answer_stream* const> choices) {
  const bool chat = recipe.protocol == api::chat;
  if (!recipe.include_usage || recipe.parsing.strict
      || (!chat && recipe.protocol != api::completions))
    return {};
  json data = envelope(recipe, chat ? "chat.completion.chunk" : "text_completion");
  data["choices"] = json::array();
  data["usage"] = usage_object(recipe.protocol, sum_of(choices), counts_reasoning(recipe));
  answer_events out;
  out.push_back({{}, std::move(data)});
  return out;
}

answer_end to_answer_end(proto::finish_reason reason) noexcept {
  switch (reason) {
  case proto::finish_reason::length:
    return answer_end::length;
  case proto::finish_reason::cancelled:
    return answer_end::cancelled;
  case proto::finish_reason::none:
  case proto::finish_reason::stop:
  case proto::finish_reason::error:
    break;
  }
  return answer_end::stop;
}

} // namespace di::engine
