// SPDX-License-Identifier: Apache-2.0
// Load on the HTTP server of messaging/http, or on any other. Prints one JSON object.
//
//   http_load                                   all figures of the server alone, its own stub
//   handler http_load --port 8000 --path /v1/chat/completions --body request.json --connections 32
//   --seconds 5 http_load --port 8000 ... --connections 2000 --requests 2000      2,000 streams,
//   each once
#include "messaging/http/server.hpp"
#include "messaging/http/sse.hpp"
#include "tests/bench/load_client.hpp"
#include "tests/support/bench.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace di::bench {
namespace {

using namespace std::chrono_literals;

constexpr int stream_events = 50;
constexpr std::chrono::milliseconds stream_tick{100};
constexpr std::size_t streams = 2'000;

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set); // best effort
}

void allow_descriptors() {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = most.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &most);
}

/// What stands for the engine: a body of the size of a short answer.
std::string stub_answer(const http::request& r) {
  return R"({"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"stub","choices":[{"index":0,)"
         R"("message":{"role":"assistant","content":")"
         + std::to_string(r.body.size())
         + R"("},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}})";
}

/// Streams whose events one thread writes, as the actor's thread does.
class stream_pump {
public:
  void add(http::exchange_ptr e) {
    e->begin_stream(200, http::sse_headers());
    const std::lock_guard lock{mutex_};
    open_.push_back({std::move(e), 0});
  }
  void run(std::stop_token stop) {
    auto due = std::chrono::steady_clock::now();
    std::unique_lock lock{mutex_};
    while (!stop.stop_requested()) {
      due += stream_tick;
      never_.wait_until(lock, due);
      std::erase_if(open_, [](auto& s) {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        s.first->write(http::sse_event(fmt::format(
            R"({} {{"choices":[{{"index":0,"delta":{{"content":" token"}},"finish_reason":null}}]}})",
            std::chrono::nanoseconds{now}.count())));
        if (++s.second < stream_events)
          return false;
        s.first->end();
        return true;
      });
    }
  }

private:
  std::mutex mutex_;
  std::condition_variable never_;
  std::vector<std::pair<http::exchange_ptr, int>> open_;
};

/// The server's process: says its port, lives until it is killed.
[[noreturn]] void serve(int say_port) {
  pin_to(0);
  allow_descriptors();
  stream_pump pump;
  std::jthread writing{[&](std::stop_token stop) { pump.run(stop); }};
  http::callbacks calls;
  calls.handler = [&](http::request r, http::exchange_ptr e) {
    if (r.path == "/stream")
      return pump.add(std::move(e));
    e->respond(200, {{"Content-Type", "application/json"}}, stub_answer(r));
  };
  http::options o;
  o.host = "127.0.0.1";
  auto s = http::server::start(o, std::move(calls));
  const std::uint16_t port = s.ok() ? (*s)->port() : std::uint16_t{0};
  if (::write(say_port, &port, sizeof port) != sizeof port)
    std::_Exit(1);
  for (;;)
    ::pause();
}

struct usage {
  double resident_bytes = 0, cpu_us = 0;
};

class stub_server {
public:
  stub_server() {
    int ends[2];
    if (::pipe(ends) != 0)
      std::abort();
    child_ = ::fork();
    if (child_ == 0)
      serve(ends[1]);
    if (::read(ends[0], &port, sizeof port) != sizeof port || port == 0)
      std::abort();
    pin_to(1);
  }
  ~stub_server() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  /// Memory of the process; processor time of all its threads.
  usage used() const {
    const std::filesystem::path of{fmt::format("/proc/{}", child_)};
    usage u;
    double pages = 0;
    std::ifstream{of / "statm"} >> pages >> u.resident_bytes;
    u.resident_bytes *= 4096;
    for (const auto& task : std::filesystem::directory_iterator{of / "task"}) {
      double ns = 0;
      std::ifstream{task.path() / "schedstat"} >> ns;
      u.cpu_us += ns / 1e3;
    }
    return u;
  }
  std::uint16_t port = 0;

private:
  pid_t child_ = -1;
};

std::string get(std::string_view path) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: bench\r\n\r\n", path);
}
std::string post(std::string_view path, std::string_view body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                     "Content-Length: {}\r\n\r\n{}",
                     path, body.size(), body);
}

