// SPDX-License-Identifier: Apache-2.0
// Reading log files to their ends, and on.
#include "launch/log_follow.hpp"

#include "launch/process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

struct told_line {
  std::string time, text; ///< time: of the line, or of the one before it in its file
};

/// One file, read on from where it was left.
struct log_file {
  std::string process;
  unique_fd fd;
  std::string pending, time;

  /// Complete lines with `grep` that came since; the last ones only, unless `last` is 0.
  std::deque<told_line> read(const std::string& grep, std::uint64_t last) {
    std::deque<told_line> out;
    std::array<char, 65536> block{};
    ssize_t n = 0;
    while ((n = ::read(fd.get(), block.data(), block.size())) > 0 || (n < 0 && errno == EINTR)) {
      if (n > 0)
        pending.append(block.data(), static_cast<std::size_t>(n));
      take_lines(out, grep);
      while (last > 0 && out.size() > last)
        out.pop_front();
    }
    return out;
  }

private:
  void take_lines(std::deque<told_line>& out, const std::string& grep) {
    std::size_t start = 0;
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n', start)) {
      auto text = pending.substr(start, end - start);
      constexpr std::size_t stamp_bytes = 27; // 2026-01-01T00:00:00.000000Z
      if (text.size() > stamp_bytes && text[4] == '-' && text[10] == 'T'
          && text[stamp_bytes - 1] == 'Z')
        time = text.substr(0, stamp_bytes);
      if (text.find(grep) != std::string::npos)
        out.push_back({time, std::move(text)});
      start = end + 1;
    }
    pending.erase(0, start);
  }
};

class follower {
public:
  follower(const log_follow_options& o, int to) : o_{o}, to_{to} {}

  /// Files that came, and what they hold by now. `last`: only so many lines of each; 0: all.
  result<void> look(std::uint64_t last) {
    std::error_code code;
    for (const auto& e : fs::directory_iterator{o_.folder, code}) {
      auto name = e.path().filename().string();
      if (!name.ends_with(".log"))
        continue;
      name.resize(name.size() - 4);
      if (!wanted(name) || files_.contains(name))
        continue;
      unique_fd fd{::open(e.path().c_str(), O_RDONLY | O_CLOEXEC)};
      if (fd)
        files_.emplace(name, log_file{shown(name), std::move(fd), {}, {}});
    }
    if (code)
      return fail(ec::not_found, "{}: {}", o_.folder, code.message());
    std::vector<std::pair<std::string, std::string>> all; // time, line
    for (auto& [name, file] : files_) {
      for (auto& l : file.read(o_.grep, last))
        all.emplace_back(std::move(l.time), fmt::format("[{}] {}\n", file.process, l.text));
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string text;
    for (const auto& [time, line] : all)
      text += line;
    return write_all(to_, text);
  }

private:
  static std::string shown(std::string name) {
    std::replace(name.begin(), name.end(), '_', ' ');
    return name;
  }
  bool wanted(const std::string& name) const {
    if (o_.rank)
      return name == fmt::format("rank_{}", *o_.rank);
    return o_.role.empty() || name == o_.role || name.starts_with(o_.role + "_");
  }

  const log_follow_options& o_;
  int to_;
  std::map<std::string, log_file> files_;
};

} // namespace

result<void> follow_logs(const log_follow_options& o, int to) {
  follower f{o, to};
  const unique_fd changes{::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
  if (o.follow
      && (!changes
          || ::inotify_add_watch(changes.get(), o.folder.c_str(),
                                 IN_MODIFY | IN_CREATE | IN_DELETE_SELF)
                 < 0))
    return fail(ec::not_found, "{}: {}", o.folder, std::strerror(errno));
  const unique_fd run{
      o.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(o.pid), 0)) : -1};
  DI_TRY_VOID(f.look(o.lines));
  while (o.follow) {
    std::array<pollfd, 2> wait{{{changes.get(), POLLIN, 0}, {run.get(), POLLIN, 0}}};
    if (::poll(wait.data(), wait.size(), -1) < 0 && errno != EINTR)
      return fail(ec::io_error, "poll: {}", std::strerror(errno));
    std::array<char, 65536> events{};
    while (::read(changes.get(), events.data(), events.size()) > 0) {
    }
    const bool ended = o.pid > 0 && (!run || wait[1].revents != 0);
    const auto looked = f.look(0); // the folder of a run that has ended may be gone
    if (ended)
      return {};
    DI_TRY_VOID(looked);
  }
  return {};
}

} // namespace di::launch
