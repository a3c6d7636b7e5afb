// SPDX-License-Identifier: Apache-2.0
// The thread pool of the CPU kernels.
#include "kernels/stream.hpp"

#include "kernels/check.hpp"

#include <algorithm>
#include <new>

namespace di::kernels {
namespace {

constexpr std::align_val_t alignment{64};
constexpr std::int64_t cuts_per_thread = 8; ///< pieces per thread, so that late ones can steal

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

cpu_stream::cpu_stream(unsigned threads, std::int64_t worth_waking_ns)
    : threads_(std::max(threads, 1U)),
      worth_waking_ns_(worth_waking_ns),
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
  if (threads_ == 1 || units == 1 || cost_ns < worth_waking_ns_) {
    f(context, 0, units, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    units_ = units;
    grain_ = std::max<std::int64_t>(1, units / (cuts_per_thread * static_cast<int>(threads_)));
    body_ = f;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    ++generation_;
    open_ = true;
  }
  const std::int64_t helpers = std::min<std::int64_t>(units, threads_) - 1;
  for (std::int64_t i = 0; i < helpers; ++i)
    wake_.notify_one();
  take_units(0);
  std::unique_lock lock(mutex_);
  open_ = false; // who has not come yet stays out
  done_.wait(lock, [this] { return inside_ == 0; });
}

void cpu_stream::take_units(unsigned worker) {
  for (;;) {
    const std::int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= units_)
      return;
    body_(context_, begin, std::min(begin + grain_, units_), worker);
  }
}

void cpu_stream::serve(unsigned worker) {
  const fp_control_guard fp;
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || (open_ && generation_ != seen); });
    if (stop_)
      return;
    seen = generation_;
    ++inside_;
    lock.unlock();
    take_units(worker);
    lock.lock();
    if (--inside_ == 0 && !open_)
      done_.notify_one();
  }
}

std::unique_ptr<stream> make_cpu_stream(unsigned threads) {
  return std::make_unique<cpu_stream>(threads);
}

} // namespace di::kernels
