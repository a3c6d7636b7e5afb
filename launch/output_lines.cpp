// SPDX-License-Identifier: Apache-2.0
// Pipe -> lines -> output.
#include "launch/output_lines.hpp"

#include <climits>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace di::launch {
namespace {

constexpr std::size_t read_bytes = 64 * 1024;
constexpr std::size_t ahead_bytes_max = 1U << 20U; ///< lines taken and not out; then the pipe fills

} // namespace

bool tells_failure(std::string_view line) {
  // Within a string the quotes would be escaped.
  return line.find("\"error\":{\"code\":") != std::string_view::npos;
}

output_lines::output_lines(int to)
    : to_{to},
      wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)},
      failure_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  sigset_t all, before;
  sigfillset(&all); // signals are the main thread's; of a closed pipe EPIPE tells
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread{[this] { run(); }};
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

output_lines::~output_lines() {
  if (thread_.joinable())
    (void)finish(std::chrono::milliseconds{0});
}

result<void> output_lines::finish(std::optional<std::chrono::milliseconds> limit) {
  close();
  std::unique_lock lock{guard_};
  ending_ = true;
  (void)::eventfd_write(wake_.get(), 1);
  const auto done = [this] { return done_; };
  if (!limit)
    ended_.wait(lock, done);
  else if (!ended_.wait_for(lock, *limit, done)) {
    abandoned_ = true;
    (void)::eventfd_write(wake_.get(), 1);
  }
  lock.unlock();
  thread_.join();
  return outcome();
}

result<void> output_lines::outcome() const {
  const std::lock_guard lock{guard_};
  if (broken_)
    return fail(*broken_);
  return {};
}

void output_lines::open(unique_fd from) {
  const std::lock_guard lock{guard_};
  if (broken_)
    return; // its writer learns by EPIPE
  from_ = std::move(from);
  part_.clear();
  (void)::eventfd_write(wake_.get(), 1);
}

void output_lines::close() {
  const std::lock_guard lock{guard_};
  while (from_ && read_some()) {
  }
  from_.reset();
  part_.clear();
}

/// @return false: nothing is there now, or the writer has ended
bool output_lines::read_some() {
  std::array<char, read_bytes> buffer;
  const ssize_t n = ::read(from_.get(), buffer.data(), buffer.size());
  if (n < 0 && errno == EINTR)
    return true;
  if (n == 0)
    from_.reset();
  if (n <= 0)
    return false;
  take({buffer.data(), static_cast<std::size_t>(n)});
  return true;
}

void output_lines::take(std::string_view bytes) {
  for (std::size_t end; (end = bytes.find('\n')) != std::string_view::npos;) {
    part_ += bytes.substr(0, end + 1);
    bytes.remove_prefix(end + 1);
    ++lines_;
    failed_ += tells_failure(part_);
    whole_ += part_;
    part_.clear();
  }
  part_ += bytes;
}

void output_lines::run() {
  std::string out;
  std::unique_lock lock{guard_};
  for (;;) {
    out.clear();
    out.swap(whole_);
    if (broken_)
      out.clear();
    if (out.empty() && ending_)
      break;
    const int from = from_.get();
    lock.unlock();
    if (!out.empty()) {
      auto written = write(out);
      lock.lock();
      if (!written) {
        broken_ = written.error();
        from_.reset(); // its writer learns by EPIPE
        (void)::eventfd_write(failure_.get(), 1);
      }
      continue;
    }
    std::array<pollfd, 2> ready{{{wake_.get(), POLLIN, 0}, {from, POLLIN, 0}}};
    (void)::poll(ready.data(), from < 0 ? 1 : 2, -1);
    eventfd_t ignored = 0;
    (void)::eventfd_read(wake_.get(), &ignored);
    lock.lock();
    while (from_ && whole_.size() < ahead_bytes_max && read_some()) {
    }
  }
  done_ = true;
  ended_.notify_all();
}

/// In pieces that a pipe with room takes whole, so that it never waits in write() but in poll().
result<void> output_lines::write(std::string_view text) {
  while (!text.empty()) {
    std::array<pollfd, 2> ready{{{to_, POLLOUT, 0}, {wake_.get(), POLLIN, 0}}};
    (void)::poll(ready.data(), 2, -1);
    if (ready[1].revents != 0) {
      eventfd_t ignored = 0;
      (void)::eventfd_read(wake_.get(), &ignored);
      const std::lock_guard lock{guard_};
      if (abandoned_)
        return fail(ec::deadline_exceeded, "output: its reader did not take {} bytes", text.size());
    }
    if (ready[0].revents == 0)
      continue;
    const ssize_t n = ::write(to_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (n >= 0)
      text.remove_prefix(static_cast<std::size_t>(n));
    else if (errno == EPIPE)
      return fail(ec::cancelled, "output: its reader has gone");
    else if (errno != EINTR && errno != EAGAIN)
      return fail(ec::io_error, "output: write failed: {}", std::strerror(errno));
  }
  return {};
}

result<written_lines> mend_output(int fd, const std::string& name) {
  written_lines all;
  std::vector<char> buffer(1U << 20U);
  std::string part;
  std::uint64_t offset = 0;
  for (;;) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(ec::io_error, "--output {}: offset {}: {}", name, offset, std::strerror(errno));
    if (n == 0)
      break;
    offset += static_cast<std::uint64_t>(n);
    part.append(buffer.data(), static_cast<std::size_t>(n));
    std::size_t from = 0;
    for (std::size_t end; (end = part.find('\n', from)) != std::string::npos; from = end + 1) {
      ++all.lines;
      all.failed += tells_failure(std::string_view{part}.substr(from, end - from));
      all.bytes += end + 1 - from;
    }
    part.erase(0, from);
  }
  if (offset != all.bytes && ::ftruncate(fd, static_cast<off_t>(all.bytes)) != 0)
    return fail(ec::io_error, "--output {}: cannot be cut to {} bytes: {}", name, all.bytes,
                std::strerror(errno));
  return all;
}

} // namespace di::launch
