// SPDX-License-Identifier: Apache-2.0
// The bus against raw ZeroMQ between two processes over ipc, interleaved in rounds of one run: 64 B
// round trips, 64 B with 256 outstanding, 64 B one way, 1 MiB echoed with 8 outstanding. Prints
// JSON. Small-message latency has two modes on small virtual machines (the cost of waking a halted
// processor): compare only figures of the same round.
//
//   bus_bench [rounds]        the child is this program again, with "echo"
#include "messaging/bus/zmq_socket.hpp"
#include "tests/support/bench.hpp"
#include "tests/support/bus_pair.hpp"
#include "tests/support/child.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace di::test {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t small_bytes = 64;
constexpr std::size_t large_bytes = 1 << 20;

double seconds_since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

// --- the child: echoes on both ----------------------------------------------------------------

/// Raw ZeroMQ: a ROUTER that sends every message back, or swallows it if it begins with '-' and
/// answers the one that begins with '!'.
void raw_echo(void* context, const std::string& endpoint) {
  bus::socket s{context, ZMQ_ROUTER};
  s.set(ZMQ_SNDHWM, 0);
  s.set(ZMQ_RCVHWM, 0);
  if (!s.bind(endpoint))
    std::exit(1);
  for (;;) {
    bus::part id, body;
    if (zmq_msg_recv(id.raw(), s.raw(), 0) < 0 || zmq_msg_recv(body.raw(), s.raw(), 0) < 0)
      return;
    if (body.size() > 0 && body.bytes()[0] == std::byte{'-'})
      continue;
    zmq_msg_send(id.raw(), s.raw(), ZMQ_SNDMORE);
    zmq_msg_send(body.raw(), s.raw(), 0);
  }
}

int echo_main(char** argv) {
  bus::post_office_options o;
  o.prefix = "/rank/1";
  o.control_endpoint = argv[2];
  o.bulk_endpoint = argv[3];
  o.life = incarnation{2};
  o.codecs = test_codecs();
  o.peers = 16;
  auto office = start(std::move(o));
  bus::post_office* self = office.get();
  const bool bound = self->bind("/rank/1/echo",
                                [self](envelope mail) {
                                  if (mail.kind != mail_kind::request)
                                    return;
                                  if (const auto* m = mail.body.as<ping>())
                                    static_cast<void>(self->post(reply(mail, *m)));
                                  else if (const auto* r = mail.body.as<rows>())
                                    static_cast<void>(self->post(reply(mail, *r)));
                                })
                         .ok();
  if (!bound)
    return 1;
  bus::context context;
  std::thread raw{[&] { raw_echo(context.raw(), argv[4]); }};
  char byte = 'r';
  if (::write(1, &byte, 1) != 1)
    return 1;
  while (::read(0, &byte, 1) > 0) {
  }
  std::_Exit(0);
}

// --- the parent -------------------------------------------------------------------------------

struct round_trips {
  double p50_us = 0, p99_us = 0;
};

round_trips percentiles(std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[us.size() * 99 / 100]};
}

class raw_side {
public:
  raw_side(void* context, const std::string& endpoint) : socket_{context, ZMQ_DEALER} {
    socket_.set(ZMQ_SNDHWM, 0);
    socket_.set(ZMQ_RCVHWM, 0);
    if (!socket_.connect(endpoint))
      std::exit(1);
  }
  round_trips latency(int n) {
    std::vector<double> us;
    for (int i = 0; i < n; ++i) {
      const auto t = clock::now();
      send(small_bytes, '+');
      receive();
      us.push_back(1e6 * seconds_since(t));
    }
    return percentiles(us);
  }
  double echo_rate(int n, int window, std::size_t bytes) {
    const auto t = clock::now();
    for (int sent = 0, got = 0; got < n;) {
      for (; sent < n && sent - got < window; ++sent)
        send(bytes, '+');
      receive();
      ++got;
    }
    return n / seconds_since(t);
  }
  double one_way_rate(int n) {
    const auto t = clock::now();
    for (int i = 0; i < n; ++i)
      send(small_bytes, '-');
    send(small_bytes, '!');
    receive();
    return n / seconds_since(t);
  }

private:
  void send(std::size_t bytes, char first) {
    // Large ones lie in memory already, as rows do.
    bus::part p = bytes > small_bytes ? bus::part::lend(large_) : bus::part{bytes};
    if (bytes <= small_bytes)
      std::memset(p.bytes().data(), first, bytes);
    zmq_msg_send(p.raw(), socket_.raw(), 0);
  }
  void receive() {
    bus::part p;
    zmq_msg_recv(p.raw(), socket_.raw(), 0);
  }
  bus::socket socket_;
  shared_bytes large_ = shared_bytes::adopt(std::vector<char>(large_bytes, '+'));
};

