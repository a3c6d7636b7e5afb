// SPDX-License-Identifier: Apache-2.0
// The whole gateway but for the cluster: HTTP server, routes, sessions, tokenizer, parser, and a
// desk that makes tokens up. Prints its port and lives until it is killed;
// tests/bench/serve_load.py measures it.
#include "launch/serve/router.hpp"
#include "messaging/base/log.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace di::bench {
namespace {

using namespace std::chrono_literals;

/// Stands for GATEWAY and all behind it. Whole answers at once; of a stream one token a tick, as
/// the actor's thread would hand them over.
class stub_desk final : public actors::gateway_desk {
public:
  stub_desk(std::vector<token_id> words, std::chrono::milliseconds tick)
      : words_{std::move(words)}, tick_{tick} {}

  request_id submit(actors::stream_order o, std::shared_ptr<actors::stream_listener> ear) override {
    const std::scoped_lock lock{guard_};
    const request_id id{++last_};
    const bool slowly = o.detached_ms > 0; // a stream
    (slowly ? streams_ : whole_).push_back({id, std::move(ear), o.spec.sampling.max_tokens, 0});
    if (!slowly)
      wake_.notify_one();
    return id;
  }
  void cancel(request_id r) override { drop(r); }
  void leave(request_id r, const std::shared_ptr<actors::stream_listener>&) override { drop(r); }
  void end_choice(request_id, std::uint32_t, std::uint32_t, std::int32_t) override {}
  void attach(request_id r, std::vector<std::uint32_t>, std::shared_ptr<actors::stream_listener>,
              answer_fn<proto::request_attached> answer) override {
    answer(fail(ec::not_found, "no request {}", r.v));
  }
  void get(request_id r, answer_fn<proto::recorded_request> answer) override {
    answer(fail(ec::not_found, "no request {}", r.v));
  }
  void forget(request_id r, answer_fn<proto::request_forgotten> answer) override {
    answer(proto::request_forgotten{r, false});
  }
  std::size_t open() const override { return 0; }
  actors::desk_counts counts() const override { return {}; }
  void drain() override {}

  void run(const std::stop_token& stop) {
    auto due = std::chrono::steady_clock::now() + tick_;
    std::unique_lock lock{guard_};
    while (!stop.stop_requested()) {
      wake_.wait_until(lock, due, [this] { return !whole_.empty(); });
      auto whole = std::exchange(whole_, {});
      std::deque<open_request> tokens;
      if (std::chrono::steady_clock::now() >= due) {
        due += tick_;
        tokens = std::exchange(streams_, {});
      }
      lock.unlock();
      for (auto& r : whole)
        advance(r, r.most);
      for (auto& r : tokens)
        advance(r, 1);
      lock.lock();
      for (auto& r : tokens)
        if (r.sent < r.most)
          streams_.push_back(std::move(r));
    }
  }

private:
  struct open_request {
    request_id id;
    std::shared_ptr<actors::stream_listener> ear;
    std::uint32_t most = 0, sent = 0;
  };
  void advance(open_request& r, std::uint32_t tokens) {
    proto::tokens_released m;
    m.request = r.id;
    m.first_index = r.sent;
    for (std::uint32_t i = 0; i < tokens; ++i)
      m.tokens.push_back(words_[r.sent++ % words_.size()]);
    if (r.sent >= r.most)
      m.end = {proto::finish_reason::length, -1, r.sent, ec::ok, {}};
    r.ear->tokens(m);
  }
  void drop(request_id r) {
    const std::scoped_lock lock{guard_};
    std::erase_if(streams_, [r](const open_request& o) { return o.id == r; });
  }

  std::vector<token_id> words_;
  const std::chrono::milliseconds tick_;
  std::mutex guard_;
  std::condition_variable wake_;
  std::deque<open_request> whole_, streams_;
  std::uint64_t last_ = 0;
};

class always_well final : public serve::health_source {
public:
  serve::health_state health() const override {
    return {true, true, false, 1.0, "serving", {}, 1, 1, "stub"};
  }
};

int serve(const std::string& source) {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &most);
  auto words = engine::tokenizer::load(source + "/launch/models/demo/tokenizer.json");
  if (!words)
    return std::fprintf(stderr, "%s\n", words.error().what.c_str()), 1;
  auto ids =
      words->encode(" the river ran by and so on, word for word", engine::encode_mode::plain);
  const auto desk = std::make_shared<stub_desk>(std::move(ids).value(), 100ms);
  serve::serving_metrics metrics{{}};
  serve::service_parts parts;
  parts.settings.model.name = "demo";
  parts.settings.model.context_tokens = 4'096;
  parts.settings.model.vocabulary = 2'048;
  parts.settings.model.eos_ids = {1};
  parts.words = std::make_shared<const engine::tokenizer>(std::move(*words));
  parts.desk = desk;
  parts.health = std::make_shared<always_well>();
  parts.metrics = &metrics;
  serve::service home{std::move(parts)};
  serve::router routes{home};
  serve::add_public_routes(routes, home);
  log::set_level(log::level::off);
  std::jthread tokens{[&](const std::stop_token& stop) { desk->run(stop); }};
  http::options o;
  o.host = "127.0.0.1";
  auto server = http::server::start(o, routes.callbacks());
  if (!server)
    return std::fprintf(stderr, "%s\n", server.error().what.c_str()), 1;
  home.start_clock();
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  for (;;)
    ::pause();
}

} // namespace
} // namespace di::bench

int main(int argc, char** argv) {
  return di::bench::serve(argc > 1 ? argv[1] : DI_SOURCE_DIR);
}
