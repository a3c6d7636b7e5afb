// SPDX-License-Identifier: Apache-2.0
// Child processes: started by fork and exec with a boot configuration in memory, watched by pidfd,
// killed with their parent.
#pragma once

#include "messaging/base/result.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace di::launch {

/// A file descriptor with an owner. Moves, does not copy.
class unique_fd {
public:
  unique_fd() = default;
  explicit unique_fd(int fd) noexcept : fd_{fd} {}
  unique_fd(unique_fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  unique_fd& operator=(unique_fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~unique_fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;

private:
  int fd_ = -1;
};

/// Descriptors that a child finds open besides 0, 1 and 2.
inline constexpr int boot_fd = 3;     ///< sealed memory with the boot configuration
inline constexpr int status_fd = 4;   ///< socket to the node process (child_link.hpp)
inline constexpr int terminal_fd = 5; ///< the user's terminal for progress, if there is one
inline constexpr int life_fd = 6;     ///< life page of a rank (life_page.hpp)
inline constexpr int segments_fd = 7; ///< first of process_options::more, in their
                                      ///< order: segments, or listening sockets

/// How a process ended.
struct exit_state {
  int code = 0;   ///< exit code, if `signal` is 0
  int signal = 0; ///< signal that killed it
  bool ok() const noexcept { return signal == 0 && code == 0; }
};
/// "exit code 3" or "killed by signal 9 (Killed)".
std::string to_string(const exit_state& state);

struct process_options {
  std::vector<std::string> argv;   ///< argv[0] is searched in PATH if it has no slash
  std::optional<std::string> boot; ///< on boot_fd
  bool pipe_stdin = false;         ///< else /dev/null
  bool pipe_stdout = false;        ///< our end is `out`
  bool with_status = false;        ///< status_fd
  int terminal = -1;               ///< handed on as terminal_fd
  int life_page = -1;              ///< handed on as life_fd
  std::vector<int> more;           ///< handed on from segments_fd on
};

/// A running child in a process group of its own. It gets SIGKILL when the thread that started it
/// ends (PR_SET_PDEATHSIG): start children from the main thread only. Not thread-safe.
/// Destruction kills and reaps a child that still runs.
class child_process {
public:
  /// @errors io_error: a call failed, or the program cannot be executed (reported here, not later);
  /// limit_exceeded: too few descriptors are allowed
  static result<child_process> start(const process_options& options);

  child_process(child_process&& other) noexcept;
  child_process& operator=(child_process&& other) noexcept;
  ~child_process();

  pid_t pid() const noexcept { return pid_; }
  /// Readable when the process has ended.
  int pidfd() const noexcept { return pidfd_.get(); }
  bool running() const noexcept { return pid_ > 0 && !state_; }

  /// Sends a signal to the process; nothing if it has ended.
  void signal(int number) noexcept;
  /// How it ended if it has; reaps it. Does not block.
  std::optional<exit_state> poll();

  unique_fd in, out, err; ///< our ends of the pipes; out and err do not block
  unique_fd status;       ///< our end of the child link; does not block

private:
  child_process() = default;
  void end() noexcept;

  pid_t pid_ = -1;
  unique_fd pidfd_;
  std::optional<exit_state> state_;
};

/// A file in memory that holds `content` and cannot be changed any more. @errors io_error
result<unique_fd> sealed_memory(const char* name, std::string_view content);
/// Everything from a descriptor, at most `limit_bytes`. @errors io_error, limit_exceeded
result<std::string> read_all(int fd, std::size_t limit_bytes);
/// Writes all of it; waits for room, even if the descriptor is non-blocking. @errors io_error
result<void> write_all(int fd, std::string_view content);
/// The path of this program. @errors io_error
result<std::string> own_program();

} // namespace di::launch
