// SPDX-License-Identifier: Apache-2.0
// The loop of `dilaunch node`.
#include "launch/node.hpp"

#include "launch/boot.hpp"
#include "launch/node_link.hpp"
#include "launch/plan.hpp"
#include "launch/rank_host.hpp"
#include "launch/run_dir.hpp"
#include "launch/signals.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <optional>
#include <signal.h>
#include <unistd.h>

namespace di::launch {
namespace {

/// Over pipes that do not block: a launcher that hears nothing for a while stops no node process.
class pipe_voice : public node_voice {
public:
  pipe_voice() {
    for (const int fd : {0, 1})
      ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  int fd() const override { return 0; }
  bool read(const std::function<void(const std::string&)>& line) override {
    return lines_.read(0, line);
  }
  void write(const std::string& line, line_worth worth) override { backlog_.put(line, worth); }
  bool flush() override { return backlog_.flush() && write_rest(); }
  std::uint64_t take_dropped() override { return backlog_.take_dropped(); }

private:
  result<void> post(const std::string& line) {
    if (!write_rest())
      return fail(ec::limit_exceeded, "the pipe is full");
    rest_ = line + "\n";
    (void)write_rest();
    return {};
  }
  /// @return the line before is in the pipe, or nobody reads any more: then stdin ends too, and
  /// that decides
  bool write_rest() {
    while (!rest_.empty()) {
      const auto n = ::write(1, rest_.data(), rest_.size());
      if (n >= 0)
        rest_.erase(0, static_cast<std::size_t>(n));
      else if (errno == EAGAIN)
        return false;
      else if (errno != EINTR)
        rest_.clear();
    }
    return true;
  }

  line_reader lines_;
  std::string rest_; ///< of a line that is partly written
  line_backlog backlog_{[this](const std::string& line) { return post(line); }};
};

constexpr std::chrono::milliseconds retry_after{10};
constexpr std::chrono::seconds last_words_wait{2};

class node_server {
public:
  node_server(const node_options& options, node_voice& voice, run_dir dir)
      : options_{options}, voice_{voice}, dir_{std::move(dir)}, ranks_{loop_, events(), stuck()} {}

  int run() {
    signal_source signals{loop_, [this](int number) { on_signal(number); }};
    loop_.watch(voice_.fd(), [this] { read_orders(); });
    const auto here = this_machine();
    report({report_kind::hello, {}, {}, {}, here.host_name, here.cores, {}, 0});
    loop_.run();
    return code_;
  }

private:
  child_events events() {
    return {[this](const std::string& child, const std::string& json) {
              report({report_kind::status, child, json});
            },
            [this](const std::string& child, const std::string& line) {
              report({report_kind::log, child, line});
            },
            [this](const std::string& child, const std::string& how) {
              report({report_kind::lost, child, how});
            },
            [this](const std::string& child, exit_state state, const std::string& words) {
              report({report_kind::exited, child, words, state});
              leave_if_done();
            }};
  }
  progress_watch::stuck_fn stuck() {
    return [this](const std::string& child, const std::string& phase, std::uint32_t stuck_ms,
                  const std::string& what) {
      report({report_kind::stuck, child, what, {}, {}, 0, phase, stuck_ms});
    };
  }
  void report(const node_report& r) {
    voice_.write(to_json(r), r.kind == report_kind::log ? line_worth::spare : line_worth::keep);
    retry();
  }
  /// Reports that the launcher has no room for are sent when it has.
  void retry() {
    loop_.cancel(retry_);
    if (!voice_.flush()) {
      retry_ = loop_.at(poll_loop::clock::now() + retry_after, [this] {
        retry();
        leave_if_done();
      });
    } else if (const auto n = voice_.take_dropped(); n > 0) {
      report({
          report_kind::log,
          {},
          fmt::format("{} log lines dropped: the launcher is slow", n),
      });
    }
  }

  void read_orders() {
    const bool there = voice_.read([this](const std::string& line) {
      const auto order = parse_order(line);
      if (!order.ok())
        return report({report_kind::failed, {}, order.error().render()});
      obey(*order);
    });
    if (!there) {
      // Nobody is left to report to; nothing of ours may outlive the launcher.
      loop_.forget(voice_.fd());
      code_ = leaving_ ? 0 : 3;
      heard_ = false;
      children_.signal_all(SIGKILL);
      leaving_ = true;
      leave_if_done();
    }
  }
  void obey(const node_order& order) {
    switch (order.kind) {
    case order_kind::start:
      return start(order);
    case order_kind::signal:
      if (order.name.empty())
        children_.signal_all(order.number);
      else
        children_.signal(order.name, order.number);
      return;
    case order_kind::leave:
      leaving_ = true;
      return leave_if_done();
    case order_kind::tell:
      return tell(order);
    case order_kind::beat:
      return report({report_kind::beat});
    }
  }
  void start(const node_order& order) {
    auto boot = parse_boot(order.boot);
    if (!boot.ok())
      return report({report_kind::failed, order.name, boot.error().render()});
    boot->run_dir = dir_.path();
    child_spec spec;
    spec.name = order.name;
    spec.argv = {options_.program, "child"};
    spec.argv.insert(spec.argv.end(), order.role.begin(), order.role.end());
    if (const auto started = ranks_.start_rank(std::move(spec), std::move(*boot)); !started.ok())
      report({report_kind::failed, order.name, started.error().render()});
  }
  void tell(const node_order& order) {
    const auto word = parse_node_word(order.boot);
    if (!word.ok())
      return report({report_kind::failed, {}, word.error().render()});
    if (order.name.empty())
      children_.tell_ranks(*word);
    else
      children_.tell(order.name, *word);
  }
  void leave_if_done() {
    if (!leaving_ || children_.running() > 0)
      return;
    // The last reports say how the children ended: they get some time.
    if (!last_words_until_)
      last_words_until_ = poll_loop::clock::now() + last_words_wait;
    if (!heard_ || voice_.flush() || poll_loop::clock::now() >= *last_words_until_)
      loop_.stop();
  }
  /// A signal to this process alone (by a person, or by a shutdown of its host): children go first.
  void on_signal(int number) {
    children_.signal_all(leaving_ ? SIGKILL : number);
    leaving_ = true;
    leave_if_done();
  }

  node_options options_;
  node_voice& voice_;
  run_dir dir_;
  poll_loop loop_;
  rank_host ranks_;
  child_set& children_ = ranks_.children();
  bool leaving_ = false;
  bool heard_ = true; ///< the launcher is there
  std::uint64_t retry_ = 0;
  std::optional<poll_loop::clock::time_point> last_words_until_;
  int code_ = 0;
};

} // namespace

int serve_node(const node_options& options, node_voice& voice) {
  auto dir = run_dir::make();
  if (!dir.ok()) {
    voice.write(to_json(node_report{report_kind::failed, {}, dir.error().render()}),
                line_worth::keep);
    return 3;
  }
  node_server server{options, voice, std::move(*dir)};
  return server.run();
}

std::unique_ptr<node_voice> make_pipe_voice() {
  return std::make_unique<pipe_voice>();
}

} // namespace di::launch
