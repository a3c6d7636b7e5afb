// SPDX-License-Identifier: Apache-2.0
// What a sequence remembers besides pages, as plain data: the floors that its rows were computed
// under, and a copy of its windows at one length. Who fills and reads it: engine/model.
#pragma once

#include "messaging/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

/// Positions below which parts of a sequence are not computed, read or written. All zero: a cold
/// run in which every row goes through every layer.
/// @source doc/adr/0008-floors-and-the-cut.md; spec of the model, 4.3 to 4.5
struct sequence_floors {
  /// Window attention of layers up to the last KV source reads nothing below it.
  std::int64_t encoder = 0;
  /// Layers behind the last KV source compute no row below it and read no window row below it or
  /// below `encoder`. No logits and no taps below it.
  std::int64_t decoder = 0;
  /// Compressed entries of positions below it stay as they are; a multiple of the page size.
  std::int64_t write = 0;
  /// Exact replay from `encoder` on: layer l computes only rows from encoder + (l + 1) * (window -
  /// 1) on, those whose window is complete, so every value made is that of a cold run.
  bool ramp = false;

  friend bool operator==(const sequence_floors&, const sequence_floors&) = default;
};

/// Which layers a snapshot covers; one kind does not serve for the other.
enum class snapshot_kind : std::uint8_t {
  full = 0,    ///< all rings, of a run without decoder floor
  encoder = 1, ///< rings up to the last KV source; for compact prefill, below its decoder floor
};

/// Window rows of the last window - 1 positions at one length, a multiple of the page size (so no
/// pair is open). Immutable once made; shared by pointer.
struct window_snapshot {
  std::int64_t length = 0;      ///< [tokens]
  std::int64_t layers = 0;      ///< rings [0, layers) are in it
  std::int64_t rows = 0;        ///< per layer: min(length, window - 1), the last ones before length
  std::vector<std::byte> rings; ///< [layers, rows, window row] packed rows, positions ascending
  std::int64_t draft_rows = 0;  ///< of draft rings, the last ones before length; 0: none were fed
  std::vector<std::byte> draft_rings; ///< [draft layers, draft rows, window row]

  /// Memory that it takes. [bytes]
  std::size_t bytes() const noexcept { return sizeof *this + rings.size() + draft_rings.size(); }
};

/// As bytes, for another rank.
std::vector<std::byte> pack(const window_snapshot& windows);
/// @errors ec::bad_format (lengths that do not fit)
result<window_snapshot> unpack_windows(std::span<const std::byte> bytes);

} // namespace di::engine
