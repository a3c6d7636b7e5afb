// SPDX-License-Identifier: Apache-2.0
// Whole answers, the last events of a stream, and the note that brings both back.
#include "launch/json_text.hpp"
#include "launch/serve/session_state.hpp"
#include "messaging/http/sse.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace di::serve {
namespace {

using engine::answer_stream;
using engine::api;
using engine::json;

constexpr int note_version = 1;

bool is_openai_completion(api protocol) {
  return protocol == api::chat || protocol == api::completions;
}

} // namespace

bool may_end(const proto::sampling_params& sampling, const served_model& model, token_id id) {
  const auto in = [id](const std::vector<token_id>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return (!sampling.ignore_eos && in(model.eos_ids)) || in(sampling.stop_token_ids);
}

std::span<const token_id> text_tokens(const proto::sampling_params& sampling,
                                      const served_model& model, const proto::recorded_choice& c) {
  const std::span<const token_id> all{c.tokens};
  const bool by_token = c.end.reason == proto::finish_reason::stop && c.end.stop_index < 0;
  return by_token && !all.empty() && may_end(sampling, model, all.back())
             ? all.first(all.size() - 1)
             : all;
}

// --- the note ---------------------------------------------------------------------------------

std::string session_note::to_text() const {
  json j;
  j["v"] = note_version;
  j["recipe"] = recipe.to_json();
  j["secret"] = secret;
  j["stream"] = stream;
  if (!extra.is_null())
    j["extra"] = extra;
  return json_text(j);
}

result<session_note> session_note::from_text(std::string_view text) {
  const auto j = json::parse(text, nullptr, false);
  if (!j.is_object() || j.value("v", 0) != note_version || !j.contains("recipe")
      || !j["recipe"].is_string() || !j.contains("secret") || !j["secret"].is_number_unsigned())
    return fail(ec::bad_format, "the note of the request is not of this version");
  session_note n;
  DI_TRY(n.recipe, engine::answer_recipe::from_json(j["recipe"].get<std::string>()));
  n.secret = j["secret"].get<std::uint64_t>();
  n.stream = j.value("stream", false);
  if (j.contains("extra"))
    n.extra = j["extra"];
  return n;
}

// --- whole answers ----------------------------------------------------------------------------

// Of several prompts each was read once, whatever the number of their choices.
static void count_all_prompts(json& body, std::uint64_t prompt_tokens) {
  if (!body.contains("usage") || !body["usage"].is_object())
    return;
  auto& usage = body["usage"];
  usage["prompt_tokens"] = prompt_tokens;
  usage["total_tokens"] = prompt_tokens + usage.value("completion_tokens", std::uint64_t{0});
}

engine::answer_events session::last_events() const {
  const auto& s = *state_;
  std::vector<const answer_stream*> all;
  for (const auto& c : s.choices)
    all.push_back(&*c.stream);
  auto events = engine::last_events(*s.parts[0].recipe, all);
  if (s.parts.size() > 1)
    for (auto& e : events)
      count_all_prompts(e.data, call_->record.prompt_tokens);
  return events;
}

void session::make_last_events() {
  auto& s = *state_;
  for (auto& e : last_events()) {
    if (++s.tail <= s.tail_skip)
      continue;
    send(nullptr, {std::move(e)});
  }
  if (is_openai_completion(s.parts[0].recipe->protocol))
    http::append_sse_event(s.out, engine::stream_done);
}

// The choices that are shown: all of them, or the likeliest by mean log probability.
std::vector<std::size_t> session::best_choices() const {
  const auto& s = *state_;
  std::vector<std::size_t> order(s.choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto shown = s.what.best_of;
  if (shown == 0)
    return order;
  const auto score = [&](std::size_t i) {
    const auto& c = s.choices[i];
    return c.taken == 0 ? -std::numeric_limits<double>::infinity() : c.logprob_sum / c.taken;
  };
  std::vector<std::size_t> best;
  for (const auto& part : s.parts) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(part.first_choice);
    const auto end = begin + static_cast<std::ptrdiff_t>(part.choices);
    std::stable_sort(begin, end, [&](auto a, auto b) { return score(a) > score(b); });
    best.insert(best.end(), begin, begin + std::min<std::ptrdiff_t>(shown, end - begin));
  }
  return best;
}

std::string session::whole_body() const {
  const auto& s = *state_;
  const auto& recipe = *s.parts[0].recipe;
  std::vector<const answer_stream*> all;
  for (const auto& c : s.choices)
    all.push_back(&*c.stream);
  auto body = engine::whole_answer(recipe, all);
  if (s.parts.size() > 1)
    count_all_prompts(body, call_->record.prompt_tokens);
  if (s.what.best_of > 0 && body.contains("choices")) {
    json shown = json::array();
    for (const auto i : best_choices()) {
      shown.push_back(body["choices"].at(i));
      shown.back()["index"] = shown.size() - 1;
    }
    body["choices"] = std::move(shown);
  }
  if (is_openai_completion(recipe.protocol) && !settings_->strict_reference)
    body["seed"] = recipe.seed;
  if (s.what.shape_answer)
    s.what.shape_answer(body);
  return json_text(body);
}

json recorded_answer(const service& home, const session_note& note, const public_id& id,
                     const proto::recorded_request& record) {
  auto recipe = note.recipe;
  recipe.id = id.text();
  const auto shared = std::make_shared<const engine::answer_recipe>(std::move(recipe));
  std::vector<answer_stream> streams;
  std::vector<const answer_stream*> all;
  streams.reserve(record.choices.size());
  for (std::uint32_t i = 0; i < record.choices.size(); ++i) {
    const auto& c = record.choices[i];
    auto& stream = streams.emplace_back(shared, home.words().get(), i);
    static_cast<void>(stream.ready(record.spec.prompt.size(), record.cached_tokens));
    const auto ids = text_tokens(record.spec.sampling, home.settings()->model, c);
    const bool shown = shared->top_logprobs >= 0 && c.logprobs.size() >= ids.size();
    static_cast<void>(stream.push(ids, shown ? std::span{c.logprobs}.first(ids.size())
                                             : std::span<const proto::position_logprobs>{}));
    if (ids.size() < c.tokens.size() && !stream.ended())
      static_cast<void>(stream.push_text({}, c.tokens.size() - ids.size()));
    const bool over = c.end.reason != proto::finish_reason::none;
    if (over && c.end.reason == proto::finish_reason::error)
      static_cast<void>(stream.fail({"server_error", "server_error", c.end.what}));
    else if (over)
      static_cast<void>(stream.finish(engine::to_answer_end(c.end.reason)));
    else if (record.closed)
      static_cast<void>(stream.finish(engine::answer_end::cancelled));
    all.push_back(&stream);
  }
  return engine::whole_answer(*shared, all);
}

} // namespace di::serve
