// SPDX-License-Identifier: Apache-2.0
// Rows that leave a step on the way up because no later layer needs them: compact prefill and exact
// replay. Private to engine/model.
#pragma once

#include "engine/model/step_context.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace di::engine {

/// One layer's cut: find(), then publish() and keep(), then compact() each buffer of rows.
///
/// Rows below a sequence's row_floor() are the first of its segment, so a cut is to the layer what
/// the border between two chunks is: the rows that leave write window rows and entries, those that
/// stay find them in rings, tails and pages.
class row_cut {
public:
  /// True if some row of the step lies below its sequence's floor at the layer.
  bool find(const step_context& step, std::int64_t layer);
  /// Makes the step consist of the rows that leave and write something that is read later.
  /// @param normed  [rows, hidden] of all rows
  /// @return        [step.rows, hidden] of the new step's rows; null if no row is left in it
  const bf16* publish(step_context& step, const bf16* normed);
  /// Makes the step consist of the rows that stay. A segment may be left without rows.
  void keep(step_context& step);
  /// Moves the rows that stay together, in place. rows [rows before, row_bytes]
  void compact(void* rows, std::size_t row_bytes) const;

private:
  struct part {
    segment_rows before;
    std::int64_t gone = 0;  ///< rows that leave
    bool publishes = false; ///< they write something
  };
  static void enter(step_context& step);

  std::vector<part> parts_; ///< [segments]
  buffer<bf16> leaving_;    ///< [rows that leave, hidden]
};

} // namespace di::engine
