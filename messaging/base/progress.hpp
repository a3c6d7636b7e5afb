// SPDX-License-Identifier: Apache-2.0
// What one actor tells a watcher outside its process about its progress: a few words in memory
// that both see, written with plain stores, read without anybody's help.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace di {

/// One actor's words. Zeros are a valid start. One writer at a time; readers in other processes
/// may see a phase and a count of different moments, so they look twice.
///
/// A phase is what is being done: 0 is nothing (idle), anything else names it, e.g. the wire id of
/// the mail that is handled. How long phases took is kept as counts of powers of two, so that a
/// watcher knows what is usual.
struct alignas(64) progress_cell {
  static constexpr std::size_t phases = 32;  ///< kinds told apart; others share
  static constexpr std::size_t buckets = 40; ///< bucket b: shorter than 2^b ns
  static constexpr std::uint32_t kept_max = 4096;

  std::atomic<std::uint64_t> count{0};   ///< rises whenever something begins or ends
  std::atomic<std::int64_t> began_ns{0}; ///< [ns] steady clock, of the phase
  std::atomic<std::uint32_t> phase{0};
  std::array<std::array<std::atomic<std::uint32_t>, buckets>, phases> took{};

  static std::size_t slot_of(std::uint32_t what) noexcept {
    return (what ^ (what >> 5U) ^ (what >> 8U)) % phases;
  }
  static std::int64_t clock_ns() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void begin(std::uint32_t what) noexcept {
    began_ns.store(clock_ns(), std::memory_order_relaxed);
    phase.store(what, std::memory_order_relaxed);
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void end() noexcept {
    const auto ns = clock_ns() - began_ns.load(std::memory_order_relaxed);
    auto& row = took[slot_of(phase.load(std::memory_order_relaxed))];
    const auto b = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(ns)));
    auto& bucket = row[std::min(b, buckets - 1)];
    const auto n = bucket.load(std::memory_order_relaxed) + 1;
    bucket.store(n, std::memory_order_relaxed);
    if (n >= kept_max) // what was usual long ago counts less
      for (auto& other : row)
        other.store(other.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
    phase.store(0, std::memory_order_relaxed);
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
};

/// Phases that are no wire ids.
inline constexpr std::uint32_t phase_start = 1, phase_timer = 2;

/// Says what is being done while it lives; null is no one's.
class progress_mark {
public:
  progress_mark(progress_cell* cell, std::uint32_t what) noexcept : cell_{cell} {
    if (cell_)
      cell_->begin(what);
  }
  ~progress_mark() {
    if (cell_)
      cell_->end();
  }
  progress_mark(const progress_mark&) = delete;
  progress_mark& operator=(const progress_mark&) = delete;

private:
  progress_cell* cell_;
};

} // namespace di
