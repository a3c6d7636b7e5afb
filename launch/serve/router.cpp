// SPDX-License-Identifier: Apache-2.0
// Matching of paths, and what every request gets: an id, a look at its key, a JSON answer.
#include "launch/serve/router.hpp"

#include "launch/serve/trace_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace di::serve {
namespace {

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> out;
  while (!path.empty()) {
    if (path.front() == '/') {
      path.remove_prefix(1);
      continue;
    }
    const auto end = std::min(path.find('/'), path.size());
    out.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return out;
}

bool takes_one(const std::string& segment) {
  return segment.starts_with('{') && !segment.ends_with("...}");
}
bool takes_rest(const std::string& segment) {
  return segment.starts_with('{') && segment.ends_with("...}");
}

bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
          std::vector<std::string>& captures) {
  captures.clear();
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (i >= path.size())
      return false;
    if (takes_rest(pattern[i])) {
      std::string rest = path[i];
      for (std::size_t k = i + 1; k < path.size(); ++k)
        rest += '/' + path[k];
      captures.push_back(std::move(rest));
      return true;
    }
    if (takes_one(pattern[i]))
      captures.push_back(path[i]);
    else if (pattern[i] != path[i])
      return false;
  }
  return pattern.size() == path.size();
}

bool usable_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
           || std::string_view{"-_.:/+="}.find(c) != std::string_view::npos;
  });
}

std::string request_id_of(const http::request& asked, env& world) {
  if (const auto given = asked.headers.get("x-request-id"); usable_id(given))
    return std::string{given};
  return fmt::format("req_{:016x}{:016x}", world.random(), world.random());
}

/// Bodies that are plainly something else; a missing or a form's type is curl without `-H`.
bool foreign_body(const http::request& head) {
  const auto type = head.headers.get("content-type");
  const auto coding = head.headers.get("content-encoding");
  return type.starts_with("multipart/") || type.find("xml") != std::string_view::npos
         || (!coding.empty() && !http::same_name(coding, "identity"));
}

http::header_list preflight(std::string_view allowed) {
  http::header_list h{{"allow", std::string{allowed} + ", OPTIONS"}};
  h.add("access-control-allow-origin", "*");
  h.add("access-control-allow-methods", "GET, POST, DELETE, OPTIONS");
  h.add("access-control-allow-headers", "*, authorization");
  h.add("access-control-max-age", "86400");
  return h;
}

} // namespace

dialect dialect_of(std::string_view path) noexcept {
  return path.starts_with("/v1/messages") || path.starts_with("/anthropic") ? dialect::anthropic
                                                                            : dialect::openai;
}

void router::add(std::string method, std::string_view pattern, route_handler handler,
                 route_options options) {
  auto name = fmt::format("{} {}", method, pattern);
  routes_.push_back(
      {std::move(method), std::move(name), split(pattern), std::move(handler), options});
}

router::match router::find(std::string_view method, std::string_view path) const {
  match m;
  const auto segments = split(path);
  std::vector<std::string> captures;
  const auto wanted = method == "HEAD" ? std::string_view{"GET"} : method;
  for (const auto& r : routes_) {
    if (!fits(r.segments, segments, captures))
      continue;
    if (r.method == wanted && m.found == nullptr) {
      m.found = &r;
      m.captures = captures;
    }
    if (m.allowed.find(r.method) == std::string::npos)
      m.allowed += (m.allowed.empty() ? "" : ", ") + r.method;
    if (r.method == "GET")
      m.allowed += ", HEAD";
  }
  return m;
}

std::optional<api_error> router::objection(const http::request& head, const match& m,
                                           std::shared_ptr<const key_grant>& who) const {
  if (m.allowed.empty())
    return make_error(404, fmt::format("there is no {}", head.path.substr(0, 200)));
  if (m.found == nullptr)
    return make_error(405, fmt::format("{} takes {}", head.path.substr(0, 200), m.allowed));
  const bool guarded = m.found->options.guarded && home_.keys().guarded();
  const auto key = bearer_key(head.headers.get("authorization"), head.headers.get("x-api-key"));
  who = guarded ? home_.keys().find(key) : api_keys{}.find(key);
  if (!who && key.empty())
    return make_error(401, "missing_api_key",
                      "give an API key: `Authorization: Bearer KEY` or `x-api-key: KEY`");
  if (!who)
    return make_error(401, "this API key is not known here");
  if (m.found->method == "POST" && foreign_body(head))
    return make_error(415, "the body must be JSON, without a content coding");
  return std::nullopt;
}

