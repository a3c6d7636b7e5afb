// SPDX-License-Identifier: Apache-2.0
// Sums the counters of all processes, over their restarts.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/outbox.hpp"
#include "messaging/proto/telemetry.hpp"

#include <map>

namespace di::engine {

/// Each process reports totals of its life. When a new life of a source reports, the old life's
/// last totals are kept as its base: the sums never fall.
class telemetry_core {
public:
  static constexpr std::size_t sources_max = 4'096;
  static constexpr std::size_t counters_max = 4'096; ///< per source

  void on(const proto::sample& m, instant now, outbox& out);
  result<proto::snapshot> on(const proto::get_snapshot& m) const;
  void check() const;

private:
  struct source {
    incarnation life{};
    std::uint64_t sequence = 0;
    std::map<std::string, double> latest; ///< of this life
    std::map<std::string, double> base;   ///< of all lives before
    std::vector<incarnation> past; ///< the last few lives; late samples of theirs are dropped
  };

  std::map<address, source> sources_;
  std::uint64_t samples_ = 0, dropped_ = 0;
};

} // namespace di::engine
