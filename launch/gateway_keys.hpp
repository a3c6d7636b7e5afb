// SPDX-License-Identifier: Apache-2.0
// What the topology says about serving: ports, gateway processes, limits. Plain data, part of
// topology.hpp; `dilaunch explain gateway` documents each key, the defaults stand there only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace di::launch {

/// `gateway.limits`. What is beyond one of them is refused with a typed error.
struct gateway_limits {
  std::uint64_t body_bytes = 0;       ///< of one request
  std::uint64_t header_bytes = 0;     ///< request line and headers together
  std::uint32_t json_depth = 0;       ///< nested arrays and objects
  std::uint32_t connections = 0;      ///< of each gateway
  std::uint32_t requests_per_key = 0; ///< open at a time, each gateway; 0: no bound
  std::uint32_t choices = 0;          ///< n of one request
  std::uint32_t stop = 0;             ///< stop strings of one request
  std::uint32_t max_tokens = 0;       ///< [tokens] of one choice; 0: what the context holds
  std::uint32_t queue = 0;            ///< requests open at a time, each gateway; more get 503
  std::uint64_t stored_bytes = 0;     ///< journal: requests kept after their end; oldest go first
};

/// `gateway.timeouts`.
struct gateway_timeouts {
  std::chrono::nanoseconds idle{};    ///< a connection without a request
  std::chrono::nanoseconds header{};  ///< first byte of a request until its headers are complete
  std::chrono::nanoseconds body{};    ///< from then until the body is complete
  std::chrono::nanoseconds write{};   ///< a client that takes nothing at all
  std::chrono::nanoseconds request{}; ///< deadline of a request that names none; 0: none
};

/// `roles.gateway`, `cluster.ports.http|admin` and `gateway`.
struct gateway_keys {
  std::uint32_t replicas = 0;                  ///< gateway processes, all on the first node
  std::uint32_t http_port = 0, admin_port = 0; ///< 0: any free port
  std::string bind;                            ///< host name or address of the public listener
  bool share_port = true;                      ///< else gateway i listens at http_port + i
  std::uint32_t threads = 0;                   ///< HTTP threads of each gateway
  std::string tls_cert, tls_key;               ///< PEM files; empty: no TLS. Like model_path
  std::string keys_file;                ///< API keys; empty: everyone may ask. Like model_path
  std::vector<std::string> model_names; ///< that requests may give; the first is shown; never empty
  bool strict = false;                  ///< unknown fields of requests are errors
  bool strict_reference = false; ///< encoding and parsing as deepseek-recipe, oddities included
  bool test_hooks = false;       ///< requests may force tokens
  bool compat_metrics = false;   ///< vLLM's metric names besides ours
  std::chrono::nanoseconds keep_alive{};    ///< of silence before an SSE comment; 0: none
  std::chrono::nanoseconds resume_window{}; ///< a stream without its client goes on for so long
  std::chrono::nanoseconds stored_ttl{};    ///< stored responses
  std::uint64_t client_buffer_bytes = 0;    ///< waiting for one slow reader
  gateway_limits limits;
  gateway_timeouts timeouts;

  bool tls() const noexcept { return !tls_cert.empty(); }
};

} // namespace di::launch