call_ptr router::make_call(http::request asked, http::exchange_ptr client, const match& m) const {
  auto c = std::make_shared<call>();
  c->began = home_.world().now();
  c->record.id = request_id_of(asked, home_.world());
  if (const auto trace = parse_traceparent(asked.headers.get("traceparent")))
    c->record.trace = trace->trace_id;
  c->head = asked.method == "HEAD";
  c->shape = m.found != nullptr ? m.found->options.shape : dialect_of(asked.path);
  c->record.route = m.found != nullptr ? m.found->name : asked.method.substr(0, 16) + " other";
  c->metric = m.found != nullptr ? m.found->options.metric : served_route::other;
  c->captures = m.captures;
  c->asked = std::move(asked);
  c->client = std::move(client);
  if (home_.metrics() != nullptr) {
    home_.metrics()->http_began(c->metric);
    home_.metrics()->http_bytes(c->asked.body.size(), 0);
  }
  return c;
}

void router::handle(http::request asked, http::exchange_ptr client) const {
  const auto m = find(asked.method, asked.path);
  auto c = make_call(std::move(asked), std::move(client), m);
  if (c->asked.method == "OPTIONS" && (!m.allowed.empty() || c->asked.path == "*")) {
    auto extra = preflight(m.allowed.empty() ? "GET, POST, DELETE" : m.allowed);
    return home_.answer(*c, 204, {}, std::move(extra));
  }
  if (const auto no = objection(c->asked, m, c->who)) {
    if (no->status != 405)
      return home_.refuse(*c, *no);
    c->record.code = no->code;
    return home_.answer(*c, 405, error_body(c->shape, *no, c->record.id), {{"allow", m.allowed}});
  }
  c->record.tenant = c->who->tenant;
  m.found->handler(std::move(c));
}

http::answer router::refusal_answer(const http::request* asked, const api_error& e,
                                    std::string_view allowed) const {
  const auto shape = asked != nullptr ? dialect_of(asked->path) : dialect::openai;
  const auto id = request_id_of(asked != nullptr ? *asked : http::request{}, home_.world());
  http::answer a;
  a.status = e.status;
  a.headers.add("content-type", "application/json");
  a.headers.add("x-request-id", id);
  if (asked != nullptr)
    home_.add_cors(a.headers, *asked);
  if (e.status == 401)
    a.headers.add("www-authenticate", "Bearer");
  if (!allowed.empty())
    a.headers.add("allow", std::string{allowed});
  if (e.retry_after_ms > 0)
    a.headers.add("retry-after", retry_after(e.retry_after_ms));
  a.body = error_body(shape, e, id);
  request_record r;
  r.id = id;
  r.route = asked != nullptr ? asked->method.substr(0, 16) + " refused" : "refused";
  r.status = e.status;
  r.code = e.code;
  log_request(r);
  return a;
}

http::answer router::format(const http::refusal& r) const {
  auto e = make_error(r.status, r.code, r.detail);
  if (r.status == 413) {
    e.code = "request_too_large";
    if (home_.metrics() != nullptr)
      home_.metrics()->rejected(rejection::too_large);
  }
  return refusal_answer(r.asked, e, {});
}

std::optional<http::answer> router::check_head(const http::request& head) const {
  if (head.method == "OPTIONS" || head.method == "GET" || head.method == "HEAD")
    return std::nullopt; // no body to save: the handler says it and the connection stays
  const auto m = find(head.method, head.path);
  std::shared_ptr<const key_grant> who;
  const auto no = objection(head, m, who);
  if (!no)
    return std::nullopt;
  return refusal_answer(&head, *no, no->status == 405 ? m.allowed : std::string{});
}

http::callbacks router::callbacks() const {
  http::callbacks c;
  c.handler = [this](http::request asked, http::exchange_ptr client) {
    handle(std::move(asked), std::move(client));
  };
  c.format = [this](const http::refusal& r) { return format(r); };
  c.check_head = [this](const http::request& head) { return check_head(head); };
  if (auto* metrics = home_.metrics())
    c.connections = [metrics](int change) { metrics->connections(change); };
  return c;
}

} // namespace di::serve
