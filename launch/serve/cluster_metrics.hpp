// SPDX-License-Identifier: Apache-2.0
// Metrics of the cluster as a whole, for the admin listener: what each gateway counts is not here,
// so that nothing is counted twice.
#pragma once

#include "launch/serve/cluster_reader.hpp"
#include "launch/serve/metric_page.hpp"

#include <string>

namespace di::serve {

/// Sums over all ranks, none per layer, expert or rank. Counters fall to 0 when the control process
/// starts again, as those of any process do.
/// @param vllm  names of vLLM too; @param model  their label `model_name`
void fill_cluster(metric_page& page, const cluster_reading& now, bool vllm,
                  const std::string& model);

} // namespace di::serve
