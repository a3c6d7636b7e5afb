// SPDX-License-Identifier: Apache-2.0
#include "messaging/base/probe.hpp"

#include <csignal>
#include <mutex>
#include <random>
#include <unistd.h>

namespace di::probe {
namespace {

struct point {
  plan what;
  std::uint64_t seen = 0;
  std::uint64_t fired = 0;
};

struct registry {
  std::mutex guard;
  std::map<std::string, point, std::less<>> points;
  std::map<std::string, std::uint64_t, std::less<>> seen;
  std::mt19937_64 random{1};
};

registry& all() {
  static registry instance;
  return instance;
}

void count(registry& r, std::string_view name) {
  auto at = r.seen.find(name);
  if (at == r.seen.end())
    at = r.seen.emplace(std::string{name}, 0).first;
  ++at->second;
}

} // namespace

namespace detail {

namespace {

/// Under the registry's lock.
bool fires(registry& r, std::string_view name) {
  const auto at = r.points.find(name);
  if (at == r.points.end())
    return false;
  point& p = at->second;
  if (p.seen++ < p.what.skip || p.fired >= p.what.times_max)
    return false;
  const double draw = static_cast<double>(r.random() >> 11) * 0x1p-53;
  if (draw >= p.what.probability)
    return false;
  ++p.fired;
  if (p.what.signal != 0)
    ::kill(::getpid(), p.what.signal);
  return true;
}

} // namespace

bool decide(std::string_view name) {
  registry& r = all();
  const std::lock_guard lock{r.guard};
  count(r, name);
  return fires(r, name);
}

void mark(std::string_view name) {
  registry& r = all();
  const std::lock_guard lock{r.guard};
  count(r, name);
  (void)fires(r, name);
}

} // namespace detail

void arm(std::string_view name, plan p) {
  registry& r = all();
  const std::lock_guard lock{r.guard};
  r.points.insert_or_assign(std::string{name}, point{p, 0, 0});
  detail::armed.store(true, std::memory_order_relaxed);
}

void disarm(std::string_view name) {
  registry& r = all();
  const std::lock_guard lock{r.guard};
  if (const auto at = r.points.find(name); at != r.points.end())
    r.points.erase(at);
}

void observe() {
  detail::armed.store(true, std::memory_order_relaxed);
}

void reset(std::uint64_t seed) {
  registry& r = all();
  const std::lock_guard lock{r.guard};
  r.points.clear();
  r.seen.clear();
  r.random.seed(seed);
  detail::armed.store(false, std::memory_order_relaxed);
}

std::map<std::string, std::uint64_t> visits() {
  registry& r = all();
  const std::lock_guard lock{r.guard};
  return {r.seen.begin(), r.seen.end()};
}

} // namespace di::probe
