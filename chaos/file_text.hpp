// SPDX-License-Identifier: Apache-2.0
// What stands in a file.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace di::chaos {

/// Empty if it cannot be read: files of processes go with them.
inline std::string file_text(const std::filesystem::path& path) {
  const std::ifstream file{path, std::ios::binary};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

} // namespace di::chaos
