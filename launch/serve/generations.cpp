// SPDX-License-Identifier: Apache-2.0
// Bodies become generations.
#include "launch/serve/generations.hpp"

#include "engine/model/sha256.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

namespace di::serve {
namespace {

using engine::api;
using engine::json;

constexpr std::size_t key_bytes_max = 255;
/// [ms] that a stream without an Idempotency-Key is kept behind its end, for a client whose
/// gateway died with the last events on the way.
constexpr std::uint64_t keep_streams_ms = 10'000;
constexpr std::size_t forced_max = 1'000'000; ///< [tokens]

template <class T>
bool failed(const std::variant<T, api_error>& v) {
  return std::holds_alternative<api_error>(v);
}

bool is_messages(const call& c) {
  return c.shape == dialect::anthropic;
}

std::optional<api_error> own_limits(const call& c, const engine::prepared_request& r) {
  if (c.who->choices > 0 && r.sampling.n > c.who->choices)
    return bad_field("n",
                     fmt::format("n is {}; this key may have {}", r.sampling.n, c.who->choices));
  return std::nullopt;
}

engine::answer_recipe recipe_of(const service& home, const engine::prepared_request& r,
                                std::uint64_t seed, std::int64_t created) {
  engine::answer_recipe a;
  a.protocol = r.protocol;
  a.model = home.settings()->model.name;
  a.fingerprint = home.fingerprint();
  a.created = created;
  a.parsing = r.parsing;
  a.parsing.strict = home.settings()->strict_reference;
  if (a.parsing.stop.empty())
    a.parsing.stop = r.sampling.stop;
  a.parsing.include_stop = a.parsing.include_stop || r.sampling.include_stop;
  a.include_usage = r.include_usage;
  a.n = r.sampling.n;
  a.top_logprobs = r.sampling.logprobs;
  a.seed = seed;
  a.custom_tools = r.custom_tools;
  return a;
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::variant<std::vector<token_id>, api_error> ids_of(const service& home,
                                                      const engine::prepared_request& r) {
  if (!r.prompt_ids.empty())
    return r.prompt_ids;
  auto ids = engine::encode_segments(r.segments, *home.words());
  if (!ids)
    return from_cluster(ids.error().code == ec::not_found ? ec::internal : ids.error().code,
                        ids.error().what, 0);
  return std::move(*ids);
}

} // namespace

api_error to_api_error(const engine::request_error& e) {
  auto out = make_error(e.status, e.code, e.message);
  out.type = e.type;
  out.param = e.param;
  return out;
}

std::variant<json, api_error> read_body(const service& home, const call& c) {
  auto parsed = engine::parse_body(c.asked.body, home.rules());
  if (const auto* no = std::get_if<engine::request_error>(&parsed))
    return to_api_error(*no);
  auto& body = std::get<json>(parsed);
  const auto named = body.find("model");
  if (named != body.end() && named->is_string()) {
    const auto& name = named->get_ref<const std::string&>();
    if (!home.model_of(name, is_messages(c))) {
      auto e = make_error(404, "model_not_found",
                          fmt::format("the model `{}` is not served here; `{}` is",
                                      name.substr(0, 200), home.settings()->model.name));
      e.param = "model";
      return e;
    }
  }
  return std::move(body);
}

std::variant<std::vector<token_id>, api_error> take_forced(const service& home, json& body) {
  std::vector<token_id> ids;
  for (const auto field : {forced_ids_field, forced_text_field}) {
    const std::string name{field};
    const auto at = body.find(name);
    if (at == body.end())
      continue;
    if (!home.settings()->test_hooks)
      return bad_field(name, name + " needs gateway.test_hooks");
    const auto value = *at;
    body.erase(name);
    if (field == forced_text_field && value.is_string()) {
      auto made =
          home.words()->encode(value.get_ref<const std::string&>(), engine::encode_mode::full);
      if (!made)
        return bad_field(name, made.error().what);
      ids.insert(ids.end(), made->begin(), made->end());
      const auto& eos = home.settings()->model.eos_ids;
      if (!eos.empty() && (ids.empty() || ids.back() != eos.front()))
        ids.push_back(eos.front());
      continue;
    }
    if (field == forced_text_field || !value.is_array() || value.size() > forced_max)
      return bad_field(
          name, name + (field == forced_text_field ? " is a string" : " is a list of token ids"));
    for (const auto& id : value) {
      const auto vocabulary = home.settings()->model.vocabulary;
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0
          || (vocabulary > 0 && id.get<std::int64_t>() >= vocabulary))
        return bad_field(name, "a forced id is no token");
      ids.push_back(id.get<token_id>());
    }
  }
  return ids;
}

std::variant<std::uint64_t, api_error> deadline_of(const service& home, const call& c) {
  const auto most = home.settings()->timeouts.request_ms;
  const auto given = c.asked.headers.get("x-di-deadline-ms");
  if (given.empty())
    return most;
  std::uint64_t ms = 0;
  const auto [at, err] = std::from_chars(given.data(), given.data() + given.size(), ms);
  if (err != std::errc{} || at != given.data() + given.size() || ms == 0)
    return bad_field("x-di-deadline-ms", "the header x-di-deadline-ms is a whole number of ms");
  return most == 0 ? ms : std::min(ms, most);
}

std::string dedup_of(const call& c) {
  const auto key = c.asked.headers.get("idempotency-key");
  return key.empty() ? std::string{} : fmt::format("{}\n{}", c.who->tenant, key);
}

std::optional<api_error> add_return(const service& home, const call& c, generation& g) {
  const auto s = home.settings();
  const auto key = c.asked.headers.get("idempotency-key");
  const auto window = s->timeouts.resume_window_ms;
  if (key.size() > key_bytes_max)
    return bad_field("idempotency-key", fmt::format("the Idempotency-Key has {} bytes; at most {}",
                                                    key.size(), key_bytes_max));
  if (!key.empty()) {
    g.dedup = dedup_of(c);
    g.dedup_digest =
        engine::sha256_hex(std::as_bytes(std::span{c.asked.body.data(), c.asked.body.size()}));
    g.dedup_digest += c.asked.path;
    g.leave_on_disconnect = true;
    g.keep_ms = std::max(g.keep_ms, window);
  }
  if (g.stream)
    g.keep_ms = std::max(g.keep_ms, std::min(window, keep_streams_ms));
  if (g.stream || !key.empty())
    g.detached_ms = std::max(g.detached_ms, window);
  return std::nullopt;
}

std::variant<generation, api_error> make_generation(const service& home, call& c,
                                                    const engine::prepared_request& r) {
  const auto s = home.settings();
  for (const auto& w : r.warnings)
    c.warnings.push_back(w);
  if (const auto no = own_limits(c, r))
    return *no;
  auto prompt = ids_of(home, r);
  if (const auto* no = std::get_if<api_error>(&prompt))
    return *no;
  auto& ids = std::get<std::vector<token_id>>(prompt);
  const auto max_tokens =
      engine::resolve_max_tokens(r, ids.size(), s->model.context_tokens, home.rules());
  if (const auto* no = std::get_if<engine::request_error>(&max_tokens))
    return to_api_error(*no);
  const auto deadline = deadline_of(home, c);
  if (failed(deadline))
    return std::get<api_error>(deadline);
  generation g;
  g.spec.sampling = r.sampling;
  g.spec.sampling.max_tokens = std::get<std::uint32_t>(max_tokens);
  if (!r.seed_given)
    g.spec.sampling.seed = home.world().random() >> 1;
  g.spec.prefill = s->prefill;
  g.spec.keep_rows = s->keep_rows;
  g.spec.prefix = s->prefix;
  g.spec.tenant = c.who->tenant;
  g.spec.prefix_salt = c.who->tenant.empty() && r.cache_salt.empty()
                           ? std::string{}
                           : fmt::format("{}\n{}", c.who->tenant, r.cache_salt).substr(0, 256);
  g.spec.priority = home.keys().guarded() ? std::min(r.priority, c.who->priority) : r.priority;
  g.spec.deadline_ms = std::get<std::uint64_t>(deadline);
  g.recipe = recipe_of(home, r, g.spec.sampling.seed, unix_seconds());
  g.prompts.push_back(std::move(ids));
  g.stream = r.stream;
  if (auto no = add_return(home, c, g))
    return *no;
  return g;
}

std::variant<generation, api_error> make_generation(const service& home, call& c, api protocol,
                                                    json body) {
  auto forced = take_forced(home, body);
  if (const auto* no = std::get_if<api_error>(&forced))
    return *no;
  auto prepared = engine::prepare_request(protocol, body, home.rules());
  if (const auto* no = std::get_if<engine::request_error>(&prepared))
    return to_api_error(*no);
  auto& r = std::get<engine::prepared_request>(prepared);
  r.sampling.forced_ids = std::move(std::get<std::vector<token_id>>(forced));
  return make_generation(home, c, r);
}

namespace {

using counted = std::variant<std::size_t, api_error>;

// As the request would be tokenized; Messages need no max_tokens to be counted.
counted count(const service& home, const call& c, api protocol) {
  auto body = read_body(home, c);
  if (const auto* no = std::get_if<api_error>(&body))
    return *no;
  auto& j = std::get<json>(body);
  if (protocol == api::messages && !j.contains("max_tokens"))
    j["max_tokens"] = 1;
  const auto prepared = engine::prepare_request(protocol, j, home.rules());
  if (const auto* no = std::get_if<engine::request_error>(&prepared))
    return to_api_error(*no);
  const auto ids =
      engine::encode_segments(std::get<engine::prepared_request>(prepared).segments, *home.words());
  if (!ids)
    return from_cluster(ec::internal, ids.error().what, 0);
  return ids->size();
}

/// A client that lost its stream asks again with the id of the last event that it has.
std::variant<std::optional<resume_point>, api_error> point_of(const call& c, api protocol) {
  const auto last = c.asked.headers.get("last-event-id");
  if (last.empty())
    return std::optional<resume_point>{};
  auto id = event_id::parse(last);
  if (!id || id->answer.protocol != protocol)
    return bad_field("last-event-id", "the Last-Event-ID is none of this route");
  return std::optional{resume_point{id->answer, std::move(id->seen), id->tail, true}};
}

} // namespace

void answer_count(service& home, const call_ptr& c, api protocol, json shape) {
  make_aside<counted>(
      home, c, c->asked.body.size(), [&home, c, protocol] { return count(home, *c, protocol); },
      [&home, c, shape = std::move(shape)](counted n) mutable {
        if (const auto* no = std::get_if<api_error>(&n))
          return home.refuse(*c, *no);
        shape["input_tokens"] = std::get<std::size_t>(n);
        home.answer(*c, 200, shape.dump());
      });
}

void answer_made(service& home, call& c, text_or_error made) {
  if (const auto* no = std::get_if<api_error>(&made))
    return home.refuse(c, *no);
  home.answer(c, 200, std::move(std::get<std::string>(made)));
}

std::variant<admission::ticket, api_error> admit(service& home, const call& c,
                                                 std::optional<request_id> back) {
  const auto now = home.world().now();
  home.parked().release(now, back, dedup_of(c));
  auto place = home.doors().enter(*c.who, now);
  if (const auto* no = std::get_if<api_error>(&place); no != nullptr && home.metrics() != nullptr)
    home.metrics()->rejected(no->status == 429 ? rejection::key_limit : rejection::queue_full);
  return place;
}

void run_generation(service& home, call_ptr c, api protocol, const generation_maker& make) {
  auto point = point_of(*c, protocol);
  if (const auto* no = std::get_if<api_error>(&point))
    return home.refuse(*c, *no);
  auto& where = std::get<std::optional<resume_point>>(point);
  auto place = admit(home, *c, where ? std::optional{where->answer.request} : std::nullopt);
  if (const auto* no = std::get_if<api_error>(&place))
    return home.refuse(*c, *no);
  auto& ticket = std::get<admission::ticket>(place);
  if (where)
    return session::resume(home, std::move(c), std::move(*where), std::move(ticket));
  using outcome = std::variant<generation, api_error>;
  const auto held = std::make_shared<admission::ticket>(std::move(ticket));
  make_aside<outcome>(
      home, c, c->asked.body.size(),
      [&home, c, make]() -> outcome {
        auto body = read_body(home, *c);
        if (const auto* no = std::get_if<api_error>(&body))
          return *no;
        return make(*c, std::move(std::get<json>(body)));
      },
      [&home, c, held](outcome made) {
        if (const auto* no = std::get_if<api_error>(&made)) {
          if (home.metrics() != nullptr && no->code == "context_length_exceeded")
            home.metrics()->rejected(rejection::too_large);
          return home.refuse(*c, *no);
        }
        std::string{}.swap(c->asked.body); // a prompt can be large, and is not needed any more
        session::start(home, c, std::move(std::get<generation>(made)), std::move(*held));
      });
}

} // namespace di::serve