class bus_side {
public:
  explicit bus_side(bus::post_office& office) : office_{office} {
    if (!office.bind("/control/a", box_.deliver()))
      std::exit(1);
  }
  round_trips latency(int n) {
    std::vector<double> us;
    for (int i = 0; i < n; ++i) {
      const auto t = clock::now();
      ask_small();
      receive();
      us.push_back(1e6 * seconds_since(t));
    }
    return percentiles(us);
  }
  double echo_rate(int n, int window, std::size_t bytes) {
    const auto t = clock::now();
    for (int sent = 0, got = 0; got < n;) {
      for (; sent < n && sent - got < window; ++sent)
        bytes > small_bytes ? ask(rows{1, large_}) : ask_small();
      receive();
      ++got;
    }
    return n / seconds_since(t);
  }
  double one_way_rate(int n) {
    const auto t = clock::now();
    for (int i = 0; i < n; ++i)
      while (!office_.post(tell("/rank/1/echo", "/control/a", ping{1, text_})))
        std::this_thread::yield(); // out of credit
    ask_small();
    receive();
    return n / seconds_since(t);
  }

private:
  void ask_small() { ask(ping{1, text_}); }
  template <message M>
  void ask(M m) {
    const envelope mail = request(office_, "/rank/1/echo", "/control/a", std::move(m));
    while (!office_.post(mail))
      std::this_thread::yield();
  }
  void receive() {
    const auto got = box_.next();
    if (!got || got->kind != mail_kind::reply) {
      std::fprintf(stderr, "bus_bench: no reply\n");
      std::exit(1);
    }
  }
  bus::post_office& office_;
  mailbox box_;
  std::string text_ = std::string(small_bytes - 8, 'x'); // body: number and text
  shared_bytes large_ = shared_bytes::adopt(std::vector<char>(large_bytes, '+'));
};

struct series {
  std::vector<double> raw, bus;
  std::string json() const {
    return fmt::format(
        R"({{"raw": {:.1f}, "bus": {:.1f}, "raw_rounds": [{:.1f}], "bus_rounds": [{:.1f}]}})",
        median(raw), median(bus), fmt::join(raw, ", "), fmt::join(bus, ", "));
  }
};

int bench_main(int argc, char** argv) {
  if (argc == 5 && std::string_view{argv[1]} == "echo")
    return echo_main(argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  run_dir dir;
  const auto where = bus::ipc_endpoints(dir.path(), "rank-1", incarnation{2}).value();
  const std::string raw_endpoint = "ipc://" + dir.path() + "/raw.sock";
  child echo{{"/proc/self/exe", "echo", where.control, where.bulk, raw_endpoint}};
  if (!echo.ready())
    return 1;
  const auto office = start(ipc_options(dir, "/control"));
  if (!office->add_route({"/rank/1", incarnation{2}, where.control, where.bulk, ""}))
    return 1;
  bus::context context;
  raw_side raw{context.raw(), raw_endpoint};
  bus_side ours{*office};
  raw.latency(200);
  ours.latency(200);

  series p50, p99, pipelined, one_way, large;
  for (int r = 0; r < rounds; ++r) {
    const round_trips a = raw.latency(2000);
    const round_trips b = ours.latency(2000);
    p50.raw.push_back(a.p50_us);
    p50.bus.push_back(b.p50_us);
    p99.raw.push_back(a.p99_us);
    p99.bus.push_back(b.p99_us);
    pipelined.raw.push_back(raw.echo_rate(100'000, 256, small_bytes));
    pipelined.bus.push_back(ours.echo_rate(100'000, 256, small_bytes));
    one_way.raw.push_back(raw.one_way_rate(200'000));
    one_way.bus.push_back(ours.one_way_rate(200'000));
    large.raw.push_back(raw.echo_rate(1000, 8, large_bytes));
    large.bus.push_back(ours.echo_rate(1000, 8, large_bytes));
  }
  const auto s = office->stats();
  std::printf("{\n  \"bench\": \"bus\",\n  \"commit\": \"%s\",\n  \"machine\": \"%s, %u cores\",\n",
              first_line("git -C " DI_SOURCE_DIR " rev-parse HEAD").c_str(), processor().c_str(),
              std::thread::hardware_concurrency());
  std::printf("  \"load_at_end\": \"%s\",\n  \"rounds\": %d,\n",
              first_line("cut -d' ' -f1-3 /proc/loadavg").c_str(), rounds);
  std::printf("  \"round_trip_64B_p50_us\": %s,\n", p50.json().c_str());
  std::printf("  \"round_trip_64B_p99_us\": %s,\n", p99.json().c_str());
  std::printf("  \"echo_64B_window256_per_s\": %s,\n", pipelined.json().c_str());
  std::printf("  \"one_way_64B_per_s\": %s,\n", one_way.json().c_str());
  std::printf("  \"echo_1MiB_window8_per_s\": %s,\n", large.json().c_str());
  std::printf("  \"batched_share\": %.3f,\n  \"mails_per_batch\": %.1f,\n",
              static_cast<double>(s.batched_mails_sent) / static_cast<double>(s.sent),
              static_cast<double>(s.batched_mails_sent)
                  / static_cast<double>(std::max<std::uint64_t>(1, s.batches_sent)));
  std::printf("  \"attachment_bytes_copied\": %llu\n}\n",
              static_cast<unsigned long long>(s.attachment_bytes_copied));
  return 0;
}

} // namespace
} // namespace di::test

int main(int argc, char** argv) {
  return di::test::bench_main(argc, argv);
}
