// SPDX-License-Identifier: Apache-2.0
// Send segments for tests, and what is left of them in this process.
#pragma once

#include "messaging/base/check.hpp"
#include "messaging/bus/post_office.hpp"
#include "messaging/bus/segment.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace di::test {

/// A segment with copies of its descriptors to give away: an office takes them over.
class test_segment {
public:
  explicit test_segment(std::uint64_t bytes)
      : files_{bus::make_segment("di-test", bytes).value()} {}
  int writer() const { return ::dup(files_.writer.get()); }
  int reader() const { return ::dup(files_.reader.get()); }

private:
  bus::segment_files files_;
};

/// Options of an office that writes `own` and reads `other`, the segment of `life`.
inline bus::post_office_options with_segments(bus::post_office_options o, const test_segment& own,
                                              const test_segment& other, incarnation life) {
  o.segments.own = own.writer();
  o.segments.neighbours = {{life, other.reader()}};
  return o;
}

inline std::size_t open_descriptors() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"})
    ++n;
  return n;
}

inline std::size_t mapped_segments() {
  std::size_t n = 0;
  std::ifstream in{"/proc/self/maps"};
  for (std::string line; std::getline(in, line);)
    n += line.find("memfd:di-test") != std::string::npos;
  return n;
}

} // namespace di::test
