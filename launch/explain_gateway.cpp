// SPDX-License-Identifier: Apache-2.0
// Rows of the key table about serving: roles.gateway, cluster.ports.http|admin, gateway.
#include "launch/explain_rows.hpp"

namespace di::launch {
namespace {

using t_ = topology;
using s_ = const scalar&;
using i_ = std::size_t;

constexpr std::int64_t ms = 1'000'000, second = 1'000 * ms, day = 86'400 * second;
constexpr std::int64_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;

nanoseconds time_of(const scalar& v) {
  return nanoseconds{v.number};
}
std::uint64_t size_of(const scalar& v) {
  return static_cast<std::uint64_t>(v.number);
}

// clang-format off
const key_row port_rows[] = {
  {"cluster.ports.http", key_kind::integer, "8000", "Port of `dilaunch up` for clients. 0: any free port. Bound before anything starts.",
   [](t_& t, i_, s_ v) { t.gateway.http_port = v.u32(); }, 0, 65535, "", false, "listen"},
  {"cluster.ports.admin", key_kind::integer, "9000", "Port of `dilaunch up` for operators (metrics, live page), at 127.0.0.1 only. 0: any free port.",
   [](t_& t, i_, s_ v) { t.gateway.admin_port = v.u32(); }, 0, 65535, "", false, "metrics"},
};

const key_row role_rows[] = {
  {"roles.gateway", key_kind::section, "", "Processes that speak HTTP with clients, all on the first node's host.", nullptr},
  {"roles.gateway.replicas", key_kind::integer, "1", "Gateway processes of `dilaunch up`.",
   [](t_& t, i_, s_ v) { t.gateway.replicas = v.u32(); }, 1, 64, "", false, "gateways|frontends|api_servers"},
};

const key_row rows[] = {
  {"gateway", key_kind::section, "", "The HTTP side of `dilaunch up`; see doc/serving.md.", nullptr, 0, 0, "", false, "server|api|http"},
  {"gateway.bind", key_kind::text, "localhost", "Host name or address that clients reach; 0.0.0.0 for all IPv4 addresses of the host, :: for all. localhost: 127.0.0.1, and ::1 if there is one.",
   [](t_& t, i_, s_ v) { t.gateway.bind = v.text; }, 0, 0, "", false, "host|address|listen"},
  {"gateway.share_port", key_kind::boolean, "true", "true: all gateways accept on one port, and one that starts again finds the connections that waited. false: gateway i listens at cluster.ports.http + i.",
   [](t_& t, i_, s_ v) { t.gateway.share_port = v.truth; }, 0, 0, "", false, "reuse_port"},
  {"gateway.threads", key_kind::integer, "1", "HTTP threads of each gateway.",
   [](t_& t, i_, s_ v) { t.gateway.threads = v.u32(); }, 1, 64, "", false, "workers"},
  {"gateway.tls", key_kind::section, "", "HTTPS instead of HTTP for clients; needs both keys.", nullptr, 0, 0, "", false, "ssl|https"},
  {"gateway.tls.cert", key_kind::file_path, "(no TLS)", "Certificate chain, PEM; relative to this file.",
   [](t_& t, i_, s_ v) { t.gateway.tls_cert = v.text; }, 0, 0, "", false, "certfile|ssl_certfile|certificate"},
  {"gateway.tls.key", key_kind::file_path, "(no TLS)", "Its private key, PEM; relative to this file.",
   [](t_& t, i_, s_ v) { t.gateway.tls_key = v.text; }, 0, 0, "", false, "keyfile|ssl_keyfile"},
  {"gateway.keys_file", key_kind::file_path, "(everyone may ask)", "API keys with their tenants and limits, YAML; relative to this file; read again on SIGHUP.",
   [](t_& t, i_, s_ v) { t.gateway.keys_file = v.text; }, 0, 0, "", false, "api_key|api_keys|keys"},
  {"gateway.model_names", key_kind::texts, "(the last folder of model.path, and the cluster's name)", "Names under which requests may ask for the model; the first one is listed and shown.",
   [](t_& t, i_, s_ v) { t.gateway.model_names.push_back(v.text); }, 0, 0, "", false, "served_model_name|aliases|model_name"},
  {"gateway.strict", key_kind::boolean, "false", "true: fields of a request that are not known are errors. false: they are ignored with a warning header.",
   [](t_& t, i_, s_ v) { t.gateway.strict = v.truth; }},
  {"gateway.strict_reference", key_kind::boolean, "false", "true: prompts and outputs exactly as deepseek-recipe has them, with its oddities. false: the documented deviations (doc/serving.md).",
   [](t_& t, i_, s_ v) { t.gateway.strict_reference = v.truth; }},
  {"gateway.test_hooks", key_kind::boolean, "false", "true: a request may carry the tokens that it wants as its answer. For tests only.",
   [](t_& t, i_, s_ v) { t.gateway.test_hooks = v.truth; }},
  {"gateway.compat_metrics", key_kind::boolean, "false", "true: metrics under vLLM's names too.",
   [](t_& t, i_, s_ v) { t.gateway.compat_metrics = v.truth; }},
  {"gateway.keep_alive", key_kind::time, "10s", "Silence of a stream after which a comment line is sent. 0s: none.",
   [](t_& t, i_, s_ v) { t.gateway.keep_alive = time_of(v); }, 0, day},
  {"gateway.resume_window", key_kind::time, "60s", "A request with an idempotency key, or a background response, goes on so long after its client has left; others are cancelled at once.",
   [](t_& t, i_, s_ v) { t.gateway.resume_window = time_of(v); }, 0, day},
  {"gateway.stored_ttl", key_kind::time, "1d", "Stored responses are kept for so long after their end.",
   [](t_& t, i_, s_ v) { t.gateway.stored_ttl = time_of(v); }, 0, 365 * day, "", false, "ttl"},
  {"gateway.client_buffer", key_kind::size, "1MiB", "Events that wait for one slow reader; its request waits beyond that, nobody else does.",
   [](t_& t, i_, s_ v) { t.gateway.client_buffer_bytes = size_of(v); }, 16 * kib, gib},

  {"gateway.limits", key_kind::section, "", "What one request or client may take; read again on SIGHUP.", nullptr},
  {"gateway.limits.body", key_kind::size, "32MiB", "Body of a request; larger ones are refused with 413.",
   [](t_& t, i_, s_ v) { t.gateway.limits.body_bytes = size_of(v); }, kib, gib, "", false, "max_body|max_body_size"},
  {"gateway.limits.headers", key_kind::size, "64KiB", "Request line and headers; larger ones are refused with 431.",
   [](t_& t, i_, s_ v) { t.gateway.limits.header_bytes = size_of(v); }, kib, mib},
  {"gateway.limits.json_depth", key_kind::integer, "128", "Nested arrays and objects of a body.",
   [](t_& t, i_, s_ v) { t.gateway.limits.json_depth = v.u32(); }, 8, 10'000},
  {"gateway.limits.connections", key_kind::integer, "8192", "Connections of each gateway; more wait in the backlog.",
   [](t_& t, i_, s_ v) { t.gateway.limits.connections = v.u32(); }, 1, 1'000'000, "", false, "max_connections"},
  {"gateway.limits.requests_per_key", key_kind::integer, "0", "Requests that one API key may have open at each gateway; more are refused with 429. 0: no bound.",
   [](t_& t, i_, s_ v) { t.gateway.limits.requests_per_key = v.u32(); }, 0, 1'000'000, "", false, "concurrency"},
  {"gateway.limits.choices", key_kind::integer, "16", "Choices (n) of one request.",
   [](t_& t, i_, s_ v) { t.gateway.limits.choices = v.u32(); }, 1, 128, "", false, "n"},
  {"gateway.limits.stop", key_kind::integer, "16", "Stop strings of one request.",
   [](t_& t, i_, s_ v) { t.gateway.limits.stop = v.u32(); }, 1, 1024},
  {"gateway.limits.max_tokens", key_kind::integer, "0", "Output tokens of one choice: what a request gets that names no number, at most. One that asks for more is refused with 400 (Messages: gets so many and a warning). 0: what the context holds.",
   [](t_& t, i_, s_ v) { t.gateway.limits.max_tokens = v.u32(); }, 0, 16'777'216, "", false, "max_model_len"},
  {"gateway.limits.queue", key_kind::integer, "4096", "Requests that each gateway may have open; more are refused with 503.",
   [](t_& t, i_, s_ v) { t.gateway.limits.queue = v.u32(); }, 1, 1'000'000, "", false, "max_concurrent_requests|queue_size"},
  {"gateway.limits.stored_bytes", key_kind::size, "256MiB", "Stored responses in the journal; the oldest are forgotten first.",
   [](t_& t, i_, s_ v) { t.gateway.limits.stored_bytes = size_of(v); }, 64 * kib, 1024 * gib},

  {"gateway.timeouts", key_kind::section, "", "How long clients may take; read again on SIGHUP.", nullptr},
  {"gateway.timeouts.idle", key_kind::time, "75s", "A connection without a request is closed.",
   [](t_& t, i_, s_ v) { t.gateway.timeouts.idle = time_of(v); }, 10 * ms, day, "", false, "timeout_keep_alive"},
  {"gateway.timeouts.header", key_kind::time, "10s", "From the first byte of a request to the end of its headers; then 408.",
   [](t_& t, i_, s_ v) { t.gateway.timeouts.header = time_of(v); }, 10 * ms, day},
  {"gateway.timeouts.body", key_kind::time, "30s", "From there to the end of its body; then 408.",
   [](t_& t, i_, s_ v) { t.gateway.timeouts.body = time_of(v); }, 10 * ms, day},
  {"gateway.timeouts.write", key_kind::time, "30s", "A client that takes nothing for so long is disconnected.",
   [](t_& t, i_, s_ v) { t.gateway.timeouts.write = time_of(v); }, 10 * ms, day},
  {"gateway.timeouts.request", key_kind::time, "0s", "Deadline of a request that does not name one. 0s: none.",
   [](t_& t, i_, s_ v) { t.gateway.timeouts.request = time_of(v); }, 0, 30 * day, "", false, "timeout"},
};
// clang-format on

} // namespace

std::span<const key_row> port_keys() {
  return port_rows;
}
std::span<const key_row> gateway_role_keys() {
  return role_rows;
}
std::span<const key_row> gateway_section_keys() {
  return rows;
}

} // namespace di::launch
