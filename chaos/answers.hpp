// SPDX-License-Identifier: Apache-2.0
// Answer lines of `dilaunch run`, read for comparison: what must be the same bytes, and when each
// token came from whom.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::chaos {

/// One choice of one request.
struct stream {
  std::uint64_t request = 0;
  std::uint32_t choice = 0;
  std::vector<std::int64_t> ids;
  double submitted_ms = 0;
  std::vector<double> token_ms; ///< [ms] since the batch began, one per id
  std::vector<std::pair<std::uint32_t, std::uint32_t>> served_by; ///< from which token which rank
  std::uint32_t attempts = 1;
};

struct answer {
  std::uint64_t id = 0;
  std::string canonical; ///< the line without timings, keys in order
  std::string error;     ///< code of the request's or a choice's error; empty: none
  std::vector<stream> streams;
};

/// @errors bad_format with the number of the line
result<std::vector<answer>> read_answers(std::string_view lines);

} // namespace di::chaos
