// SPDX-License-Identifier: Apache-2.0
// The pages of routed experts' weights: read ahead before somebody asks for them, let go when they
// live elsewhere.
#pragma once

#include "messaging/base/ids.hpp"

#include <cstddef>
#include <memory>

namespace di::engine {

class loaded_model;

/// Brings experts near and lets them go. Owned by EXPERT_SHARD, used on its thread only. None of it
/// changes what an expert computes: whoever asks for one that was let go only waits for its pages.
class expert_loader {
public:
  virtual ~expert_loader() = default;
  /// Has the system begin to read an expert's weights; returns at once.
  virtual void announce(layer_id layer, expert_id expert) = 0;
  /// Makes sure of some of them. @param done  [bytes] made sure of before
  /// @return  [bytes] made sure of now, at most about `bytes_max`; 0: that was all of it
  virtual std::size_t touch(layer_id layer, expert_id expert, std::size_t done,
                            std::size_t bytes_max) = 0;
  /// Drops the pages that this process has mapped. The files stay in the host's cache.
  virtual void release(layer_id layer, expert_id expert) = 0;
};

/// Of a model whose weights lie in mapped files; it stays alive. Experts that the model does not
/// have are nothing to load.
std::shared_ptr<expert_loader> own_expert_loader(std::shared_ptr<const loaded_model> model);

} // namespace di::engine
