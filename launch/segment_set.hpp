// SPDX-License-Identifier: Apache-2.0
// The send segments of one host: made by its node process, one per rank, handed to each child once.
#pragma once

#include "launch/boot.hpp"
#include "messaging/base/result.hpp"
#include "messaging/bus/segment.hpp"

#include <map>
#include <vector>

namespace di::launch {

/// Owns the segments of the lives that it was asked for. Used on the node process's main thread.
class segment_set {
public:
  /// Descriptors for one child in the order of boot.segment_lives: writable its own, read-only the
  /// others. Valid as long as this object. Makes segments that are not there yet.
  /// @errors io_error, bad_argument (size)
  result<std::vector<int>> descriptors_for(const boot_config& boot);

  bool has(incarnation life) const { return made_.contains(life); }
  /// For neighbours that run already. @pre has(life)
  int reader_of(incarnation life) const { return made_.at(life).reader.get(); }
  /// The life has ended: its descriptors are closed. Memory goes when its last reader lets go.
  void forget(incarnation life) { made_.erase(life); }
  std::size_t size() const noexcept { return made_.size(); }

private:
  std::map<incarnation, bus::segment_files> made_;
};

/// In the child: whether DI_SHARED_MEMORY leaves it on.
bool shares_memory();

/// In the child: takes over the descriptors from segments_fd on. `wanted`: false closes them.
/// @pre called once
bus::segment_options inherited_segments(const boot_config& boot, bool wanted);

} // namespace di::launch
