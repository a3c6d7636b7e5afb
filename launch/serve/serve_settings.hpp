// SPDX-License-Identifier: Apache-2.0
// What the routes of a gateway are told: names, limits, timeouts, switches. Plain values; the
// gateway process fills them from the topology and replaces the whole on a reload.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace di::serve {

/// Bounds of what a client may ask for. Above one: a 400 that names it, before any compute; of
/// `requests` a 503, of `requests_per_key` a 429, both with Retry-After.
struct serve_limits {
  std::size_t body_bytes = 32u << 20; ///< [bytes] of a request body; messaging/http keeps it
  std::uint32_t json_depth = 64;      ///< nested objects and arrays in a body
  std::uint32_t requests = 4'096;     ///< [requests] open in one gateway at a time
  std::uint32_t requests_per_key = 0; ///< [requests] open of one key; 0: as `requests`
  std::uint32_t choices = 16;         ///< [choices] of one request (prompts times n)
  std::uint32_t stop = 16;            ///< [strings]
  std::uint32_t stop_bytes = 1'024;   ///< [bytes] of one stop string
  std::uint32_t max_tokens = 393'216; ///< [tokens] that a request may ask for
  std::uint32_t tools = 1'024;        ///< [tools]
  std::uint32_t messages = 65'536;    ///< [messages] of a conversation
};

/// All [ms]; 0: none.
struct serve_timeouts {
  std::uint64_t request_ms = 1'800'000;     ///< a request in the gateway until its last token
  std::uint64_t keep_alive_ms = 10'000;     ///< silence of a stream until a comment is sent
  std::uint64_t resume_window_ms = 60'000;  ///< a request without its client goes on for so long,
                                            ///< if it can be resumed
  std::uint64_t stored_ttl_ms = 86'400'000; ///< stored responses
};

/// The model as clients see it.
struct served_model {
  std::string name = "DeepSeek-V4.1-Flash"; ///< what answers call it
  /// Other names it answers to; one that ends in `*` stands for all that begin so.
  std::vector<std::string> aliases;
  /// The same, on the Messages routes only.
  std::vector<std::string> messages_aliases = {"claude-*"};
  std::uint32_t context_tokens = 0; ///< [tokens] of prompt and answer
  std::uint32_t vocabulary = 0;     ///< [tokens] rows of the output head
  std::vector<token_id> eos_ids;
  std::int64_t created = 0; ///< [s] since 1970, in the list of models
};

struct serve_settings {
  served_model model;
  serve_limits limits;
  serve_timeouts timeouts;
  std::string keys_file;                               ///< empty: every client may, as tenant ""
  proto::prefix_mode prefix = proto::prefix_mode::off; ///< of every request
  proto::prefill_mode prefill = proto::prefill_mode::full; ///< likewise
  std::uint32_t keep_rows = 0;   ///< [rows] of compact prefill; 0: the model's default
  bool strict = false;           ///< an unknown field is a 400, not a warning
  bool strict_reference = false; ///< answers with the oddities of the reference, too
  bool test_hooks = false;       ///< requests may carry di_forced_ids and di_forced_text
  bool allow_cors = true;        ///< answers to browsers of any origin
  std::string version;           ///< of /version
  std::uint32_t gateway = 0;     ///< number of this gateway
};

} // namespace di::serve
