// SPDX-License-Identifier: Apache-2.0
// Units and names of one side into those of the other.
#include "launch/serve/settings_of.hpp"

#include <algorithm>
#include <chrono>

namespace di::serve {
namespace {

std::uint64_t ms_of(std::chrono::nanoseconds t) {
  return static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(t).count());
}

std::chrono::milliseconds round_up(std::chrono::nanoseconds t) {
  return std::chrono::ceil<std::chrono::milliseconds>(t);
}

} // namespace

serve_settings settings_of(const launch::topology& t, const actors::model_outline& model,
                           std::uint32_t gateway) {
  const auto& g = t.gateway;
  serve_settings s;
  s.model.name = g.model_names.front();
  s.model.aliases.assign(g.model_names.begin() + 1, g.model_names.end());
  s.model.context_tokens = static_cast<std::uint32_t>(model.spec.max_position_embeddings);
  s.model.vocabulary = static_cast<std::uint32_t>(model.spec.vocab_size);
  s.model.eos_ids = model.eos_ids;
  s.model.created = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  s.limits.body_bytes = g.limits.body_bytes;
  s.limits.json_depth = g.limits.json_depth;
  s.limits.requests = g.limits.queue;
  s.limits.requests_per_key = g.limits.requests_per_key;
  s.limits.choices = g.limits.choices;
  s.limits.stop = g.limits.stop;
  s.limits.max_tokens = g.limits.max_tokens == 0 ? s.model.context_tokens : g.limits.max_tokens;
  s.timeouts.request_ms = ms_of(g.timeouts.request);
  s.timeouts.keep_alive_ms = ms_of(g.keep_alive);
  s.timeouts.resume_window_ms = ms_of(g.resume_window);
  s.timeouts.stored_ttl_ms = ms_of(g.stored_ttl);
  s.keys_file = g.keys_file;
  s.prefix = t.prefix;
  s.prefill = t.prefill;
  s.keep_rows = t.prefill_keep;
  s.strict = g.strict;
  s.strict_reference = g.strict_reference;
  s.test_hooks = g.test_hooks;
  s.version = DI_VERSION;
  s.gateway = gateway;
  return s;
}

http::limits http_limits_of(const launch::gateway_keys& g) {
  http::limits l;
  l.header_bytes = g.limits.header_bytes;
  l.target_bytes = std::min(l.target_bytes, l.header_bytes);
  l.body_bytes = g.limits.body_bytes;
  l.client_buffer_bytes = g.client_buffer_bytes;
  l.connections = g.limits.connections;
  return l;
}

http::timeouts http_timeouts_of(const launch::gateway_keys& g) {
  http::timeouts t;
  t.header = round_up(g.timeouts.header);
  t.body = round_up(g.timeouts.body);
  t.idle = round_up(g.timeouts.idle);
  t.write = round_up(g.timeouts.write);
  return t;
}

http::options http_options_of(const launch::gateway_keys& g) {
  http::options o;
  o.threads = g.threads;
  o.tls = {g.tls_cert, g.tls_key};
  o.limits = http_limits_of(g);
  o.timeouts = http_timeouts_of(g);
  return o;
}

} // namespace di::serve
