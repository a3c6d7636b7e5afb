// SPDX-License-Identifier: Apache-2.0
// The token file.
#include "launch/join_token.hpp"

#include "launch/process.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace di::launch {

using nlohmann::json;

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
  DI_TRY_VOID(write_all(fd.get(), j.dump() + "\n"));
  if (std::rename(fresh.c_str(), file.c_str()) != 0) {
    const int code = errno;
    ::unlink(fresh.c_str());
    return fail(ec::io_error, "token file {}: {}", file, std::strerror(code));
  }
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
