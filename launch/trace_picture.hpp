// SPDX-License-Identifier: Apache-2.0
// One picture of a run from the rings of its processes: a JSON file in the trace event format that
// ui.perfetto.dev and chrome://tracing open.
// @source https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/telemetry.hpp"

#include <functional>
#include <span>
#include <string_view>

namespace di::launch {

/// What went into a picture.
struct picture_summary {
  std::size_t processes = 0;
  std::size_t tracks = 0; ///< lanes: an actor whose spans overlap has several
  std::size_t spans = 0;
  std::size_t flows = 0;  ///< requests that are seen in more than one place
  std::uint64_t lost = 0; ///< spans that rings had overwritten
};

/// Writes the picture through `write`, in blocks.
///
/// A process is a group of tracks (control first, then ranks by number), an actor a track. Spans of
/// a track that overlap without nesting go to further lanes of it, so that every lane nests.
/// Clocks: processes of one host share the monotonic one; hosts are laid on one line by their wall
/// clocks. Spans of one request are tied by arrows in the order of their begins.
///
/// @errors those of `write`
result<picture_summary> write_picture(std::span<const proto::trace_part> parts,
                                      const std::function<result<void>(std::string_view)>& write);

} // namespace di::launch
