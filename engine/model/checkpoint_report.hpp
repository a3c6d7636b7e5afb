// SPDX-License-Identifier: Apache-2.0
// What `dilaunch checkpoint check` says about a model: sizes, layer kinds, stored types, memory per
// rank. Everything comes from the configuration and headers; data are read only on demand.
#pragma once

#include "engine/model/checkpoint.hpp"
#include "engine/model/problems.hpp"
#include "engine/model/spec.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace di::engine {

/// Bytes of a model's weights by what they are for. Follows from the configuration alone.
struct weight_sizes {
  std::uint64_t dense = 0;        ///< [bytes] all but the following; every rank uses them
  std::uint64_t expert = 0;       ///< [bytes] one routed expert of a backbone layer
  std::uint64_t draft_expert = 0; ///< [bytes] one routed expert of a draft layer
  std::uint64_t experts = 0;      ///< [bytes] all routed experts, drafts too
  std::uint64_t engram = 0;       ///< [bytes] tables; a rank touches few rows a token
  std::uint64_t vision = 0;       ///< [bytes]
  std::uint64_t all() const noexcept { return dense + experts + engram + vision; }
};
weight_sizes sizes_of(const model_spec& spec);

/// What one rank holds or uses. Weights are pages of the mapped files: ranks on one host share
/// them.
struct rank_memory {
  std::uint32_t slots = 0;           ///< routed experts per backbone layer
  std::uint32_t draft_slots = 0;     ///< routed experts per draft layer
  std::uint64_t dense = 0;           ///< [bytes] the same pages on every rank
  std::uint64_t experts = 0;         ///< [bytes] in the slots
  std::uint64_t engram = 0;          ///< [bytes] the same pages on every rank
  std::uint64_t vision = 0;          ///< [bytes] the same pages on every rank
  double kv_per_token = 0;           ///< [bytes] compressed KV and index keys
  std::uint64_t kv_per_sequence = 0; ///< [bytes] window rings and tails
  std::uint64_t weights() const noexcept { return dense + experts + engram + vision; }
};

/// @param ep         [ranks] at least 1
/// @param redundant  [experts] copies per layer beyond one of each
rank_memory memory_of_rank(const model_spec& spec, std::uint32_t ep, std::uint32_t redundant);

struct report_options {
  std::uint32_t ep = 1;        ///< [ranks]
  std::uint32_t redundant = 0; ///< [experts] per layer
  std::uint64_t context = 0;   ///< [tokens] for the KV line; 0: the model's maximum
};

/// The whole report as text, lines of at most 100 columns.
std::string render_report(const checkpoint& source, const report_options& options);

/// The tensors that a config demands, one line each: name, type, shape.
std::string render_tensor_list(const model_spec& spec);

/// "1.50 GiB"
std::string shown_bytes(std::uint64_t bytes);

/// Reads all data and reports values that no weight may have: NaN or infinity in BF16 and F32, NaN
/// codes of E4M3, the NaN scale of E8M0. One defect per tensor, with count and first index.
/// @param progress  bytes done and in all; called now and then
void check_values(const checkpoint& source, problem_list& problems,
                  const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

} // namespace di::engine
