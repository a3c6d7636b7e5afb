// SPDX-License-Identifier: Apache-2.0
// A directory for one test, removed when the test ends.
#pragma once

#include <filesystem>
#include <string>
#include <unistd.h>

namespace di::testing {

class temporary_directory {
public:
  explicit temporary_directory(const std::string& name)
      : path_{(std::filesystem::temp_directory_path()
               / ("di_" + name + "_" + std::to_string(::getpid())))
                  .string()} {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  ~temporary_directory() { std::filesystem::remove_all(path_); }

  const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
};

} // namespace di::testing
