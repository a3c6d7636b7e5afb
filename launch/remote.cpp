// SPDX-License-Identifier: Apache-2.0
// Orders and reports over the pipes of a child.
#include "launch/remote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace di::launch {
namespace {

class piped_node : public remote_node {
public:
  piped_node(poll_loop& loop, std::uint32_t node, child_process process, remote_events events)
      : loop_{loop}, node_{node}, process_{std::move(process)}, events_{std::move(events)} {
    ::fcntl(process_.in.get(), F_SETFL, ::fcntl(process_.in.get(), F_GETFL) | O_NONBLOCK);
    loop_.watch(process_.out.get(), [this] { read_reports(); });
    loop_.watch(process_.err.get(), [this] { read_noise(); });
    loop_.watch(process_.pidfd(), [this] { ended(); });
  }
  ~piped_node() override {
    loop_.cancel(retry_);
    for (const int fd : {process_.out.get(), process_.err.get(), process_.pidfd()})
      loop_.forget(fd);
  }

  void send(const node_order& order) override {
    waiting_ += to_json(order);
    waiting_ += '\n';
    flush();
  }
  void kill() override { process_.signal(SIGKILL); }

private:
  void flush() {
    while (!waiting_.empty() && process_.in) {
      const auto n = ::write(process_.in.get(), waiting_.data(), waiting_.size());
      if (n > 0) {
        waiting_.erase(0, static_cast<std::size_t>(n));
      } else if (n < 0 && errno == EAGAIN) {
        // The pipe is full: the other side is slow. Tried again when it had time to read.
        loop_.cancel(retry_);
        retry_ =
            loop_.at(poll_loop::clock::now() + std::chrono::milliseconds{5}, [this] { flush(); });
        return;
      } else if (n < 0 && errno != EINTR) {
        process_.in.reset(); // its end is reported by the pidfd
      }
    }
  }
  void read_reports() {
    const bool open = lines_.read(process_.out.get(), [this](const std::string& line) {
      const auto report = parse_report(line);
      if (report.ok())
        events_.report(node_, *report);
      else // ssh banners and the like
        events_.report(node_, {report_kind::log, "", line});
    });
    if (!open) {
      loop_.forget(process_.out.get());
      process_.out.reset();
    }
  }
  void read_noise() {
    const bool open = noise_.read(process_.err.get(), [this](const std::string& line) {
      if (!line.empty())
        last_line_ = line;
      events_.report(node_, {report_kind::log, "", line});
    });
    if (!open) {
      loop_.forget(process_.err.get());
      process_.err.reset();
    }
  }
  void ended() {
    const auto state = process_.poll();
    if (!state)
      return;
    if (process_.out)
      read_reports();
    if (process_.err)
      read_noise();
    loop_.forget(process_.pidfd());
    events_.lost(node_, fmt::format("node process {} (pid {}): {}{}", node_, process_.pid(),
                                    to_string(*state),
                                    last_line_.empty() ? "" : "; its last line: " + last_line_));
  }

  poll_loop& loop_;
  std::uint32_t node_;
  child_process process_;
  remote_events events_;
  line_reader lines_, noise_;
  std::string waiting_, last_line_;
  std::uint64_t retry_ = 0;
};

} // namespace

result<std::unique_ptr<remote_node>> start_remote(poll_loop& loop, std::uint32_t node,
                                                  std::vector<std::string> argv,
                                                  remote_events events) {
  process_options options;
  options.argv = std::move(argv);
  options.pipe_stdin = true;
  options.pipe_stdout = true;
  DI_TRY(auto process, child_process::start(options));
  return std::unique_ptr<remote_node>{
      std::make_unique<piped_node>(loop, node, std::move(process), std::move(events))};
}

std::string shell_quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

} // namespace di::launch
