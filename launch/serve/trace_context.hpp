// SPDX-License-Identifier: Apache-2.0
// The W3C traceparent header: which trace a client's request belongs to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace di::serve {

/// A place in a trace. Text form: "00-<32 hex>-<16 hex>-<2 hex>".
struct trace_context {
  std::string trace_id;  ///< 32 lower-case hex digits, not all 0
  std::string parent_id; ///< 16, of the span that asks; not all 0
  bool sampled = false;  ///< the client records this trace

  std::string traceparent() const;
  friend bool operator==(const trace_context&, const trace_context&) = default;
};

/// Reads a header. Versions above 00 are read as far as 00 goes; whatever is malformed is as if
/// there were none, as the recommendation asks.
/// @source W3C Trace Context, Recommendation, 3.2
std::optional<trace_context> parse_traceparent(std::string_view header);

/// The context that this process passes on: the same trace, a span of its own. Without a client's
/// context a trace begins here. @param seed  any number that differs per request, e.g. its id
trace_context continued(const std::optional<trace_context>& from, std::uint64_t seed);

} // namespace di::serve
