// SPDX-License-Identifier: Apache-2.0
// A child process of a test: started with pipes, killed and reaped at the end.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

extern char** environ;

namespace di::test {

class child {
public:
  /// `arguments[0]` is the program. stdin and stdout are pipes.
  explicit child(std::vector<std::string> arguments) {
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};
    if (::pipe(in) != 0 || ::pipe(out) != 0)
      return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    for (const int fd : {in[0], in[1], out[0], out[1]})
      posix_spawn_file_actions_addclose(&actions, fd);
    std::vector<char*> argv;
    for (std::string& a : arguments)
      argv.push_back(a.data());
    argv.push_back(nullptr);
    if (::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0)
      pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = in[1];
    stdout_ = out[0];
  }
  ~child() {
    end(SIGKILL);
    if (stdin_ >= 0)
      ::close(stdin_);
    if (stdout_ >= 0)
      ::close(stdout_);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;

  /// Waits for one byte on the child's stdout: it is ready. False if it ended.
  bool ready() {
    char byte = 0;
    return pid_ > 0 && ::read(stdout_, &byte, 1) == 1;
  }
  pid_t pid() const noexcept { return pid_; }
  void signal(int number) const {
    if (pid_ > 0)
      ::kill(pid_, number);
  }
  /// SIGSTOP, and waits until it stands: signals take their time.
  void stop() const {
    signal(SIGSTOP);
    siginfo_t what{};
    if (pid_ > 0)
      ::waitid(P_PID, static_cast<id_t>(pid_), &what, WSTOPPED);
  }
  /// Sends a signal and waits for the end.
  void end(int number) {
    if (pid_ <= 0)
      return;
    ::kill(pid_, number);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
  }

private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  int stdout_ = -1;
};

} // namespace di::test
