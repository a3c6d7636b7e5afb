// SPDX-License-Identifier: Apache-2.0
// Rows between two processes of one host, through shared memory and in ZeroMQ frames: the same
// post offices, messages and program, interleaved size by size in rounds of one run. The receiver
// reads every byte. Prints JSON: p50 of a row request with a short answer, and GB/s with a window
// of requests outstanding.
//
//   shm_bench [rounds]        the child is this program again, with "sum"
#include "tests/support/bench.hpp"
#include "tests/support/bus_pair.hpp"
#include "tests/support/child.hpp"
#include "tests/support/segments.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace di::test {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint64_t segment_size = 16u << 20; // the default of cluster.segment_size
constexpr int window = 8;                         // 8 MiB of the largest: half of the segment
constexpr std::size_t sizes[] = {64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
constexpr incarnation far_shared{2}, far_frames{3}, near_shared{4}, near_frames{5};

double seconds_since(clock::time_point t) {
  return std::chrono::duration<double>(clock::now() - t).count();
}

bus::post_office_options options(const std::string& dir, const address& prefix, incarnation life) {
  bus::post_office_options o;
  o.prefix = prefix;
  o.life = life;
  o.codecs = test_codecs();
  const auto where = bus::ipc_endpoints(dir, last_name(prefix), life);
  o.control_endpoint = where->control;
  o.bulk_endpoint = where->bulk;
  o.peers = 16;
  return o;
}

std::uint64_t sum_of(const shared_bytes& rows) {
  std::uint64_t sum = 0;
  for (const std::uint64_t word : rows.as<std::uint64_t>())
    sum += word;
  return sum;
}

bool answer_sums(bus::post_office& office, const address& path) {
  return office
      .bind(path,
            [&office](envelope mail) {
              if (const auto* m = mail.body.as<rows>())
                static_cast<void>(office.post(reply(mail, ping{sum_of(m->data), ""})));
            })
      .ok();
}

/// sum <dir> <own segment> <the parent's segment>
int sum_main(char** argv) {
  auto o = options(argv[2], "/rank/1", far_shared);
  o.segments.own = std::atoi(argv[3]);
  o.segments.neighbours = {{near_shared, std::atoi(argv[4])}};
  o.segments.mail_bytes_min = 1;
  const auto shared = start(std::move(o));
  const auto frames = start(options(argv[2], "/rank/2", far_frames));
  if (!answer_sums(*shared, "/rank/1/sum") || !answer_sums(*frames, "/rank/2/sum"))
    return 1;
  char byte = 'r';
  if (::write(1, &byte, 1) != 1)
    return 1;
  while (::read(0, &byte, 1) > 0) {
  }
  std::_Exit(0);
}

class side {
public:
  side(std::unique_ptr<bus::post_office> office, const bus::peer& far)
      : office_{std::move(office)}, to_{far.prefix + "/sum"} {
    if (!office_->bind("/near/a", box_.deliver()) || !office_->add_route(far))
      std::exit(1);
  }
  void use(const shared_bytes& data) {
    data_ = data;
    sum_ = sum_of(data);
  }
  double p50_us(int n) {
    std::vector<double> us;
    for (int i = 0; i < n; ++i) {
      const auto t = clock::now();
      ask();
      receive();
      us.push_back(1e6 * seconds_since(t));
    }
    return median(std::move(us));
  }
  double bytes_per_s(int n) {
    const auto t = clock::now();
    for (int sent = 0, got = 0; got < n; ++got) {
      for (; sent < n && sent - got < window; ++sent)
        ask();
      receive();
    }
    return n * static_cast<double>(data_.size()) / seconds_since(t);
  }
  bus::post_office_stats stats() const { return office_->stats(); }

private:
  void ask() {
    const envelope mail = request(*office_, to_, "/near/a", rows{1, data_});
    while (!office_->post(mail))
      std::this_thread::yield();
  }
  void receive() {
    const auto got = box_.next();
    if (!got || got->kind != mail_kind::reply || got->body.as<ping>()->n != sum_) {
      std::fprintf(stderr, "shm_bench: no reply, or a wrong sum\n");
      std::exit(1);
    }
  }
  mailbox box_;
  std::unique_ptr<bus::post_office> office_;
  address to_;
  shared_bytes data_;
  std::uint64_t sum_ = 0;
};

struct figures {
  std::vector<double> p50_shared, p50_frames, rate_shared, rate_frames;
};

std::string json(std::size_t size, const figures& f) {
  const double gb_shared = median(f.rate_shared) / 1e9, gb_frames = median(f.rate_frames) / 1e9;
  return fmt::format(
      R"(    {{"bytes": {}, "p50_us": {{"shm": {:.1f}, "zmq": {:.1f}, "shm_rounds": [{:.1f}], )"
      R"("zmq_rounds": [{:.1f}]}}, "GB_per_s": {{"shm": {:.3f}, "zmq": {:.3f}, "ratio": {:.2f}}}}})",
      size, median(f.p50_shared), median(f.p50_frames), fmt::join(f.p50_shared, ", "),
      fmt::join(f.p50_frames, ", "), gb_shared, gb_frames, gb_shared / gb_frames);
}

int bench_main(int argc, char** argv) {
  if (argc == 5 && std::string_view{argv[1]} == "sum")
    return sum_main(argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  run_dir dir;
  const test_segment own{segment_size}, other{segment_size};
  const bus::owned_fd other_writer{other.writer()}, own_reader{own.reader()};
  child far{{"/proc/self/exe", "sum", dir.path(), std::to_string(other_writer.get()),
             std::to_string(own_reader.get())}};
  if (!far.ready())
    return 1;
  const auto far_peer = [&](const address& prefix, incarnation life) {
    const auto where = bus::ipc_endpoints(dir.path(), last_name(prefix), life).value();
    return bus::peer{prefix, life, where.control, where.bulk, ""};
  };
  auto o = with_segments(options(dir.path(), "/near/1", near_shared), own, other, far_shared);
  o.segments.mail_bytes_min = 1; // also where it does not pay
  side shared{start(std::move(o)), far_peer("/rank/1", far_shared)};
  side frames{start(options(dir.path(), "/near/2", near_frames)), far_peer("/rank/2", far_frames)};
  std::vector<figures> all(std::size(sizes));
  for (int r = -1; r < rounds; ++r) { // the first one warms up
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      std::vector<std::uint64_t> words(sizes[i] / 8);
      for (std::size_t w = 0; w < words.size(); ++w)
        words[w] = w * 0x9e3779b97f4a7c15ull;
      const shared_bytes data = shared_bytes::adopt(std::move(words));
      const int n = static_cast<int>(std::clamp<std::size_t>((64u << 20) / sizes[i], 200, 20'000));
      for (side* s : {&shared, &frames}) {
        s->use(data);
        const double p50 = s->p50_us(500), rate = s->bytes_per_s(n);
        if (r < 0)
          continue;
        (s == &shared ? all[i].p50_shared : all[i].p50_frames).push_back(p50);
        (s == &shared ? all[i].rate_shared : all[i].rate_frames).push_back(rate);
      }
    }
  }
  const auto s = shared.stats();
  std::printf("{\n  \"bench\": \"shm\",\n  \"commit\": \"%s\",\n  \"machine\": \"%s, %u cores\",\n",
              first_line("git -C " DI_SOURCE_DIR " rev-parse HEAD").c_str(), processor().c_str(),
              std::thread::hardware_concurrency());
  std::printf("  \"load_at_end\": \"%s\",\n  \"rounds\": %d,\n  \"window\": %d,\n  \"sizes\": [\n",
              first_line("cut -d' ' -f1-3 /proc/loadavg").c_str(), rounds, window);
  for (std::size_t i = 0; i < std::size(sizes); ++i)
    std::printf("%s%s\n", json(sizes[i], all[i]).c_str(), i + 1 < std::size(sizes) ? "," : "");
  std::printf("  ],\n  \"segment_mails\": %llu,\n  \"segment_full\": %llu\n}\n",
              static_cast<unsigned long long>(s.segment_mails_sent),
              static_cast<unsigned long long>(s.segment_full));
  return 0;
}

} // namespace
} // namespace di::test

int main(int argc, char** argv) {
  return di::test::bench_main(argc, argv);
}
