// SPDX-License-Identifier: Apache-2.0
// mkdtemp, flock, and the sweep of abandoned directories.
#include "launch/run_dir.hpp"

#include "messaging/base/env.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

/// Socket paths have 108 bytes; names inside need about 40.
constexpr std::size_t base_bytes_max = 40;

std::string base_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  struct stat s {};
  if (runtime && std::strlen(runtime) <= base_bytes_max && ::stat(runtime, &s) == 0
      && S_ISDIR(s.st_mode) && s.st_uid == ::getuid() && ::access(runtime, W_OK) == 0)
    return runtime;
  return "/tmp";
}

unique_fd lock_of(const std::string& folder, int flags) {
  unique_fd fd{::open((folder + "/lock").c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    fd.reset();
  return fd;
}

void sweep(const std::string& base, const std::string& prefix) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{base, ignored}) {
    const auto path = entry.path().string();
    struct stat s {};
    if (!entry.path().filename().string().starts_with(prefix) || ::lstat(path.c_str(), &s) != 0
        || !S_ISDIR(s.st_mode) || s.st_uid != ::getuid())
      continue;
    if (const auto lock = lock_of(path, 0))
      fs::remove_all(path, ignored);
  }
}

} // namespace

result<run_dir> run_dir::make() {
  const auto base = base_folder();
  const auto prefix = fmt::format("di-{}-", ::getuid());
  sweep(base, prefix);
  for (int attempt = 0; attempt < 16; ++attempt) {
    const auto path = fmt::format("{}/{}{:08x}", base, prefix, real_env().random() & 0xffffffffU);
    if (::mkdir(path.c_str(), 0700) != 0) {
      if (errno == EEXIST)
        continue;
      return fail(ec::io_error, "cannot make {}: {}", path, std::strerror(errno));
    }
    run_dir d;
    d.path_ = path;
    d.lock_ = lock_of(path, O_CREAT);
    if (d.lock_)
      return d;
  }
  return fail(ec::io_error, "cannot make a directory {}* in {}", prefix, base);
}

std::vector<std::string> run_dir::all() {
  std::vector<std::string> paths;
  std::error_code ignored;
  const auto prefix = fmt::format("di-{}-", ::getuid());
  for (const auto& entry : fs::directory_iterator{base_folder(), ignored})
    if (entry.path().filename().string().starts_with(prefix))
      paths.push_back(entry.path().string());
  return paths;
}

run_dir::~run_dir() {
  if (!lock_)
    return; // moved from
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  lock_.reset();
  // A node process of ours that was killed on this host could not remove its own.
  sweep(base_folder(), fmt::format("di-{}-", ::getuid()));
}

} // namespace di::launch