/// Requests of a second on the server's one thread, and what one costs it.
std::string measure_requests(const stub_server& s, std::size_t connections) {
  load l;
  l.port = s.port;
  l.request = post("/v1/chat/completions", std::string(600, ' '));
  l.connections = connections;
  l.most = 4s;
  const auto before = s.used();
  auto f = run_load(l);
  const auto cpu_us = s.used().cpu_us - before.cpu_us;
  const auto answers = static_cast<double>(f.answers);
  return fmt::format(
      R"({{"connections": {}, "requests_per_s": {:.0f}, "requests_per_cpu_s": {:.0f}, "cpu_us_per_request": {:.2f}, "broken": {}, "answer_us": {}}})",
      connections, answers / f.seconds, answers / cpu_us * 1e6, cpu_us / answers, f.broken,
      percentiles_json(f.answer_us));
}

std::string measure_streams(const stub_server& s) {
  load l;
  l.port = s.port;
  l.request = get("/stream");
  l.connections = l.requests = streams;
  l.most = 60s;
  l.stamped = true;
  const auto before = s.used();
  // Memory while all are open: looked at from beside.
  double most_bytes = 0;
  std::jthread looking{[&](std::stop_token stop) {
    std::mutex m;
    std::condition_variable_any never;
    std::unique_lock lock{m};
    while (!never.wait_for(lock, stop, 200ms, [] { return false; }) && !stop.stop_requested())
      most_bytes = std::max(most_bytes, s.used().resident_bytes);
  }};
  auto f = run_load(l);
  looking.request_stop();
  looking.join();
  const auto cpu_us = s.used().cpu_us - before.cpu_us;
  return fmt::format(
      R"({{"streams": {}, "whole": {}, "broken": {}, "events": {}, "events_per_stream": {}, "tick_ms": {}, "seconds": {:.2f}, "server_bytes_per_stream": {:.0f}, "cpu_us_per_event": {:.2f}, "event_age_us": {}, "event_gap_us": {}}})",
      streams, f.answers, f.broken, f.events, stream_events, stream_tick.count(), f.seconds,
      (most_bytes - before.resident_bytes) / static_cast<double>(streams),
      cpu_us / static_cast<double>(std::max<std::size_t>(f.events, 1)),
      percentiles_json(f.event_age_us), percentiles_json(f.event_gap_us));
}

/// [us] of the stub itself, called as the handler is.
double direct_us() {
  http::request r;
  r.body.assign(600, ' ');
  constexpr int rounds = 200'000;
  std::size_t kept = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i)
    kept += stub_answer(r).size();
  const auto took = std::chrono::steady_clock::now() - start;
  return kept == 0 ? 0 : std::chrono::duration<double, std::micro>(took).count() / rounds;
}

int measure_own() {
  allow_descriptors();
  const stub_server s;
  const auto direct = direct_us();
  const auto streamed = measure_streams(s); // first: its memory is that of a fresh process
  const auto one = measure_requests(s, 1);
  const auto many = measure_requests(s, 32);
  fmt::print(R"({{"processor": "{}", "load_average": "{}",
 "stub_direct_us": {:.3f},
 "one_connection": {},
 "one_core": {},
 "streams": {}}}
)",
             test::processor(), test::first_line("cut -d' ' -f1 /proc/loadavg"), direct, one, many,
             streamed);
  return 0;
}

int measure_other(const std::vector<std::string>& words) {
  load l;
  std::string path = "/", body;
  l.most = 5s;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    const auto& value = words[i + 1];
    if (words[i] == "--port")
      l.port = static_cast<std::uint16_t>(std::stoul(value));
    else if (words[i] == "--path")
      path = value;
    else if (words[i] == "--body")
      body.assign(std::istreambuf_iterator<char>{*std::make_unique<std::ifstream>(value)}, {});
    else if (words[i] == "--connections")
      l.connections = std::stoul(value);
    else if (words[i] == "--requests")
      l.requests = std::stoul(value);
    else if (words[i] == "--seconds")
      l.most = std::chrono::milliseconds{static_cast<long>(std::stod(value) * 1e3)};
    else
      return fmt::print(stderr, "unknown option {}\n", words[i]), 2;
  }
  allow_descriptors();
  l.request = body.empty() ? get(path) : post(path, body);
  auto f = run_load(l);
  fmt::print(
      R"({{"seconds": {:.3f}, "answers": {}, "others": {}, "broken": {}, "events": {}, "bytes": {}, "answer_us": {}, "first_us": {}, "event_gap_us": {}}}
)",
      f.seconds, f.answers, f.others, f.broken, f.events, f.bytes, percentiles_json(f.answer_us),
      percentiles_json(f.first_us), percentiles_json(f.event_gap_us));
  return f.answers > 0 ? 0 : 1;
}

} // namespace
} // namespace di::bench

int main(int argc, char** argv) {
  return argc > 1 ? di::bench::measure_other({argv + 1, argv + argc}) : di::bench::measure_own();
}
