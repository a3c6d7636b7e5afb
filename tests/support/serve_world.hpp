// SPDX-License-Identifier: Apache-2.0
// A gateway's routes without sockets and without a cluster: a client, a desk and a clock that tests
// move by hand.
#pragma once

#include "engine/chat/json.hpp"
#include "launch/serve/router.hpp"
#include "launch/serve/session.hpp"
#include "messaging/base/log.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

namespace di::test {

/// One request's client. Work posted to its connection waits until run().
class fake_client final : public http::exchange {
public:
  std::optional<http::answer> whole; ///< of respond()
  std::optional<int> stream_status;
  http::header_list stream_headers;
  std::string stream; ///< all chunks
  bool ended = false, aborted = false;
  std::size_t bound = ~std::size_t{0}; ///< [bytes] that may wait; everything waits until drain()
  std::size_t waiting = 0;

  bool respond(http::answer a) override {
    if (whole || stream_status || gone_)
      return false;
    whole = std::move(a);
    return true;
  }
  bool begin_stream(int status, http::header_list headers) override {
    if (whole || stream_status || gone_)
      return false;
    stream_status = status;
    stream_headers = std::move(headers);
    return true;
  }
  http::written write(std::string_view chunk) override {
    if (gone_ || ended)
      return http::written::gone;
    if (bound != ~std::size_t{0} && waiting > 0 && waiting + chunk.size() > 2 * bound)
      return http::written::refused;
    stream += chunk;
    waiting += chunk.size();
    return waiting > bound ? http::written::full : http::written::ok;
  }
  void end(bool) override { ended = true; }
  void abort() override { aborted = true; }
  std::size_t queued() const override { return waiting; }
  void on_drained(std::function<void()> callback) override { drained_ = std::move(callback); }
  void on_gone(std::function<void(http::gone)> callback) override { left_ = std::move(callback); }
  bool is_gone() const override { return gone_; }
  void post(std::function<void()> work) override {
    const std::scoped_lock lock{guard_};
    work_.push_back(std::move(work));
    came_.notify_all();
  }

  void run() {
    while (auto next = take())
      next();
  }
  /// Waits for work of another thread, then runs it; some may have run before.
  void run_later() {
    {
      std::unique_lock lock{guard_};
      EXPECT_TRUE(came_.wait_for(lock, std::chrono::seconds{30},
                                 [this] { return ran_ > 0 || !work_.empty(); }));
    }
    run();
  }
  /// Runs work of other threads as it comes until there is what the test waits for.
  void run_until(const std::function<bool()>& done) {
    for (run(); !done(); run()) {
      std::unique_lock lock{guard_};
      if (!came_.wait_for(lock, std::chrono::seconds{30}, [this] { return !work_.empty(); }))
        return ADD_FAILURE() << "nothing came";
    }
  }
  void drain() {
    waiting = 0;
    if (drained_)
      drained_();
    run();
  }
  void leave() {
    gone_ = true;
    if (left_)
      std::exchange(left_, nullptr)(http::gone::closed);
    run();
  }

private:
  bool gone_ = false;
  std::function<void()> drained_;
  std::function<void(http::gone)> left_;
  std::function<void()> take() {
    const std::scoped_lock lock{guard_};
    if (work_.empty())
      return nullptr;
    auto next = std::move(work_.front());
    work_.pop_front();
    ++ran_;
    return next;
  }
  std::mutex guard_; ///< of work_
  std::condition_variable came_;
  std::deque<std::function<void()>> work_;
  std::size_t ran_ = 0;
};

/// Keeps what it was asked; the test plays the cluster.
class fake_desk final : public actors::gateway_desk {
public:
  struct order {
    request_id id;
    actors::stream_order what;
    std::shared_ptr<actors::stream_listener> ear;
  };
  std::vector<order> orders;
  std::vector<request_id> cancelled, left, forgotten;
  std::vector<proto::end_choice> ended;
  bool away = false;                   ///< JOURNAL does not answer
  bool slow_attach = false;            ///< the test calls answer_attach
  std::function<void()> answer_attach; ///< of the last attach()
  std::map<std::uint64_t, proto::recorded_request> records;
  std::map<std::uint64_t, std::shared_ptr<actors::stream_listener>> attached;

