// SPDX-License-Identifier: Apache-2.0
// What every benchmark prints beside its figures, and a median.
#pragma once

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace di::test {

/// First line of a command's output.
inline std::string first_line(const std::string& command) {
  char text[256] = {};
  if (std::FILE* p = ::popen(command.c_str(), "r")) {
    if (std::fgets(text, sizeof text, p) == nullptr)
      text[0] = 0;
    ::pclose(p);
  }
  std::string line{text};
  while (!line.empty() && line.back() == '\n')
    line.pop_back();
  return line;
}

inline std::string processor() {
  std::ifstream in{"/proc/cpuinfo"};
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      return line.substr(line.find(':') + 2);
  return "unknown";
}

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

} // namespace di::test
