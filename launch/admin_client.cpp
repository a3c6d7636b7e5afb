// SPDX-License-Identifier: Apache-2.0
// Looking for admin sockets, and one question over one of them.
#include "launch/admin_client.hpp"

#include "launch/admin_server.hpp"
#include "launch/process.hpp"
#include "launch/run_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace di::launch {
namespace {

/// One that is stopped is no reason not to see the others.
constexpr std::chrono::seconds who_limit{2};

struct found_run {
  std::string dir, topology;
  std::int64_t pid = 0;
};

result<unique_fd> connect_to(const std::string& run_dir) {
  const auto path = run_dir + "/" + admin_socket_name;
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.size() >= sizeof(at.sun_path))
    return fail(ec::not_found, "{}: too long for a socket", path);
  std::memcpy(at.sun_path, path.c_str(), path.size() + 1);
  unique_fd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0)
    return fail(ec::not_found, "no run listens at {}: {}", path, std::strerror(errno));
  return fd;
}

} // namespace

result<std::string> ask_run(const std::string& run_dir, const std::string& line,
                            std::chrono::seconds limit) {
  DI_TRY(const auto fd, connect_to(run_dir));
  const timeval patience{limit.count(), 0}; // of zero: for ever
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  DI_TRY_VOID(write_all(fd.get(), line + "\n"));
  std::string answer;
  while (answer.find('\n') == std::string::npos) {
    char block[65536];
    const auto n = ::read(fd.get(), block, sizeof(block));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN)
      return fail(ec::deadline_exceeded, "{}: no answer within {} s", run_dir, limit.count());
    if (n < 0)
      return fail(ec::io_error, "{}: {}", run_dir, std::strerror(errno));
    if (n == 0)
      return fail(ec::unavailable, "{}: the run ended without an answer", run_dir);
    answer.append(block, static_cast<std::size_t>(n));
  }
  return answer.substr(0, answer.find('\n'));
}

result<std::string> find_run(const std::string& wanted) {
  if (wanted.find('/') != std::string::npos) {
    DI_TRY_VOID(connect_to(wanted));
    return wanted;
  }
  std::vector<found_run> runs;
  for (const auto& dir : run_dir::all()) {
    const auto line = ask_run(dir, R"({"command":"who"})", who_limit);
    const auto j = nlohmann::json::parse(line.ok() ? *line : "", nullptr, false);
    if (j.is_object() && j.contains("pid") && j["pid"].is_number_integer())
      runs.push_back({dir, j.value("topology", ""), j["pid"].get<std::int64_t>()});
  }
  if (!wanted.empty()) {
    const auto same = std::find_if(runs.begin(), runs.end(),
                                   [&](const auto& r) { return std::to_string(r.pid) == wanted; });
    if (same == runs.end())
      return fail(ec::not_found, "--run {}: no run of this user has this process id", wanted);
    return same->dir;
  }
  if (runs.empty())
    return fail(ec::not_found, "no run of this user is under way; `dilaunch run` and `dilaunch up` start one");
  if (runs.size() == 1)
    return runs.front().dir;
  std::string all;
  for (const auto& r : runs)
    all += fmt::format("\n  --run {}  (process {}, {})", r.dir, r.pid, r.topology);
  return fail(ec::bad_argument, "{} runs are under way; choose one:{}", runs.size(), all);
}

} // namespace di::launch
