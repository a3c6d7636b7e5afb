// SPDX-License-Identifier: Apache-2.0
// What a span costs, off and on. Prints one JSON object.
#include "messaging/base/trace.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

namespace trace = di::trace;
using di::request_id;

constexpr int spans = 400'000;

/// [ns] of one span, best of several turns.
template <class F>
double best_ns(F&& one) {
  double best = 1e9;
  for (int turn = 0; turn < 7; ++turn) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < spans; ++i)
      one(static_cast<std::uint32_t>(i));
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / spans);
  }
  return best;
}

void one_span(std::uint32_t i) {
  const trace::span s{trace::kind::attention, {.rows = i, .layer = 3}, request_id{i}};
}

void one_mark(std::uint32_t i) {
  trace::mark(trace::kind::take, request_id{i});
}

} // namespace

int main() {
  const double off = best_ns(one_span), mark_off = best_ns(one_mark);
  trace::enable(65'536);
  const double on = best_ns(one_span), mark_on = best_ns(one_mark);
  double both = 0; // two writers at once, per span of one
  {
    std::thread other{[] { best_ns(one_span); }};
    both = best_ns(one_span);
    other.join();
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto part = trace::read();
  const std::chrono::duration<double, std::milli> reading =
      std::chrono::steady_clock::now() - begin;
  std::printf(
      "{\"span_off_ns\": %.2f, \"mark_off_ns\": %.2f, \"span_on_ns\": %.1f, \"mark_on_ns\": "
      "%.1f, \"span_on_two_threads_ns\": %.1f, \"read_65536_ms\": %.2f, \"read\": %zu}\n",
      off, mark_off, on, mark_on, both, reading.count(), part.events.size());
}