  request_id submit(actors::stream_order what,
                    std::shared_ptr<actors::stream_listener> ear) override {
    const request_id id{100 + orders.size()};
    orders.push_back({id, std::move(what), std::move(ear)});
    return id;
  }
  void cancel(request_id r) override { cancelled.push_back(r); }
  void stop(request_id r) override { cancelled.push_back(r); }
  void leave(request_id r, const std::shared_ptr<actors::stream_listener>&) override {
    left.push_back(r);
  }
  void end_choice(request_id r, std::uint32_t choice, std::uint32_t kept,
                  std::int32_t stop) override {
    ended.push_back({r, choice, kept, stop});
  }
  void attach(request_id r, std::vector<std::uint32_t>,
              std::shared_ptr<actors::stream_listener> ear,
              answer_fn<proto::request_attached> answer) override {
    if (!records.contains(r.v))
      return answer(fail(ec::not_found, "no request {}", r.v));
    attached[r.v] = std::move(ear);
    answer_attach = [this, r, answer = std::move(answer)] {
      answer(proto::request_attached{r, records[r.v].spec, records[r.v].note, 0, false});
    };
    if (!slow_attach)
      answer_attach();
  }
  void get(request_id r, answer_fn<proto::recorded_request> answer) override {
    if (away)
      return answer(fail(ec::unavailable, "the journal is away"));
    if (!records.contains(r.v))
      return answer(fail(ec::not_found, "no request {}", r.v));
    answer(records[r.v]);
  }
  void forget(request_id r, answer_fn<proto::request_forgotten> answer) override {
    forgotten.push_back(r);
    answer(proto::request_forgotten{r, records.erase(r.v) > 0});
  }
  std::size_t open() const override { return orders.size(); }
  actors::desk_counts counts() const override { return {}; }
  void drain() override {}

  /// What JOURNAL would have of an order, with these tokens so far.
  void record(const order& o, std::vector<std::vector<token_id>> tokens, bool closed) {
    proto::recorded_request r;
    r.request = o.id;
    r.spec = o.what.spec;
    r.note = o.what.note;
    r.closed = closed;
    for (auto& ids : tokens) {
      proto::recorded_choice c;
      c.tokens = std::move(ids);
      if (closed)
        c.end = {proto::finish_reason::stop,
                 -1,
                 static_cast<std::uint32_t>(c.tokens.size()),
                 ec::ok,
                 {}};
      r.choices.push_back(std::move(c));
    }
    records[o.id.v] = std::move(r);
  }
};

class fake_health final : public serve::health_source {
public:
  serve::health_state state{true, true, false, 1.0, "serving", {}, 1, 1, "contract-1"};
  serve::health_state health() const override { return state; }
};

class hand_clock final : public env {
public:
  instant time{1'000'000'000};
  std::uint64_t drawn = 0x1234;
  instant now() const override { return time; }
  std::uint64_t random() override { return drawn += 0x9E3779B97F4A7C15; }
};

inline std::shared_ptr<const engine::tokenizer> demo_words() {
  static const auto words = [] {
    auto loaded =
        engine::tokenizer::load(std::string{DI_SOURCE_DIR} + "/launch/models/demo/tokenizer.json");
    return std::make_shared<const engine::tokenizer>(std::move(loaded).value());
  }();
  return words;
}

inline serve::serve_settings test_settings() {
  serve::serve_settings s;
  s.model.name = "demo";
  s.model.aliases = {"small"};
  s.model.context_tokens = 4'096;
  s.model.vocabulary = 2'048;
  s.model.eos_ids = {1};
  s.model.created = 1'700'000'000;
  s.test_hooks = true;
  s.version = "di test";
  return s;
}

/// Routes, desk and clients. Requests are answered when the test says so.
class serve_world {
public:
  explicit serve_world(serve::serve_settings settings = test_settings())
      : metrics{{}},
        home{{std::move(settings), demo_words(), desk, health, &clock, &metrics}},
        routes{home} {
    log::set_level(log::level::off);
    serve::add_public_routes(routes, home);
  }

