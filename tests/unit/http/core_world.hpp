// SPDX-License-Identifier: Apache-2.0
// A connection core whose loop, time and bytes are the test's.
#pragma once

#include "messaging/http/connection_core.hpp"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace di::http {

/// A loop whose work the test runs.
struct hand_loop final : loop_face {
  std::deque<std::function<void()>> work;
  void post(std::function<void()> w) override { work.push_back(std::move(w)); }
  void run() {
    while (!work.empty()) {
      const auto w = std::move(work.front());
      work.pop_front();
      w();
    }
  }
};

struct world {
  std::shared_ptr<hand_loop> loop = std::make_shared<hand_loop>();
  std::shared_ptr<server_stats> stats = std::make_shared<server_stats>();
  callbacks calls;
  connection_setup setup;
  connection_core::instant now{};
  std::vector<std::pair<request, exchange_ptr>> asked;
  std::unique_ptr<connection_core> core;

  world() {
    calls.handler = [this](request r, exchange_ptr e) {
      asked.emplace_back(std::move(r), std::move(e));
    };
  }
  ~world() {
    asked.clear();
    core.reset();
  }
  void open() {
    setup.calls = std::make_shared<const callbacks>(calls);
    setup.stats = stats;
    setup.loop = loop;
    core = std::make_unique<connection_core>(
        setup, [this] { core->flush(now); }, now);
  }
  void in(std::string_view bytes) {
    core->received(bytes, now);
    loop->run();
  }
  /// What goes out next, all of it.
  std::string out() {
    loop->run();
    std::string all;
    while (!core->output().empty()) {
      std::string front;
      core->output().parts(16, [&](std::string_view p) { front += p; });
      all += front;
      core->sent(front.size(), now);
      loop->run();
    }
    return all;
  }
  void pass(std::chrono::milliseconds t) {
    now += t;
    core->tick(now);
    loop->run();
  }
  exchange& last() { return *asked.back().second; }
};

inline const std::string get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
inline std::string post(std::string_view body) {
  return "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size())
         + "\r\n\r\n" + std::string{body};
}
inline int status(const std::string& out) {
  return out.size() > 12 ? std::stoi(out.substr(9, 3)) : 0;
}

} // namespace di::http
