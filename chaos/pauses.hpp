// SPDX-License-Identifier: Apache-2.0
// Token times of all streams on the host's monotonic clock, and the gaps that faults tore.
#pragma once

#include "chaos/verdict.hpp"

#include <cstdint>
#include <vector>

namespace di::chaos {

class token_times {
public:
  /// Times in the answers count from the batch_began event of the life that wrote them.
  token_times(const std::vector<answer>& answers, const std::vector<log_event>& events);

  /// Over all gaps that ended before `before_us`. 0 without any.
  double median_gap_ms(std::int64_t before_us) const;
  /// Tokens over the time from the first to the last one.
  double tokens_per_s() const;
  /// Of streams that were open between the fault and `until_us`. Victims of others of `all` that
  /// struck about the same time count as nothing.
  pauses pauses_of(const injected& fault, std::int64_t until_us,
                   const std::vector<injected>& all = {}) const;

  /// Of streams that were open: the longest gap that began between `from_us` and `until_us` and
  /// ended after `at_us`, minus the stream's median gap before `at_us`. [ms]
  std::vector<double> pauses_around(std::int64_t at_us, std::int64_t from_us,
                                    std::int64_t until_us) const;

private:
  struct timed_stream {
    std::int64_t submitted_us = 0;
    std::vector<std::int64_t> token_us;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> served_by;
    std::uint32_t rank_of(std::size_t token) const;
  };
  std::vector<timed_stream> streams_;
};

} // namespace di::chaos
