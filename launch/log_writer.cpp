// SPDX-License-Identifier: Apache-2.0
// Queues of lines, and the thread that empties them.
#include "launch/log_writer.hpp"

#include <climits>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace di::launch {
namespace {

constexpr std::size_t piece_bytes = 16U << 10U;

/// The same pipe or terminal by an open file of our own: O_NONBLOCK on the one that others share
/// would be theirs too. Nothing of a file: that has a position of its own, and always has room.
unique_fd own_description(int fd, bool& socket) {
  struct stat what {};
  if (::fstat(fd, &what) != 0)
    return {};
  socket = S_ISSOCK(what.st_mode);
  if (!S_ISFIFO(what.st_mode) && !::isatty(fd))
    return {};
  return unique_fd{::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                          O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
}

} // namespace

log_writer::log_writer(int to, std::size_t bytes_max)
    : to_{to},
      bytes_max_{bytes_max},
      own_{own_description(to, socket_)},
      wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  sigset_t all, before;
  sigfillset(&all); // signals are the main thread's; of a closed pipe EPIPE tells
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread{[this] { run(); }};
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void log_writer::put(queue& into, entry e) {
  const std::lock_guard lock{guard_};
  if (ending_)
    return;
  into.bytes += e.line.size();
  into.waiting.push_back(std::move(e));
  for (; into.bytes > bytes_max_ && into.waiting.size() > 1; ++into.dropped) {
    into.bytes -= into.waiting.front().line.size();
    into.waiting.pop_front();
  }
  (void)::eventfd_write(wake_.get(), 1);
}

void log_writer::out(std::string line) {
  put(out_, {{}, std::move(line)});
}

void log_writer::file(std::string path, std::string line) {
  put(files_, {std::move(path), std::move(line)});
}

void log_writer::finish(std::chrono::milliseconds without_progress) {
  if (!thread_.joinable())
    return;
  std::unique_lock lock{guard_};
  ending_ = true;
  (void)::eventfd_write(wake_.get(), 1);
  for (auto before = written_; !done_ && !abandoned_; before = written_) {
    const auto moved = [&] { return done_ || written_ != before; };
    abandoned_ = !moved_.wait_for(lock, without_progress, moved);
  }
  (void)::eventfd_write(wake_.get(), 1);
  lock.unlock();
  thread_.join();
}

void log_writer::run() {
  std::unique_lock lock{guard_};
  for (;;) {
    const auto lines = std::exchange(files_.waiting, {});
    files_.bytes = 0;
    if (broken_ || abandoned_) {
      out_ = {};
      piece_.clear();
    }
    next_piece();
    if (lines.empty() && piece_.empty() && ending_)
      break;
    lock.unlock();
    write_files(lines);
    const auto left = piece_.size();
    if ((lines.empty() || !piece_.empty()) && wait_for_room())
      write_some();
    lock.lock();
    written_ += left - piece_.size();
    moved_.notify_all();
  }
  done_ = true;
  moved_.notify_all();
}

/// Lines that are taken here are dropped no more.
void log_writer::next_piece() {
  if (!piece_.empty())
    return;
  if (const auto n = std::exchange(files_.dropped, 0); n > 0)
    piece_ += fmt::format("dilaunch: {} lines of log files dropped: their disk is slow\n", n);
  if (const auto n = std::exchange(out_.dropped, 0); n > 0)
    piece_ += fmt::format("dilaunch: {} lines dropped: nobody read them\n", n);
  while (!out_.waiting.empty() && piece_.size() < piece_bytes) {
    out_.bytes -= out_.waiting.front().line.size();
    piece_ += out_.waiting.front().line;
    out_.waiting.pop_front();
  }
}

/// Or for more to do. @return there is room for some of the piece
bool log_writer::wait_for_room() {
  std::array<pollfd, 2> ready{{{wake_.get(), POLLIN, 0}, {own_ ? own_.get() : to_, POLLOUT, 0}}};
  (void)::poll(ready.data(), piece_.empty() ? 1 : 2, -1);
  eventfd_t ignored = 0;
  (void)::eventfd_read(wake_.get(), &ignored);
  return !piece_.empty() && ready[1].revents != 0;
}

void log_writer::write_some() {
  // A pipe with room takes so much at once, should it block after all.
  const auto bytes = own_ ? piece_.size() : std::min<std::size_t>(piece_.size(), PIPE_BUF);
  const auto n = socket_ ? ::send(to_, piece_.data(), bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                         : ::write(own_ ? own_.get() : to_, piece_.data(), bytes);
  if (n >= 0)
    piece_.erase(0, static_cast<std::size_t>(n));
  else if (errno != EAGAIN && errno != EINTR)
    broken_ = true;
}

void log_writer::write_files(const std::deque<entry>& lines) {
  for (const auto& e : lines) {
    auto& f = open_[e.path];
    if (!f)
      f.reset(std::fopen(e.path.c_str(), "ae"));
    if (f)
      std::fwrite(e.line.data(), 1, e.line.size(), f.get());
  }
  if (!lines.empty())
    for (auto& [path, f] : open_)
      if (f)
        std::fflush(f.get());
}

} // namespace di::launch
