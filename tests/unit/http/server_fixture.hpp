// SPDX-License-Identifier: Apache-2.0
// A server on a free port, and handlers whose requests the test answers.
#pragma once

#include "messaging/http/server.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace di::http {

/// A value that another thread sets, once.
template <class T>
class event {
public:
  void set(T value) {
    const std::lock_guard lock{mutex_};
    value_ = std::move(value);
    changed_.notify_all();
  }
  std::optional<T> wait(std::chrono::milliseconds most = std::chrono::seconds{10}) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, most, [this] { return value_.has_value(); });
    return value_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

/// Keeps exchanges until the test takes them.
class waiting {
public:
  http::handler handler() {
    return [this](request r, exchange_ptr e) {
      const std::lock_guard lock{mutex_};
      requests.push_back(std::move(r));
      exchanges_.push_back(std::move(e));
      changed_.notify_all();
    };
  }
  /// The next exchange; null after 10 s, which fails the test.
  exchange_ptr next() {
    std::unique_lock lock{mutex_};
    if (!changed_.wait_for(lock, std::chrono::seconds{10},
                           [this] { return !exchanges_.empty(); })) {
      ADD_FAILURE() << "no request came";
      return nullptr;
    }
    auto e = std::move(exchanges_.front());
    exchanges_.pop_front();
    return e;
  }
  std::vector<request> requests;

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<exchange_ptr> exchanges_;
};

inline options quick() {
  options o;
  o.host = "127.0.0.1";
  return o;
}

class served {
public:
  explicit served(http::handler h, options o = quick())
      : served{callbacks{std::move(h), {}, {}}, o} {}
  served(callbacks calls, options o) {
    auto made = server::start(std::move(o), std::move(calls));
    if (!made.ok()) {
      ADD_FAILURE() << made.error().render();
      std::abort();
    }
    server_ = std::move(made).value();
  }
  server* operator->() { return server_.get(); }
  std::uint16_t port() const { return server_->port(); }

  /// Waits for a count of the server: looks again after each turn of its loop, at most 10 s.
  template <class Condition>
  bool eventually(Condition condition) {
    std::mutex m;
    std::condition_variable never;
    std::unique_lock lock{m};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end)
        return false;
      never.wait_for(lock, std::chrono::milliseconds{2});
    }
    return true;
  }

private:
  std::unique_ptr<server> server_;
};

/// Open descriptors of this process.
inline std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator{"/proc/self/fd"}, {}));
}

} // namespace di::http
