// SPDX-License-Identifier: Apache-2.0
// The token file.
#include "launch/join_token.hpp"

#include "launch/process.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace di::launch {

using nlohmann::json;

result<void> check_token_file(const std::string& file) {
  struct stat s {};
  if (::lstat(file.c_str(), &s) == 0)
    return fail(ec::duplicate,
                "token file {}: exists already; name a new one, or remove it if no run uses it",
                file);
  if (errno != ENOENT)
    return fail(ec::io_error, "token file {}: {}", file, std::strerror(errno));
  const auto folder = std::filesystem::absolute(file).parent_path().string();
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return fail(ec::io_error, "token file {}: folder {}: {}", file, folder, std::strerror(errno));
  return {};
}

result<void> write_token(const std::string& file, const join_token& t) {
  const json j{{"prefix", t.launcher.prefix},
               {"life", t.launcher.life.v},
               {"control", t.launcher.control_endpoint},
               {"bulk", t.launcher.bulk_endpoint},
               {"launcher_key", t.launcher.curve_key},
               {"public", t.keys.public_key},
               {"secret", t.keys.secret_key}};
  const auto fresh = fmt::format("{}.{}", file, ::getpid());
  ::unlink(fresh.c_str());
  const unique_fd fd{::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (!fd)
    return fail(ec::io_error, "token file {}: {}", file, std::strerror(errno));
  if (const auto written = write_all(fd.get(), j.dump() + "\n"); !written.ok()) {
    ::unlink(fresh.c_str());
    return fail(ec::io_error, "token file {}: {}", file, written.error().what);
  }
  // Complete at once, and never in place of a file that is there.
  const int code = ::link(fresh.c_str(), file.c_str()) == 0 ? 0 : errno;
  ::unlink(fresh.c_str());
  if (code != 0)
    return fail(code == EEXIST ? ec::duplicate : ec::io_error, "token file {}: {}", file,
                std::strerror(code));
  return {};
}

result<join_token> read_token(const std::string& file) {
  const unique_fd fd{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!fd)
    return fail(ec::io_error, "token file {}: {}", file, std::strerror(errno));
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode))
    return fail(ec::io_error, "token file {}: no regular file", file);
  if ((s.st_mode & 077U) != 0)
    return fail(ec::refused, "token file {} has mode {:o}: others may read it; chmod 600", file,
                s.st_mode & 0777U);
  DI_TRY(const auto text, read_all(fd.get(), 65'536));
  try {
    const auto j = json::parse(text);
    join_token t;
    t.launcher.prefix = j.at("prefix").get<std::string>();
    t.launcher.life = incarnation{j.at("life").get<std::uint64_t>()};
    t.launcher.control_endpoint = j.at("control").get<std::string>();
    t.launcher.bulk_endpoint = j.at("bulk").get<std::string>();
    t.launcher.curve_key = j.at("launcher_key").get<std::string>();
    t.keys = {j.at("public").get<std::string>(), j.at("secret").get<std::string>()};
    return t;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "token file {}: {}", file, e.what());
  }
}

} // namespace di::launch
