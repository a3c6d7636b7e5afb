// SPDX-License-Identifier: Apache-2.0
// Time of SCHEDULER per admission and per load report. Prints one JSON object.
//
//   admission_bench [TURNS]
//
// 256 requests run on the ranks. One turn is what an ended request causes: its rank settles it and
// reports its load, a new request is admitted and assigned, the rank takes it. "queued" has 1,000
// more requests waiting without room, so that each turn also goes through the head of the queue.
#include "engine/core/scheduler_core.hpp"
#include "messaging/base/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <vector>

namespace {

using di::engine::placed_rank, di::engine::scheduler_core, di::engine::scheduler_options;
namespace proto = di::proto;

using clock_type = std::chrono::steady_clock;

struct series {
  std::vector<double> us;
  void add(clock_type::time_point begin) {
    us.push_back(std::chrono::duration<double, std::micro>(clock_type::now() - begin).count());
  }
  std::string json() {
    std::sort(us.begin(), us.end());
    return fmt::format("{{\"median_us\": {:.2f}, \"p99_us\": {:.2f}, \"max_us\": {:.2f}}}",
                       us[us.size() / 2], us[us.size() * 99 / 100], us.back());
  }
};

struct world {
  world(std::uint32_t ranks, std::size_t waiting) {
    scheduler_options o;
    o.assigned_per_rank_max = 256 / ranks;
    o.backlog_per_rank_max = 256;
    o.queue_max = 65'536;
    core = std::make_unique<scheduler_core>(o);
    std::vector<placed_rank> all;
    for (std::uint32_t r = 0; r < ranks; ++r)
      all.push_back({di::rank_id{r}, di::incarnation{10 + r}});
    core->install_view(di::epoch{1}, all, now, out);
    for (std::size_t i = 0; i < 256 + waiting; ++i)
      admit();
    reports.resize(ranks);
  }

  void admit() {
    proto::admit_request m;
    m.attempt = 1;
    m.spec.request = di::request_id{++number};
    m.spec.gateway = "/gateway/0";
    m.spec.tenant = std::string(1, number % 2 ? 'a' : 'b');
    m.spec.priority = static_cast<std::int32_t>(number % 5) - 2;
    m.spec.prompt.assign(200 + number % 1'000, 7);
    m.spec.sampling.max_tokens = 256;
    (void)core->on(m, now, out);
    take_mail();
  }

  void take_mail() {
    for (const di::any_effect& e : out.take())
      if (const auto* s = std::get_if<di::effect::send>(&e))
        if (const auto* m = s->body.as<proto::assign_request>())
          running.push_back({m->spec.request, static_cast<std::uint32_t>(m->life.v - 10)});
  }

  struct served {
    di::request_id id;
    std::uint32_t rank = 0;
  };
  std::unique_ptr<scheduler_core> core;
  di::outbox out;
  di::instant now;
  std::uint64_t number = 0;
  std::deque<served> running;
  std::vector<std::uint64_t> reports;
};

std::string measure(std::uint32_t ranks, std::size_t waiting, int turns) {
  world w{ranks, waiting};
  series settled, loaded, admitted, taken, turn_all;
  for (int i = 0; i < turns; ++i) {
    w.now = w.now + std::chrono::milliseconds{1};
    const world::served ended = w.running.front();
    w.running.pop_front();
    const di::rank_id rank{ended.rank};
    const di::incarnation life{10 + ended.rank};
    const auto turn = clock_type::now();
    auto begin = turn;
    (void)w.core->on(proto::request_settled{ended.id, 1, rank, life}, w.now, w.out);
    settled.add(begin);
    proto::rank_load load;
    load.rank = rank;
    load.life = life;
    load.report = ++w.reports[ended.rank];
    load.running = 256 / ranks;
    load.rows_pending = 300;
    load.kv_tokens_total = 1'000'000;
    begin = clock_type::now();
    (void)w.core->on(load, w.now, w.out);
    loaded.add(begin);
    begin = clock_type::now();
    w.admit();
    admitted.add(begin);
    const world::served fresh = w.running.back();
    begin = clock_type::now();
    (void)w.core->on(proto::request_taken{fresh.id, 1, di::rank_id{fresh.rank},
                                          di::incarnation{10 + fresh.rank}},
                     w.now, w.out);
    taken.add(begin);
    turn_all.add(turn);
  }
  w.core->check();
  return fmt::format("{{\"ranks\": {}, \"running\": {}, \"queued\": {}, \"admission\": {}, "
                     "\"load_report\": {}, \"settled\": {}, \"taken\": {}, \"turn\": {}}}",
                     ranks, w.running.size(), waiting, admitted.json(), loaded.json(),
                     settled.json(), taken.json(), turn_all.json());
}

} // namespace

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::atoi(argv[1]) : 20'000;
  if (turns < 1) {
    fmt::print(stderr, "admission_bench: TURNS must be a positive number\n");
    return 2;
  }
  fmt::print("{{\"turns\": {}, \"cases\": [\n", turns);
  bool first = true;
  for (const std::uint32_t ranks : {1U, 16U, 64U})
    for (const std::size_t waiting : {std::size_t{0}, std::size_t{1'000}}) {
      fmt::print("{}  {}", first ? "" : ",\n", measure(ranks, waiting, turns));
      first = false;
    }
  fmt::print("\n]}}\n");
}
