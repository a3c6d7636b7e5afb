// SPDX-License-Identifier: Apache-2.0
#include "launch/segment_set.hpp"

#include "launch/process.hpp"
#include "messaging/base/limits.hpp"
#include "messaging/bus/start_checks.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

namespace di::launch {

result<std::vector<int>> segment_set::descriptors_for(const boot_config& boot) {
  // Per rank two for its segment, pipes and a pidfd.
  constexpr std::size_t descriptors_per_rank = 16;
  std::vector<int> out;
  if (!boot.segment_lives.empty())
    DI_TRY_VOID(bus::raise_descriptor_limit(descriptors_per_rank * boot.segment_lives.size()
                                            + limits::descriptors_other));
  for (std::size_t i = 0; i < boot.segment_lives.size(); ++i) {
    const incarnation life = boot.segment_lives[i];
    auto at = made_.find(life);
    if (at == made_.end()) {
      DI_TRY(auto files,
             bus::make_segment(fmt::format("di-send-{:x}", life.v), boot.segment_bytes));
      at = made_.emplace(life, std::move(files)).first;
    }
    out.push_back(life == boot.life ? at->second.writer.get() : at->second.reader.get());
  }
  return out;
}

bool shares_memory() {
  const char* shared = std::getenv("DI_SHARED_MEMORY");
  return shared == nullptr || std::string_view{shared} != "off";
}

bus::segment_options inherited_segments(const boot_config& boot, bool wanted) {
  bus::segment_options out;
  for (std::size_t i = 0; i < boot.segment_lives.size(); ++i) {
    const int fd = segments_fd + static_cast<int>(i);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!wanted)
      ::close(fd);
    else if (boot.segment_lives[i] == boot.life)
      out.own = fd;
    else
      out.neighbours.push_back({boot.segment_lives[i], fd});
  }
  return out;
}

} // namespace di::launch
