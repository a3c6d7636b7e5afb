// SPDX-License-Identifier: Apache-2.0
// A window into a running step, for golden tests and `dilaunch checkpoint verify`: sees every named
// tensor as it is made and may overwrite it, so that each operation can be fed with stored inputs.
#pragma once

#include <cstdint>
#include <string_view>

namespace di::engine {

enum class probe_type : std::uint8_t { bfloat16, float32, int32 };

/// One tensor of all rows of a step, dense [rows, width].
struct probe_tensor {
  std::int64_t layer = 0; ///< backbone layer; its count for what follows the last layer
  std::string_view name;  ///< as in the golden captures: X_in, attn_in, sel, ...
  probe_type type = probe_type::bfloat16;
  void* data =
      nullptr; ///< may be changed where it is an activation; ids and cached rows are copies
  std::int64_t rows = 0, width = 0;
};

/// Called on the step's thread. @see attach_probe in engine/model/forward.hpp
class step_probe {
public:
  virtual ~step_probe() = default;
  virtual void visit(const probe_tensor& tensor) = 0;
};

} // namespace di::engine
