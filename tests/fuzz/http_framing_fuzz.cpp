// SPDX-License-Identifier: Apache-2.0
// HTTP framing: an input is what a client sends. It is read whole, in pieces, and by a connection
// whose caller, client and clock do what a number drawn from the input says.
#include "messaging/http/connection_core.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <algorithm>
#include <deque>
#include <random>

namespace di::http {
namespace {

using std::chrono::milliseconds;

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

limits small() {
  limits b;
  b.header_bytes = 512;
  b.header_fields = 12;
  b.target_bytes = 64;
  b.body_bytes = 300;
  b.read_ahead_bytes = 256;
  b.client_buffer_bytes = 2'000;
  return b;
}

struct client {
  std::shared_ptr<hand_loop> loop = std::make_shared<hand_loop>();
  std::shared_ptr<server_stats> stats = std::make_shared<server_stats>();
  connection_core::instant now{};
  std::unique_ptr<connection_core> core;

  explicit client(handler h) {
    connection_setup setup;
    setup.calls = std::make_shared<const callbacks>(callbacks{std::move(h), {}, {}});
    setup.limits = small();
    setup.stats = stats;
    setup.loop = loop;
    core = std::make_unique<connection_core>(
        setup, [this] { core->flush(now); }, now);
  }
  /// Takes at most `most` bytes of the answers.
  void take(std::size_t most, std::string* into = nullptr) {
    std::string front;
    core->output().parts(16, [&](std::string_view p) { front += p; });
    front.resize(std::min(front.size(), most));
    if (into != nullptr)
      *into += front;
    core->sent(front.size(), now);
    loop->run();
  }
  void take_all(std::string* into = nullptr) {
    loop->run();
    while (!core->finished() && !core->output().empty())
      take(~std::size_t{0}, into);
  }
};

/// What must hold of each request, and its shape as text.
std::string checked(const request& r) {
  const auto b = small();
  DI_CHECK(r.body.size() <= b.body_bytes && r.target.size() <= b.target_bytes);
  DI_CHECK(r.headers.size() + r.trailers.size() <= b.header_fields);
  DI_CHECK(r.path.starts_with('/') || r.path == "*");
  DI_CHECK(r.minor == 0 || r.headers.count("host") == 1);
  DI_CHECK(r.headers.count("content-length") + r.headers.count("transfer-encoding") <= 1);
  const auto length = r.headers.find("content-length");
  DI_CHECK(!length || std::to_string(r.body.size()) == *length || length->starts_with('0'));
  for (const auto& [name, value] : r.headers)
    DI_CHECK(!name.empty() && name.find_first_of(" \t\r\n:") == name.npos
             && value.find_first_of("\r\n") == value.npos);
  std::string out = r.method + ' ' + r.path + '?' + r.query + '\n' + r.body + '\n';
  for (const auto& [name, value] : r.trailers)
    out += name + ':' + value + '\n';
  return out;
}

/// All requests of `text` cut into pieces of `next()` bytes, and whether it ended in a refusal.
template <class Next>
std::string read(std::string_view text, Next next) {
  std::string seen;
  client c{[&](request r, exchange_ptr e) {
    seen += checked(r);
    e->respond(200, {}, "ok");
  }};
  while (!text.empty()) {
    const auto n = std::min<std::size_t>(text.size(), std::max<std::size_t>(next(), 1));
    c.core->received(text.substr(0, n), c.now);
    c.take_all();
    text.remove_prefix(n);
  }
  seen += "refused " + std::to_string(c.stats->refused.load()) + '\n';
  c.core->input_ended(c.now);
  c.take_all();
  DI_CHECK(c.core->finished());
  DI_CHECK_EQ(c.stats->busy.load(), 0u);
  DI_CHECK_EQ(c.stats->body_bytes.load(), 0u);
  return seen;
}

/// Callers, client and clock in any order.
class storm {
public:
  explicit storm(std::uint64_t seed) : random_{seed} {}

