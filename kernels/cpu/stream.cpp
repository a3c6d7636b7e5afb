// SPDX-License-Identifier: Apache-2.0
// The thread pool of the CPU kernels.
#include "kernels/stream.hpp"

#include "kernels/check.hpp"

#include <algorithm>
#include <chrono>
#include <new>

#if defined(__linux__)
#include <sched.h>
#endif

namespace di::kernels {
namespace {

constexpr std::align_val_t alignment{64};
constexpr std::int64_t cuts_per_thread = 8; ///< pieces per thread, so that late ones can steal
// A helper that was taken off its core in the middle of a unit keeps the caller waiting.
constexpr std::int64_t long_wait_ns = 300'000;     ///< a wait that is held against the helpers
constexpr std::int64_t alone_ns = 20'000'000;      ///< then the caller works alone for so long
constexpr int most_strikes = 3;                    ///< and at most 2^3 times as long
constexpr std::int64_t forgotten_ns = 300'000'000; ///< of good conduct

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int this_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -2; // unknown: never the caller's
#endif
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

} // namespace

scratch_buffer::~scratch_buffer() {
  ::operator delete(data_, alignment);
}

std::byte* scratch_buffer::reserve(std::size_t bytes) {
  if (bytes > size_) {
    ::operator delete(data_, alignment);
    data_ = nullptr;
    size_ = 0;
    const std::size_t grown = bytes + bytes / 2;
    data_ = static_cast<std::byte*>(::operator new(grown, alignment));
    size_ = grown;
  }
  return data_;
}

cpu_stream::cpu_stream(unsigned threads, std::int64_t worth_waking_ns, std::int64_t linger_ns)
    : threads_(std::max(threads, 1U)),
      worth_waking_ns_(worth_waking_ns),
      linger_ns_(linger_ns),
      worker_scratch_(threads_) {
  for (unsigned w = 1; w < threads_; ++w)
    pool_.emplace_back([this, w] { serve(w); });
}

cpu_stream::~cpu_stream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : pool_)
    t.join();
}

void cpu_stream::run(std::int64_t units, std::int64_t cost_ns, body f, void* context) {
  if (units <= 0)
    return;
  if (threads_ == 1 || units == 1 || !worth_sharing(cost_ns) || !sharing()) {
    f(context, 0, units, 0);
    return;
  }
  const std::int64_t start = now_ns();
  {
    const std::lock_guard lock(mutex_);
    units_ = units;
    grain_ = std::max<std::int64_t>(1, units / (cuts_per_thread * static_cast<int>(threads_)));
    body_ = f;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    open_ = true;
    caller_core_.store(this_core(), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  const std::int64_t helpers = std::min<std::int64_t>(units, threads_) - 1;
  for (std::int64_t i = 0; i < helpers; ++i)
    wake_.notify_one();
  take_units(0);
  {
    const std::lock_guard lock(mutex_);
    open_ = false; // who has not come yet stays out
  }
  if (inside_.load(std::memory_order_acquire) == 0)
    return;
  const std::int64_t done = now_ns();
  // A unit lasts less than a sleeper takes to wake, so look before sleeping.
  for (const std::int64_t end = done + linger_ns_;
       inside_.load(std::memory_order_acquire) != 0 && now_ns() < end;)
    pause();
  if (inside_.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return inside_.load(std::memory_order_relaxed) == 0; });
  }
  judge(done - start, now_ns() - done);
}

bool cpu_stream::worth_sharing(std::int64_t cost_ns) const {
  const bool awake = lingering_.load(std::memory_order_relaxed) > 0;
  return cost_ns >= (awake ? worth_waking_ns_ / 3 : worth_waking_ns_);
}

bool cpu_stream::sharing() const {
  return alone_until_ns_ == 0 || now_ns() >= alone_until_ns_;
}

void cpu_stream::judge(std::int64_t worked_ns, std::int64_t waited_ns) {
  if (waited_ns < long_wait_ns || waited_ns < worked_ns / 2) {
    if (alone_until_ns_ != 0 && now_ns() > alone_until_ns_ + forgotten_ns) {
      alone_until_ns_ = 0;
      strikes_ = 0;
    }
    return;
  }
  alone_until_ns_ = now_ns() + (alone_ns << strikes_);
  strikes_ = std::min(strikes_ + 1, most_strikes);
}

void cpu_stream::take_units(unsigned worker) {
  for (;;) {
    const std::int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= units_)
      return;
    body_(context_, begin, std::min(begin + grain_, units_), worker);
  }
}

void cpu_stream::linger(std::uint64_t seen) {
  if (linger_ns_ <= 0 || caller_core_.load(std::memory_order_relaxed) == this_core())
    return;
  lingering_.fetch_add(1, std::memory_order_relaxed);
  for (const std::int64_t end = now_ns() + linger_ns_;
       generation_.load(std::memory_order_acquire) == seen && now_ns() < end;)
    pause();
  lingering_.fetch_sub(1, std::memory_order_relaxed);
}

void cpu_stream::serve(unsigned worker) {
  const fp_control_guard fp;
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] {
      return stop_ || (open_ && generation_.load(std::memory_order_relaxed) != seen);
    });
    if (stop_)
      return;
    seen = generation_.load(std::memory_order_relaxed);
    inside_.fetch_add(1, std::memory_order_relaxed);
    lock.unlock();
    take_units(worker);
    lock.lock();
    if (inside_.fetch_sub(1, std::memory_order_acq_rel) == 1 && !open_)
      done_.notify_one();
    lock.unlock();
    linger(seen);
    lock.lock();
  }
}

std::unique_ptr<stream> make_cpu_stream(unsigned threads) {
  return std::make_unique<cpu_stream>(threads);
}

} // namespace di::kernels