  std::shared_ptr<fake_client> send(std::string method, std::string target, std::string body = {},
                                    http::header_list headers = {}) {
    http::request r;
    r.method = std::move(method);
    r.path = r.target = std::move(target);
    r.headers = std::move(headers);
    r.body = std::move(body);
    r.arrived = std::chrono::steady_clock::now();
    auto client = std::make_shared<fake_client>();
    routes.handle(std::move(r), client);
    client->run();
    return client;
  }
  std::shared_ptr<fake_client> post(std::string target, const engine::json& body,
                                    http::header_list headers = {}) {
    return send("POST", std::move(target), body.dump(), std::move(headers));
  }

  static std::vector<token_id> ids(std::string_view text) {
    return demo_words()->encode(text, engine::encode_mode::full).value();
  }

  std::shared_ptr<fake_desk> desk = std::make_shared<fake_desk>();
  std::shared_ptr<fake_health> health = std::make_shared<fake_health>();
  hand_clock clock;
  serve::serving_metrics metrics;
  serve::service home;
  serve::router routes;
};

inline engine::json chat_body(bool stream = false) {
  using engine::json;
  return json{{"model", "demo"},
              {"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})},
              {"thinking", {{"type", "disabled"}}},
              {"max_tokens", 50},
              {"stream", stream}};
}

/// The text and the end token, as a rank would send them.
inline std::vector<token_id> said(std::string_view text) {
  auto ids = serve_world::ids(text);
  ids.push_back(1);
  return ids;
}

/// Tokens of a choice as JOURNAL releases them.
inline proto::tokens_released released(std::vector<token_id> tokens, std::uint32_t choice = 0,
                                       proto::finish_reason end = proto::finish_reason::none) {
  proto::tokens_released m;
  m.choice = choice;
  m.tokens = std::move(tokens);
  m.end.reason = end;
  m.end.kept_tokens = static_cast<std::uint32_t>(m.tokens.size());
  return m;
}

inline engine::json body_of(const fake_client& c) {
  EXPECT_TRUE(c.whole.has_value());
  return c.whole ? engine::json::parse(c.whole->body, nullptr, false) : engine::json{};
}

struct sse_line {
  std::string id, event, data;
};

/// The events of a stream; comments are left out.
inline std::vector<sse_line> events_of(std::string_view stream) {
  std::vector<sse_line> all;
  sse_line now;
  while (!stream.empty()) {
    const auto end = stream.find('\n');
    const auto line = stream.substr(0, end);
    stream.remove_prefix(end == std::string_view::npos ? stream.size() : end + 1);
    if (line.empty()) {
      if (!now.data.empty())
        all.push_back(std::exchange(now, {}));
    } else if (line.starts_with("data: ")) {
      now.data += line.substr(6);
    } else if (line.starts_with("id: ")) {
      now.id = line.substr(4);
    } else if (line.starts_with("event: ")) {
      now.event = line.substr(7);
    }
  }
  return all;
}

/// Joined `delta.content` of one choice of a chat stream.
inline std::string content_of(const std::vector<sse_line>& events, std::size_t choice = 0) {
  std::string out;
  for (const auto& e : events) {
    if (e.data == "[DONE]")
      continue;
    const auto j = engine::json::parse(e.data);
    if (!j.contains("choices"))
      continue;
    for (const auto& c : j["choices"])
      if (c["index"] == choice && c["delta"].contains("content")
          && c["delta"]["content"].is_string())
        out += c["delta"]["content"].get<std::string>();
  }
  return out;
}

} // namespace di::test
