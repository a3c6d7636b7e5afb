// SPDX-License-Identifier: Apache-2.0
// A private directory for sockets under a short path, removed at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace di::test {

class run_dir {
public:
  run_dir() {
    char name[] = "/tmp/di-test-XXXXXX";
    path_ = ::mkdtemp(name); // mode 0700
  }
  ~run_dir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  run_dir(const run_dir&) = delete;
  run_dir& operator=(const run_dir&) = delete;

  const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
};

} // namespace di::test
