// SPDX-License-Identifier: Apache-2.0
#include "chaos/soak.hpp"

#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

namespace di::chaos {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t faults_max = 3;
constexpr std::uint64_t workloads = 4; ///< different ones: undisturbed answers are kept

class drawer {
public:
  drawer(std::uint64_t seed, std::uint32_t round, const soak_shape& shape)
      : random_{seed * 1'000'003 + round}, shape_{shape} {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  milliseconds between(int low, int high) {
    return milliseconds{low + static_cast<int>(below(static_cast<std::uint64_t>(high - low)))};
  }

  fault draw() {
    // Deaths of ranks are most of what happens (Llama-3: two thirds are one GPU's).
    constexpr std::array<fault_kind, 16> kinds = {
        fault_kind::kill, fault_kind::kill,  fault_kind::kill,      fault_kind::kill,
        fault_kind::kill, fault_kind::crash, fault_kind::stop,      fault_kind::stop,
        fault_kind::slow, fault_kind::cut,   fault_kind::delay,     fault_kind::drop,
        fault_kind::hog,  fault_kind::stop,  fault_kind::duplicate, fault_kind::corrupt};
    fault f;
    f.kind = kinds[below(kinds.size())];
    f.target = some_rank();
    f.trigger.kind = trigger_kind::at;
    f.trigger.at = between(200, 4'000);
    shape(f);
    return f;
  }

private:
  fault_target some_rank() {
    return {target_kind::rank, static_cast<std::uint32_t>(below(shape_.ranks))};
  }
  void shape(fault& f) {
    constexpr std::array<std::string_view, 3> points = {
        "rank.step_launched", "rank.waits_for_experts", "rank.step_drawn"};
    switch (f.kind) {
    case fault_kind::kill:
      if (shape_.journal && below(5) == 0)
        f.target = {target_kind::control, 0};
      break;
    case fault_kind::crash:
      f.point = points[below(points.size())];
      f.skip = below(20);
      break;
    case fault_kind::stop:
      // Short ones are no deaths, long ones are zombies; the rest stay frozen.
      switch (below(3)) {
      case 0:
        f.lasts = between(20, 120);
        break;
      case 1:
        f.lasts = between(800, 2'000);
        break;
      default:
        break;
      }
      break;
    case fault_kind::slow:
      f.factor = below(2) == 0 ? 3 : 10;
      f.lasts = between(500, 2'000);
      break;
    case fault_kind::hog:
      f.target = {};
      f.threads = 8;
      f.lasts = between(300, 1'500);
      break;
    default: // links
      f.peer = some_rank();
      if (f.peer == f.target)
        f.peer = {target_kind::control, 0};
      f.one_way = below(3) == 0;
      f.rate = f.kind == fault_kind::duplicate ? 0.5 : 0.05;
      f.delay = milliseconds{5};
      f.jitter = milliseconds{5};
      f.lasts = between(200, 900);
      break;
    }
  }

  std::mt19937_64 random_;
  soak_shape shape_;
};

} // namespace

plan draw_plan(std::uint64_t seed, std::uint32_t round, const soak_shape& shape) {
  drawer d{seed, round, shape};
  plan p;
  p.name = fmt::format("soak-{}-{}", seed, round);
  p.doc = "random faults";
  p.seed = seed + round;
  p.sets = {"supervisor.restart.backoff=200ms", "supervisor.restart.max=1000"};
  p.work.requests = 40;
  p.work.after = 4;
  p.work.choices = {1, 2};
  p.work.seed = 1 + d.below(workloads);
  for (std::uint64_t n = 1 + d.below(faults_max); n > 0; --n)
    p.faults.push_back(d.draw());
  std::sort(p.faults.begin(), p.faults.end(),
            [](const fault& a, const fault& b) { return a.trigger.at < b.trigger.at; });
  p.expect.late_faults = true; // a fast machine may be done before
  return p;
}

plan cycle_plan(std::uint64_t seed, std::uint32_t round, std::uint32_t count) {
  plan p;
  p.name = fmt::format("cycles-{}-{}", seed, round);
  p.doc = "kill a random rank whenever the group is whole";
  p.seed = seed + round;
  p.sets = {"supervisor.restart.backoff=10ms", "supervisor.restart.backoff_max=20ms",
            "supervisor.restart.max=100000"};
  p.limit = std::chrono::seconds{400};
  p.work.requests = 200;
  p.work.after = 4;
  p.work.seed = seed;
  fault f;
  f.target = {target_kind::random_rank, 0};
  f.trigger.kind = trigger_kind::whole;
  f.after = milliseconds{100};
  f.times = std::max(count, 1U);
  f.every = milliseconds{1}; // the trigger must come again
  p.faults = {f};
  p.expect.late_faults = true; // a round makes as many as it has time for
  return p;
}

std::string to_yaml(const plan& p) {
  std::string out =
      fmt::format("apiVersion: di-chaos/v1\nname: {}\ndoc: {}\nseed: {}\n", p.name, p.doc, p.seed);
  out +=
      fmt::format("sets: [{}]\nlimit: {}\n", fmt::join(p.sets, ", "), launch::format_time(p.limit));
  out += fmt::format("workload: {{requests: {}, after: {}, n: {}..{}, seed: {}}}\nfaults:\n",
                     p.work.requests, p.work.after, p.work.choices.low, p.work.choices.high,
                     p.work.seed);
  for (const fault& f : p.faults) {
    out += fmt::format("  - {{fault: {}", to_string(f.kind));
    if (f.target.kind != target_kind::none)
      out += fmt::format(", target: {}", to_string(f.target));
    if (f.peer.kind != target_kind::none)
      out += fmt::format(", peer: {}", to_string(f.peer));
    if (f.trigger.kind == trigger_kind::whole)
      out += ", when: group whole";
    else
      out += fmt::format(", at: {}", launch::format_time(f.trigger.at));
    if (f.after > nanoseconds{})
      out += fmt::format(", after: {}", launch::format_time(f.after));
    if (f.lasts > nanoseconds{})
      out += fmt::format(", for: {}", launch::format_time(f.lasts));
    if (f.times > 1)
      out += fmt::format(", times: {}, every: {}", f.times, launch::format_time(f.every));
    if (f.kind == fault_kind::slow)
      out += fmt::format(", factor: x{}", f.factor);
    if (!f.point.empty())
      out += fmt::format(", point: {}, skip: {}", f.point, f.skip);
    if (f.kind == fault_kind::hog)
      out += fmt::format(", threads: {}", f.threads);
    if (f.rate < 1)
      out += fmt::format(", rate: {}", f.rate);
    if (f.kind == fault_kind::delay)
      out += fmt::format(", delay: {}, jitter: {}", launch::format_time(f.delay),
                         launch::format_time(f.jitter));
    if (f.one_way)
      out += ", one_way: true";
    out += "}\n";
  }
  return out + (p.expect.late_faults ? "expect: {late_faults: true}\n" : "");
}

} // namespace di::chaos
