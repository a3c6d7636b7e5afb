// SPDX-License-Identifier: Apache-2.0
// fork, exec, pidfd, memfd.
#include "launch/process.hpp"

#include <climits>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace di::launch {
namespace {

/// Descriptors a process of a run must be able to have: become() parks some at 64 and above, the
/// rest are sockets and pipes.
constexpr rlim_t descriptors_min = 128;

/// Empty, or that so few descriptors are allowed that this is why a call failed.
std::string descriptor_shortage() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= descriptors_min)
    return {};
  return fmt::format("a process may open {} descriptors, at least {} are needed (ulimit -n {})",
                     limit.rlim_cur, descriptors_min, descriptors_min);
}

failure system_failure(std::string_view call) {
  if (errno == EMFILE)
    if (const auto why = descriptor_shortage(); !why.empty())
      return fail(ec::limit_exceeded, "{}: {}", call, why);
  return fail(ec::io_error, "{}: {} (errno {})", call, std::strerror(errno), errno);
}

struct pipe_ends {
  unique_fd read, write;
};

result<pipe_ends> make_pipe() {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0)
    return system_failure("pipe2");
  return pipe_ends{unique_fd{fds[0]}, unique_fd{fds[1]}};
}

/// `read` is ours, `write` the child's; both go both ways.
result<pipe_ends> make_link() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0)
    return system_failure("socketpair");
  return pipe_ends{unique_fd{fds[0]}, unique_fd{fds[1]}};
}

/// Child's side of a placement: descriptor `source` becomes `target`.
struct placement {
  int source, target;
};

/// Runs in the child between fork and exec: async-signal-safe calls only. Reports errno on failure.
/// `high` has room for a descriptor per placement.
[[noreturn]] void become(const std::vector<placement>& places, std::vector<int>& high,
                         char* const* argv, pid_t parent, int report) {
  const auto give_up = [report]() {
    const int code = errno;
    [[maybe_unused]] const auto n = ::write(report, &code, sizeof code);
    ::_exit(127);
  };
  if (::setpgid(0, 0) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
    give_up();
  if (::getppid() != parent) // it ended before the line above took effect
    ::_exit(127);
  // First out of the way of all targets, then onto them.
  const int above = std::max(64, segments_fd + static_cast<int>(places.size()));
  for (std::size_t i = 0; i < places.size(); ++i) {
    high[i] = -1;
    if (places[i].source >= 0 && (high[i] = ::fcntl(places[i].source, F_DUPFD_CLOEXEC, above)) < 0)
      give_up();
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    if (high[i] >= 0 && ::dup2(high[i], places[i].target) < 0)
      give_up();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGCHLD})
    ::signal(number, SIG_DFL);
  ::execvp(argv[0], argv);
  give_up();
  __builtin_unreachable();
}

void do_not_block(const unique_fd& fd) {
  if (fd)
    ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

} // namespace

void unique_fd::reset() noexcept {
  if (fd_ >= 0)
    ::close(fd_);
  fd_ = -1;
}

std::string to_string(const exit_state& state) {
  return state.signal != 0
             ? fmt::format("killed by signal {} ({})", state.signal, ::strsignal(state.signal))
             : fmt::format("exit code {}", state.code);
}