  void run(std::string_view text) {
    for (int i = 0; i < 60 && !c_.core->finished(); ++i) {
      step(text);
      c_.loop->run();
      // write() bounds what waits: twice the buffer, one chunk more, heads and refusals.
      DI_CHECK(c_.core->output().bytes() < 2 * small().client_buffer_bytes + 8'000);
    }
    c_.core->failed(gone::reset);
    c_.loop->run();
    for (const auto& e : held_)
      DI_CHECK(!e->respond(200, {}, "late") && e->write("late") == written::gone);
    DI_CHECK_EQ(c_.stats->busy.load(), 0u);
    held_.clear();
    c_.loop->run();
    DI_CHECK(told_ <= asked_);
  }

private:
  std::size_t below(std::size_t n) { return random_() % n; }

  void step(std::string_view& text) {
    switch (below(12)) {
    case 0:
    case 1:
    case 2: {
      const auto n = std::min(text.size(), below(200));
      if (c_.core->wants_input())
        c_.core->received(text.substr(0, n), c_.now);
      text.remove_prefix(n);
      return;
    }
    case 3:
      return c_.take(below(3'000));
    case 4:
      c_.now += milliseconds{below(20'000)};
      return c_.core->tick(c_.now);
    case 5:
      if (below(8) == 0)
        c_.core->input_ended(c_.now);
      else if (below(16) == 0)
        c_.core->drain(c_.now);
      return;
    default:
      return speak();
    }
  }

  void speak() {
    if (held_.empty())
      return;
    auto& e = held_[below(held_.size())];
    switch (below(8)) {
    case 0:
      e->respond(static_cast<int>(200 + below(5)), {{"X", "y"}}, std::string(below(1'000), 'b'));
      return;
    case 1:
      e->begin_stream(200, {});
      return;
    case 2:
    case 3:
    case 4:
      e->write(std::string(below(1'500), 'c'));
      return;
    case 5:
      return e->end(below(4) == 0);
    case 6:
      if (below(4) == 0)
        e->abort();
      return;
    default:
      held_.erase(held_.begin() + (&e - held_.data()));
    }
  }

  std::minstd_rand random_;
  std::uint64_t asked_ = 0, told_ = 0;
  std::vector<exchange_ptr> held_;
  client c_{[this](request r, exchange_ptr e) {
    checked(r);
    ++asked_;
    if (below(2) == 0)
      e->on_gone([this](gone) { ++told_; });
    if (below(3) == 0)
      e->respond(200, {}, "at once");
    held_.push_back(std::move(e));
  }};
};

std::uint64_t run(std::span<const std::byte> input) {
  const std::string_view text{reinterpret_cast<const char*>(input.data()), input.size()};
  const auto seed = di::testing::fuzz_signature(text);
  std::minstd_rand random{static_cast<std::uint32_t>(seed)};
  const auto whole = read(text, [&] { return text.size(); });
  DI_CHECK_EQ(whole, read(text, [&] { return std::size_t{random() % 40}; }));
  DI_CHECK_EQ(whole, read(text, [&] { return std::size_t{1}; }));
  storm{seed}.run(text);
  // Which statuses it draws is what makes an input new.
  std::string answers;
  client c{[](request r, exchange_ptr e) { e->respond(200, {}, r.method); }};
  c.core->received(text, c.now);
  c.take_all(&answers);
  std::string shape;
  for (std::size_t at = 0; (at = answers.find("HTTP/1.1 ", at)) != answers.npos; at += 9)
    for (const char digit : answers.substr(at + 9, 3)) // signatures leave digits out
      if (shape.size() < 16)
        shape += static_cast<char>('a' + digit - '0');
  const auto last = answers.rfind("\r\n\r\n");
  return di::testing::fuzz_signature(shape
                                     + (last == answers.npos ? "" : answers.substr(last, 40)));
}

} // namespace
} // namespace di::http

DI_FUZZ_MAIN("http_framing", di::http::run)
