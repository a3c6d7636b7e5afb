// SPDX-License-Identifier: Apache-2.0
// Metrics of all gateways of a cluster on one page: each process answers for itself, one asks them
// all.
#pragma once

#include "launch/serve/asker.hpp"
#include "launch/serve/serving_metrics.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace di::serve {

/// Answers get_metrics at <prefix>/metrics until it is destroyed.
class metrics_desk {
public:
  /// @errors duplicate
  static result<std::unique_ptr<metrics_desk>> open(bus::post_office& office, const address& prefix,
                                                    std::shared_ptr<const serving_metrics> metrics);
  ~metrics_desk();
  metrics_desk(const metrics_desk&) = delete;
  metrics_desk& operator=(const metrics_desk&) = delete;

private:
  metrics_desk(bus::post_office& office, address path) : office_{office}, path_{std::move(path)} {}
  bus::post_office& office_;
  address path_;
};

/// Asks every gateway that this process has a route to, and itself. One that does not answer in
/// time is missing. @param done  the merged page; called once, on any thread
void read_gateways(bus::post_office& office, asker& from, const address& self,
                   std::function<void(std::string)> done);

/// One page of several: the series of a family together, in the order of the pages. Help and type
/// are those of the first page that has the family. Lines that belong to no family are dropped.
std::string merged_pages(const std::vector<std::string>& pages);

} // namespace di::serve
