// SPDX-License-Identifier: Apache-2.0
// Settings and their reload, names of the model, how a call is answered, the clock of sessions.
#include "launch/serve/service.hpp"

#include "engine/model/sha256.hpp"
#include "launch/serve/session.hpp"
#include "messaging/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

namespace di::serve {
namespace {

/// [bytes] of the header that lists warnings.
constexpr std::size_t warnings_bytes_max = 1'000;

admission_limits doors_of(const serve_settings& s) {
  return {s.limits.requests, s.limits.requests_per_key};
}

bool answers_to(const std::vector<std::string>& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& n) {
    return n.ends_with('*') ? name.starts_with(std::string_view{n}.substr(0, n.size() - 1))
                            : name == n;
  });
}

std::string joined_warnings(const std::vector<std::string>& all) {
  std::string out;
  for (const auto& w : all) {
    if (out.size() + w.size() > warnings_bytes_max)
      break;
    out += (out.empty() ? "" : "; ") + w;
  }
  return out;
}

} // namespace

service::service(service_parts parts)
    : parts_{std::move(parts)},
      keys_{std::make_shared<api_keys>(parts_.settings.keys_file)},
      doors_{doors_of(parts_.settings)},
      settings_{std::make_shared<const serve_settings>(parts_.settings)} {
}

service::~service() {
  {
    const std::scoped_lock lock{guard_};
    stop_ = true;
  }
  wake_.notify_all();
  if (clock_.joinable())
    clock_.join();
  // The desk may hold them for longer; nothing of theirs may look back here.
  for (const auto& [key, s] : std::exchange(sessions_, {}))
    s->abandon();
}

std::shared_ptr<const serve_settings> service::settings() const {
  const std::scoped_lock lock{guard_};
  return settings_;
}

result<void> service::load_keys() {
  return keys_->reload();
}

result<void> service::reload(serve_settings next) {
  doors_.set_limits(doors_of(next));
  {
    const std::scoped_lock lock{guard_};
    settings_ = std::make_shared<const serve_settings>(std::move(next));
  }
  return keys_->reload();
}

engine::request_rules service::rules() const {
  const auto s = settings();
  engine::request_rules r;
  constexpr auto encoding = engine::prompt_encoding::v41;
  r.models = {{s->model.name, {}, encoding}};
  for (const auto& alias : s->model.aliases)
    if (!alias.ends_with('*'))
      r.models.push_back({s->model.name, alias, encoding});
  r.any_model = true; // model_of() has looked at the name
  r.strict_reference = s->strict_reference;
  r.strict_fields = s->strict;
  r.tagged_images = false;
  r.max_tokens_max = s->limits.max_tokens;
  r.choices_max = s->limits.choices;
  r.stop_max = s->limits.stop;
  r.stop_bytes_max = s->limits.stop_bytes;
  r.messages_max = s->limits.messages;
  r.tools_max = s->limits.tools;
  r.json_depth_max = s->limits.json_depth;
  r.body_bytes_max = s->limits.body_bytes;
  r.vocab_size = s->model.vocabulary;
  return r;
}

std::optional<std::string> service::model_of(std::string_view name, bool messages) const {
  const auto s = settings();
  if (name == s->model.name || answers_to(s->model.aliases, name)
      || (messages && answers_to(s->model.messages_aliases, name)))
    return s->model.name;
  return std::nullopt;
}

std::string service::fingerprint() const {
  const auto contract = health().contract;
  if (contract.empty())
    return {};
  return "fp_"
         + engine::sha256_hex(std::as_bytes(std::span{contract.data(), contract.size()}))
               .substr(0, 12);
}

http::header_list service::headers(const call& c) const {
  http::header_list h;
  h.add("x-request-id", c.record.id);
  if (c.shape == dialect::anthropic)
    h.add("request-id", c.record.id);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(world().now() - c.began);
  h.add("openai-processing-ms", std::to_string(took.count()));
  if (const auto w = joined_warnings(c.warnings); !w.empty())
    h.add("x-di-warnings", w);
  add_cors(h, c.asked);
  return h;
}

void service::add_cors(http::header_list& to, const http::request& asked) const {
  if (!settings()->allow_cors || !asked.headers.has("origin"))
    return;
  to.add("access-control-allow-origin", "*");
  to.add("access-control-expose-headers",
         "x-request-id, request-id, retry-after, openai-processing-ms, x-di-warnings, x-di-seed");
}

void service::answer(call& c, int status, std::string json_body, http::header_list extra) {
  auto h = headers(c);
  h.set("content-type", "application/json");
  for (const auto& [name, value] : extra)
    h.set(name, value);
  c.record.status = status;
  if (parts_.metrics != nullptr)
    parts_.metrics->http_bytes(0, json_body.size());
  if (!c.client->respond(status, std::move(h), std::move(json_body))) {
    c.record.status = 499;
    c.record.aborted = true;
  }
  finished(c);
}

void service::refuse(call& c, const api_error& e) {
  http::header_list extra;
  if (e.retry_after_ms > 0)
    extra.add("retry-after", retry_after(e.retry_after_ms));
  if (e.status == 401)
    extra.add("www-authenticate", "Bearer");
  c.record.code = e.code;
  answer(c, e.status, error_body(c.shape, e, c.record.id), std::move(extra));
}

void service::finished(call& c) {
  const auto took = world().now() - c.began;
  c.record.total_us = static_cast<std::uint64_t>(took.count() / 1'000);
  if (parts_.metrics != nullptr)
    parts_.metrics->http_ended(c.metric, c.record.status, took);
  log_request(c.record);
  if (const auto w = joined_warnings(c.warnings); !w.empty())
    log::info("request_warnings",
              {{"id", c.record.id}, {"tenant", c.record.tenant}, {"warnings", w}});
}

void service::hold(std::shared_ptr<session> s) {
  const std::scoped_lock lock{guard_};
  const auto* key = s.get();
  sessions_.emplace(key, std::move(s));
}

void service::release(const session* s) {
  std::shared_ptr<session> last; // may be the last owner: not under the lock
  const std::scoped_lock lock{guard_};
  if (const auto at = sessions_.find(s); at != sessions_.end()) {
    last = std::move(at->second);
    sessions_.erase(at);
  }
}

std::size_t service::sessions() const {
  const std::scoped_lock lock{guard_};
  return sessions_.size();
}

void service::tick() {
  std::vector<std::shared_ptr<session>> all;
  {
    const std::scoped_lock lock{guard_};
    all.reserve(sessions_.size());
    for (const auto& [key, s] : sessions_)
      all.push_back(s);
  }
  for (const auto& s : all)
    s->tick();
}

void service::start_clock() {
  if (!clock_.joinable())
    clock_ = std::thread{[this] { run_clock(); }};
}

void service::run_clock() {
  std::unique_lock lock{guard_};
  while (!stop_) {
    const auto every = settings_->timeouts.keep_alive_ms;
    const auto wait =
        std::chrono::milliseconds{every == 0 ? 1'000 : std::max<std::uint64_t>(every / 4, 10)};
    if (wake_.wait_for(lock, wait, [this] { return stop_; }))
      return;
    if (every == 0)
      continue;
    lock.unlock();
    tick();
    lock.lock();
  }
}

} // namespace di::serve
