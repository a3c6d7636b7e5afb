// SPDX-License-Identifier: Apache-2.0
// The loop of `dilaunch node`.
#include "launch/node.hpp"

#include "launch/boot.hpp"
#include "launch/child_set.hpp"
#include "launch/node_link.hpp"
#include "launch/plan.hpp"
#include "launch/run_dir.hpp"
#include "launch/signals.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace di::launch {
namespace {

class pipe_voice : public node_voice {
public:
  pipe_voice() { ::fcntl(0, F_SETFL, ::fcntl(0, F_GETFL) | O_NONBLOCK); }
  int fd() const override { return 0; }
  bool read(const std::function<void(const std::string&)>& line) override {
    return lines_.read(0, line);
  }
  void write(const std::string& line) override {
    // If nobody reads any more, stdin ends too, and that decides.
    (void)write_all(1, line + "\n");
  }

private:
  line_reader lines_;
};

class node_server {
public:
  node_server(const node_options& options, node_voice& voice, run_dir dir)
      : options_{options}, voice_{voice}, dir_{std::move(dir)}, children_{loop_, events()} {}

  int run() {
    signal_source signals{loop_, [this](int number) { on_signal(number); }};
    loop_.watch(voice_.fd(), [this] { read_orders(); });
    const auto here = this_machine();
    report({report_kind::hello, {}, {}, {}, here.host_name, here.cores});
    loop_.run();
    return code_;
  }

private:
  child_events events() {
    return {[this](const std::string& child, const std::string& json) {
              report({report_kind::status, child, json, {}, {}, 0});
            },
            [this](const std::string& child, const std::string& line) {
              report({report_kind::log, child, line, {}, {}, 0});
            },
            [this](const std::string& child, exit_state state, const std::string& words) {
              report({report_kind::exited, child, words, state, {}, 0});
              leave_if_done();
            }};
  }
  void report(const node_report& r) { voice_.write(to_json(r)); }

  void read_orders() {
    const bool there = voice_.read([this](const std::string& line) {
      const auto order = parse_order(line);
      if (!order.ok())
        return report({report_kind::failed, {}, order.error().render(), {}, {}, 0});
      obey(*order);
    });
    if (!there) {
      // Nobody is left to report to; nothing of ours may outlive the launcher.
      loop_.forget(voice_.fd());
      code_ = leaving_ ? 0 : 3;
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
    }
  }
  void start(const node_order& order) {
    auto boot = parse_boot(order.boot);
    if (!boot.ok())
      return report({report_kind::failed, order.name, boot.error().render(), {}, {}, 0});
    boot->run_dir = dir_.path();
    child_spec spec;
    spec.name = order.name;
    spec.argv = {options_.program, "child"};
    spec.argv.insert(spec.argv.end(), order.role.begin(), order.role.end());
    spec.boot = to_json(*boot);
    if (const auto started = children_.start(spec); !started.ok())
      report({report_kind::failed, order.name, started.error().render(), {}, {}, 0});
  }
  void leave_if_done() {
    if (leaving_ && children_.running() == 0)
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
  child_set children_;
  bool leaving_ = false;
  int code_ = 0;
};

} // namespace

int serve_node(const node_options& options, node_voice& voice) {
  auto dir = run_dir::make();
  if (!dir.ok()) {
    voice.write(to_json(node_report{report_kind::failed, {}, dir.error().render(), {}, {}, 0}));
    return 3;
  }
  node_server server{options, voice, std::move(*dir)};
  return server.run();
}

std::unique_ptr<node_voice> make_pipe_voice() {
  return std::make_unique<pipe_voice>();
}

} // namespace di::launch
