// SPDX-License-Identifier: Apache-2.0
// Many threads that answer, clients that leave at any moment, and a server that stops among them:
// nothing is left behind. Seeded; meant for the sanitizers too.
#include "messaging/http/server.hpp"
#include "messaging/http/sse.hpp"
#include "tests/support/http_client.hpp"
#include "tests/unit/http/server_fixture.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

namespace di::http {
namespace {

using testing::http_client;
using namespace std::chrono_literals;

/// Exchanges that several threads speak through, each as it likes.
class speakers {
public:
  explicit speakers(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i)
      threads_.emplace_back([this, i] { run(static_cast<unsigned>(i)); });
  }
  ~speakers() {
    {
      const std::lock_guard lock{mutex_};
      over_ = true;
    }
    changed_.notify_all();
    for (auto& t : threads_)
      t.join();
  }
  void add(exchange_ptr e) {
    e->on_gone([this](gone) { ++told; });
    e->on_drained([this] { ++drained; });
    {
      const std::lock_guard lock{mutex_};
      open_.push_back(std::move(e));
    }
    changed_.notify_one();
  }
  std::atomic<int> told{0}, drained{0}, posted{0};

private:
  void run(unsigned seed) {
    std::minstd_rand random{seed + 1};
    for (;;) {
      exchange_ptr e;
      {
        std::unique_lock lock{mutex_};
        changed_.wait(lock, [this] { return over_ || !open_.empty(); });
        if (open_.empty())
          return;
        const auto at = open_.begin() + static_cast<std::ptrdiff_t>(random() % open_.size());
        e = *at; // others may hold it too
        if (random() % 8 == 0 || over_)
          open_.erase(at);
      }
      speak(*e, random);
    }
  }
  void speak(exchange& e, std::minstd_rand& random) {
    switch (random() % 8) {
    case 0:
      e.respond(200, {}, std::string(random() % 5'000, 'x'));
      return;
    case 1:
      e.begin_stream(200, sse_headers());
      return;
    case 2:
      return e.end(random() % 2 == 0);
    case 3:
      if (random() % 10 == 0)
        e.abort();
      return;
    case 4:
      return e.post([this] { ++posted; });
    default:
      e.write(sse_event(std::string(random() % 20'000, 'y')));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<exchange_ptr> open_;
  std::vector<std::thread> threads_;
  bool over_ = false;
};

void one_client(std::uint16_t port, unsigned seed) {
  std::minstd_rand random{seed};
  for (int i = 0; i < 40; ++i) {
    http_client c{port, random() % 3 == 0 ? 4096 : 0};
    if (!c.connected())
      return;
    const std::string request = random() % 4 == 0
                                    ? "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd"
                                    : "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    for (auto n = random() % 3 + 1; n > 0; --n)
      c.send(random() % 10 == 0 ? request.substr(0, random() % request.size()) : request);
    for (auto n = random() % 4; n > 0; --n)
      c.more(std::chrono::milliseconds{random() % 4});
    switch (random() % 3) {
    case 0:
      c.reset();
      break;
    case 1:
      c.half_close();
      c.closed(5ms);
      break;
    default:
      break;
    }
  }
}

TEST(http_storm, leaves_nothing_behind) {
  const auto before = open_descriptors();
  {
    options o = quick();
    o.threads = 2;
    o.limits.client_buffer_bytes = 16 << 10;
    o.limits.connections = 30;
    o.timeouts.write = 300ms;
    o.timeouts.header = 300ms;
    o.timeouts.linger = 30ms;
    speakers all{2};
    served s{[&](request, exchange_ptr e) { all.add(std::move(e)); }, o};
    std::vector<std::thread> clients;
    for (unsigned i = 0; i < 4; ++i)
      clients.emplace_back(one_client, s.port(), i + 1);
    for (auto& c : clients)
      c.join();
    EXPECT_TRUE(s.eventually([&] { return s->count().open == 0; }));
    EXPECT_EQ(s->count().busy, 0u);
    EXPECT_GT(s->count().requests, 50u);
    EXPECT_GT(all.posted, 0);
    EXPECT_LE(static_cast<std::uint64_t>(all.told), s->count().requests);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(http_storm, stops_at_any_moment) {
  for (unsigned round = 0; round < 8; ++round) {
    options o = quick();
    o.threads = 2;
    speakers all{2};
    served s{[&](request, exchange_ptr e) { all.add(std::move(e)); }, o};
    std::vector<std::thread> clients;
    for (unsigned i = 0; i < 3; ++i)
      clients.emplace_back(one_client, s.port(), i + 10 * round + 1);
    EXPECT_TRUE(s.eventually([&] { return s->count().requests > 3 * round; }));
    s->stop(std::chrono::milliseconds{round});
    EXPECT_EQ(s->count().open, 0u);
    EXPECT_EQ(s->count().busy, 0u);
    for (auto& c : clients)
      c.join();
  }
}

} // namespace
} // namespace di::http
