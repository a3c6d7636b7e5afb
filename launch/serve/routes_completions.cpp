// SPDX-License-Identifier: Apache-2.0
// Legacy completions: prompts as text or ids, one or several; suffix, echo, best_of.
#include "launch/serve/generations.hpp"
#include "launch/serve/routes.hpp"

#include <fmt/format.h>

#include <utility>

namespace di::serve {
namespace {

using engine::api;
using engine::json;

bool is_list_of_prompts(const json& prompt) {
  return prompt.is_array() && !prompt.empty()
         && (prompt.front().is_string() || prompt.front().is_array());
}

/// Takes best_of out of the body: how many choices are computed for those that are shown; 0: it is
/// not there.
std::variant<std::uint32_t, api_error> take_best_of(const service& home, json& body) {
  const auto at = body.find("best_of");
  if (at == body.end())
    return std::uint32_t{0};
  const auto value = *at;
  body.erase("best_of");
  if (value.is_null())
    return std::uint32_t{0};
  const auto most = home.settings()->limits.choices;
  if (!value.is_number_integer() || value.get<std::int64_t>() < 1
      || value.get<std::int64_t>() > most)
    return bad_field("best_of", fmt::format("best_of is a whole number in [1, {}]", most));
  return value.get<std::uint32_t>();
}

std::optional<api_error> apply_best_of(generation& g, std::uint32_t best_of) {
  if (best_of == 0)
    return std::nullopt;
  const auto n = g.spec.sampling.n;
  if (best_of < n)
    return bad_field("best_of", fmt::format("best_of is {}, less than n, which is {}", best_of, n));
  if (best_of == n)
    return std::nullopt;
  if (g.stream)
    return bad_field("best_of", "best_of above n cannot be streamed");
  g.best_of = n;
  g.spec.sampling.n = best_of;
  g.spec.sampling.logprobs = std::max(g.spec.sampling.logprobs, 0); // what they are ranked by
  return std::nullopt;
}

std::string echo_of(const service& home, const json& prompt, const generation& g) {
  return prompt.is_string() ? prompt.get<std::string>() : home.words()->decode(g.prompts[0]);
}

std::variant<generation, api_error> one_prompt(const service& home, call& c, const json& body,
                                               std::vector<token_id> forced) {
  auto prepared = engine::prepare_request(api::completions, body, home.rules());
  if (const auto* no = std::get_if<engine::request_error>(&prepared))
    return to_api_error(*no);
  auto& r = std::get<engine::prepared_request>(prepared);
  if (r.echo && r.sampling.logprobs >= 0)
    return bad_field("logprobs", "log probabilities of an echoed prompt are not supported");
  r.sampling.forced_ids = std::move(forced);
  auto made = make_generation(home, c, r);
  if (auto* g = std::get_if<generation>(&made); g != nullptr && r.echo)
    g->echoes.push_back(echo_of(home, body["prompt"], *g));
  return made;
}

std::variant<generation, api_error> make(const service& home, call& c, json body) {
  auto forced = take_forced(home, body);
  if (const auto* no = std::get_if<api_error>(&forced))
    return *no;
  const auto& ids = std::get<std::vector<token_id>>(forced);
  auto best_of = take_best_of(home, body);
  if (const auto* no = std::get_if<api_error>(&best_of))
    return *no;
  const auto at = body.find("prompt");
  json prompts = json::array();
  if (at != body.end() && is_list_of_prompts(*at))
    prompts = std::move(*at);
  else if (at != body.end())
    prompts.push_back(std::move(*at));
  const auto most = home.settings()->limits.choices;
  if (prompts.size() > most)
    return bad_field("prompt", fmt::format("{} prompts; at most {}", prompts.size(), most));
  if (prompts.empty())
    return one_prompt(home, c, body, ids);
  std::optional<generation> all;
  for (auto& prompt : prompts) {
    body["prompt"] = std::move(prompt);
    c.warnings.clear();
    auto made = one_prompt(home, c, body, ids);
    auto* g = std::get_if<generation>(&made);
    if (g == nullptr)
      return made;
    if (!all) {
      all = std::move(*g);
      continue;
    }
    all->prompts.push_back(std::move(g->prompts[0]));
    all->echoes.insert(all->echoes.end(), g->echoes.begin(), g->echoes.end());
    all->spec.sampling.max_tokens =
        std::min(all->spec.sampling.max_tokens, g->spec.sampling.max_tokens);
  }
  if (auto no = apply_best_of(*all, std::get<std::uint32_t>(best_of)))
    return *no;
  const auto choices = all->prompts.size() * all->spec.sampling.n;
  if (choices > most)
    return bad_field("n", fmt::format("{} prompts with {} choices each are {}; at most {}",
                                      all->prompts.size(), all->spec.sampling.n, choices, most));
  all->recipe.n = static_cast<std::uint32_t>(choices);
  return std::move(*all);
}

} // namespace

void add_completions_routes(router& to, service& home) {
  for (const auto* path : {"/v1/completions", "/completions", "/beta/completions"})
    to.add("POST", path,
           [&home](call_ptr c) {
             run_generation(home, std::move(c), api::completions, [&home](call& of, json body) {
               return make(home, of, std::move(body));
             });
           },
           {dialect::openai, true, served_route::completions});
}

} // namespace di::serve
