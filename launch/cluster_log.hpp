// SPDX-License-Identifier: Apache-2.0
// What the processes of a run say: prefixed on stderr, kept in one file each.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdio>
#include <map>
#include <memory>
#include <string>

namespace di::launch {

/// Used by one thread.
class cluster_log {
public:
  explicit cluster_log(bool quiet) : quiet_{quiet} {}

  /// Keeps lines in `<folder>/<process>.log` from now on; makes the folder. @errors io_error
  result<void> keep(const std::string& folder);
  /// One line of a process: "[rank 3] text".
  void line(const std::string& process, const std::string& text);
  /// One line of the launcher itself.
  void note(const std::string& text);
  /// One line to the user, --quiet or not.
  void tell(const std::string& text);
  /// The last line of all: why the run ended.
  void last(const std::string& reason) { tell(reason); }

private:
  struct closer {
    void operator()(std::FILE* f) const noexcept { std::fclose(f); }
  };
  bool quiet_;
  std::string folder_;
  std::map<std::string, std::unique_ptr<std::FILE, closer>> files_;
};

} // namespace di::launch
