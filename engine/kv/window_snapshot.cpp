// SPDX-License-Identifier: Apache-2.0
// Windows as bytes: six numbers, then the rings.
#include "engine/kv/window_snapshot.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace di::engine {

namespace {

using head = std::array<std::int64_t, 6>;

} // namespace

std::vector<std::byte> pack(const window_snapshot& windows) {
  const head h{windows.length,
               windows.layers,
               windows.rows,
               windows.draft_rows,
               static_cast<std::int64_t>(windows.rings.size()),
               static_cast<std::int64_t>(windows.draft_rings.size())};
  std::vector<std::byte> out(sizeof h + windows.rings.size() + windows.draft_rings.size());
  std::memcpy(out.data(), h.data(), sizeof h);
  std::copy(windows.rings.begin(), windows.rings.end(), out.begin() + sizeof h);
  std::copy(windows.draft_rings.begin(), windows.draft_rings.end(),
            out.end() - static_cast<std::ptrdiff_t>(windows.draft_rings.size()));
  return out;
}

result<window_snapshot> unpack_windows(std::span<const std::byte> bytes) {
  head h{};
  if (bytes.size() < sizeof h)
    return fail(ec::bad_format, "windows of {} bytes have no head", bytes.size());
  std::memcpy(h.data(), bytes.data(), sizeof h);
  const auto body = bytes.subspan(sizeof h);
  const auto size = static_cast<std::int64_t>(body.size());
  if (std::any_of(h.begin(), h.end(), [](std::int64_t n) { return n < 0; }) || h[4] > size
      || h[5] != size - h[4])
    return fail(ec::bad_format, "windows of {} and {} bytes are not in {} bytes", h[4], h[5], size);
  window_snapshot out;
  out.length = h[0];
  out.layers = h[1];
  out.rows = h[2];
  out.draft_rows = h[3];
  const auto rings = body.first(static_cast<std::size_t>(h[4]));
  const auto drafts = body.subspan(rings.size());
  out.rings.assign(rings.begin(), rings.end());
  out.draft_rings.assign(drafts.begin(), drafts.end());
  return out;
}

} // namespace di::engine