result<child_process> child_process::start(const process_options& options) {
  if (const auto why = descriptor_shortage(); !why.empty())
    return fail(ec::limit_exceeded, "cannot start {}: {}",
                options.argv.empty() ? "" : options.argv[0], why);
  child_process c;
  pipe_ends in, out, err, status, report;
  if (options.pipe_stdin) {
    DI_TRY(in, make_pipe());
  } else {
    in.read = unique_fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  }
  if (options.pipe_stdout) {
    DI_TRY(out, make_pipe());
  }
  DI_TRY(err, make_pipe());
  if (options.with_status) {
    DI_TRY(status, make_link());
  }
  DI_TRY(report, make_pipe());
  unique_fd boot;
  if (options.boot) {
    DI_TRY(boot, sealed_memory("di-boot", *options.boot));
  }
  std::vector<char*> argv;
  for (const auto& a : options.argv)
    argv.push_back(const_cast<char*>(a.c_str())); // NOLINT: exec does not write
  argv.push_back(nullptr);
  const int stdout_of_child = options.pipe_stdout ? out.write.get() : err.write.get();
  std::vector<placement> places{{in.read.get(), 0},
                                {stdout_of_child, 1},
                                {err.write.get(), 2},
                                {boot.get(), boot_fd},
                                {status.write.get(), status_fd},
                                {options.terminal, terminal_fd},
                                {options.life_page, life_fd}};
  for (std::size_t i = 0; i < options.more.size(); ++i)
    places.push_back({options.more[i], segments_fd + static_cast<int>(i)});
  std::vector<int> high(places.size());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0)
    return system_failure("fork");
  if (pid == 0)
    become(places, high, argv.data(), parent, report.write.get());
  c.pid_ = pid;
  report.write.reset();
  int code = 0;
  ssize_t n = 0;
  while ((n = ::read(report.read.get(), &code, sizeof code)) < 0 && errno == EINTR) {
  }
  if (n == sizeof code)
    return fail(ec::io_error, "cannot start {}: {} (errno {})", options.argv[0],
                std::strerror(code), code);
  c.pidfd_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!c.pidfd_)
    return system_failure("pidfd_open");
  ::fcntl(c.pidfd_.get(), F_SETFD, FD_CLOEXEC);
  if (options.pipe_stdin)
    c.in = std::move(in.write);
  c.out = std::move(out.read);
  c.err = std::move(err.read);
  c.status = std::move(status.read);
  do_not_block(c.out);
  do_not_block(c.err);
  do_not_block(c.status);
  return c;
}

child_process::child_process(child_process&& other) noexcept
    : in{std::move(other.in)},
      out{std::move(other.out)},
      err{std::move(other.err)},
      status{std::move(other.status)},
      pid_{std::exchange(other.pid_, -1)},
      pidfd_{std::move(other.pidfd_)},
      state_{other.state_} {
}

child_process& child_process::operator=(child_process&& other) noexcept {
  if (this != &other) {
    end();
    in = std::move(other.in);
    out = std::move(other.out);
    err = std::move(other.err);
    status = std::move(other.status);
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    state_ = other.state_;
  }
  return *this;
}

child_process::~child_process() {
  end();
}

void child_process::end() noexcept {
  if (!running())
    return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void child_process::signal(int number) noexcept {
  if (running())
    ::kill(pid_, number); // not reaped yet, so the pid is still this child's
}

std::optional<exit_state> child_process::poll() {
  if (state_ || pid_ <= 0)
    return state_;
  int status_word = 0;
  const pid_t got = ::waitpid(pid_, &status_word, WNOHANG);
  if (got == pid_) {
    state_ = WIFSIGNALED(status_word) ? exit_state{0, WTERMSIG(status_word)}
                                      : exit_state{WEXITSTATUS(status_word), 0};
  } else if (got < 0 && errno == ECHILD) {
    state_ = exit_state{255, 0}; // someone else reaped it
  }
  return state_;
}

result<unique_fd> sealed_memory(const char* name, std::string_view content) {
  unique_fd fd{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd)
    return system_failure("memfd_create");
  DI_TRY_VOID(write_all(fd.get(), content));
  if (::lseek(fd.get(), 0, SEEK_SET) != 0
      || ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
             != 0)
    return system_failure("seal memfd");
  return fd;
}

result<std::string> read_all(int fd, std::size_t limit_bytes) {
  std::string content;
  std::array<char, 16384> block{};
  while (true) {
    const auto n = ::read(fd, block.data(), block.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return system_failure("read");
    if (n == 0)
      return content;
    if (content.size() + static_cast<std::size_t>(n) > limit_bytes)
      return fail(ec::limit_exceeded, "more than {} bytes", limit_bytes);
    content.append(block.data(), static_cast<std::size_t>(n));
  }
}

result<void> write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const auto n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN) { // another holder of the same open file made it non-blocking
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (n < 0)
      return system_failure("write");
    content.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

result<std::string> own_program() {
  std::array<char, PATH_MAX> path{};
  const auto n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n <= 0)
    return system_failure("readlink /proc/self/exe");
  return std::string{path.data(), static_cast<std::size_t>(n)};
}

} // namespace di::launch
