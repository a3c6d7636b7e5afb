// SPDX-License-Identifier: Apache-2.0
// Names of a journal's files, and a descriptor with an owner; for journal_file.cpp and
// journal_folder.cpp only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace di::actors {

/// "journal-00000003.log". @param ending  without its dot
std::string journal_file_name(std::uint64_t number, std::string_view ending);
/// Number of a file by its name, or nothing. @param ending  with its dot
std::optional<std::uint64_t> journal_file_number(std::string_view name, std::string_view ending);

class owned_file {
public:
  owned_file() = default;
  explicit owned_file(int fd) : fd_{fd} {}
  owned_file(owned_file&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  owned_file& operator=(owned_file&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~owned_file() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

private:
  int fd_ = -1;
};

} // namespace di::actors
