// SPDX-License-Identifier: Apache-2.0
// The log line of a request.
#include "launch/serve/request_record.hpp"
#include "messaging/base/log.hpp"

#include <string_view>

namespace di::serve {
namespace {

std::string_view word(proto::finish_reason r) {
  switch (r) {
  case proto::finish_reason::stop:
    return "stop";
  case proto::finish_reason::length:
    return "length";
  case proto::finish_reason::error:
    return "error";
  case proto::finish_reason::cancelled:
    return "cancelled";
  default:
    return "none";
  }
}

std::string words(const std::vector<proto::finish_reason>& ends) {
  std::string out;
  for (const auto r : ends) {
    if (!out.empty())
      out += ',';
    out += word(r);
  }
  return out;
}

} // namespace

void log_request(const request_record& r) {
  if (r.request.v == 0) {
    const auto l = r.status < 400 ? log::level::debug : log::level::info; // probes ask often
    if (log::enabled(l))
      log::write(l, "http_request",
                 {{"id", r.id},
                  {"route", r.route},
                  {"status", r.status},
                  {"code", r.code},
                  {"tenant", r.tenant},
                  {"total_us", r.total_us},
                  {"trace", r.trace}});
    return;
  }
  log::info("http_request", {{"id", r.id},
                             {"route", r.route},
                             {"status", r.status},
                             {"code", r.code},
                             {"tenant", r.tenant},
                             {"request", r.request.v},
                             {"answer", r.public_id},
                             {"stream", r.stream},
                             {"aborted", r.aborted},
                             {"resumed", r.resumed},
                             {"choices", r.choices},
                             {"ends", words(r.ends)},
                             {"prompt_tokens", r.prompt_tokens},
                             {"cached_tokens", r.cached_tokens},
                             {"output_tokens", r.output_tokens},
                             {"first_token_us", r.first_token_us},
                             {"queue_us", r.queue_us},
                             {"prefill_us", r.prefill_us},
                             {"decode_us", r.decode_us},
                             {"total_us", r.total_us},
                             {"trace", r.trace}});
}

} // namespace di::serve
