// SPDX-License-Identifier: Apache-2.0
// What a gateway knows about one HTTP request when it ends, for the log.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/proto/sampling.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace di::serve {

/// One request, complete. Times are of the gateway's monotonic clock.
struct request_record {
  std::string id;         ///< x-request-id
  std::string public_id;  ///< of the answer; empty: none was begun
  di::request_id request; ///< in the cluster; 0: none
  std::string route;      ///< "POST /v1/chat/completions"
  std::string tenant;
  std::string trace; ///< trace id of `traceparent`; empty: none came
  std::string code;  ///< error code; empty: none
  int status = 0;    ///< sent, or 499 if the client left before; after a stream began: 200
  bool stream = false;
  bool aborted = false; ///< its client left
  bool resumed = false; ///< continued or repeated an earlier one
  std::uint32_t choices = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0; ///< [tokens]
  std::uint64_t max_tokens = 0;     ///< [tokens] of each choice
  std::uint64_t first_token_us = 0; ///< [us] request read until its first token came; 0: none did
  std::uint64_t total_us = 0;       ///< [us] request read until its last byte was handed over
  std::uint64_t queue_us = 0, prefill_us = 0, decode_us = 0; ///< [us] on its rank, of choice 0
  std::vector<proto::finish_reason> ends;                    ///< one per choice that ended
};

/// The line `http_request` of the log.
void log_request(const request_record& r);

} // namespace di::serve
