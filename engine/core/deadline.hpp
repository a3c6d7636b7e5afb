// SPDX-License-Identifier: Apache-2.0
// The deadline of a request: the same words wherever it ends. GATEWAY, JOURNAL and SCHEDULER each
// count it on their own clock from the moment the request reached them.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/proto/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::engine {

/// [ms] longest deadline that is kept; a longer one is as good as none.
inline constexpr std::uint64_t deadline_ms_max = std::uint64_t{30} * 24 * 3'600 * 1'000;

/// @param ms  request_spec::deadline_ms, not 0
inline duration deadline_span(std::uint64_t ms) {
  return std::chrono::milliseconds{std::min(ms, deadline_ms_max)};
}

inline std::string deadline_words(request_id id, std::uint64_t ms) {
  return fmt::format("request {} was not done within {} ms", id.v, ms);
}

/// How choices end that have not ended by then.
inline proto::choice_end deadline_end(const proto::request_spec& spec) {
  return {proto::finish_reason::error, -1, 0, ec::deadline_exceeded,
          deadline_words(spec.request, spec.deadline_ms)};
}

} // namespace di::engine
