// SPDX-License-Identifier: Apache-2.0
// The CPU stream: a pool of threads that sleep between parallel regions, and its scratch memory.
#pragma once

#include "kernels/kernels.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace di::kernels {

/// Memory that grows and is never given back before the end; 64-byte aligned, contents not kept.
class scratch_buffer {
public:
  scratch_buffer() = default;
  ~scratch_buffer();
  scratch_buffer(const scratch_buffer&) = delete;
  scratch_buffer& operator=(const scratch_buffer&) = delete;

  std::byte* reserve(std::size_t bytes);

private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Work is cut into units that any thread may take, in any order, by one atomic counter. The caller
/// takes part; a thread that wakes late finds nothing left and the caller does not wait for it, so
/// a busy core costs at most the unit that was begun on it.
class cpu_stream final : public stream {
public:
  /// Computes units [begin, end) on thread `worker` (0 = the caller).
  using body = void (*)(void* context, std::int64_t begin, std::int64_t end, unsigned worker);

  /// @param worth_waking_ns  least estimated cost of a region that is shared with other threads;
  /// waking a sleeping one costs several us
  explicit cpu_stream(unsigned threads, std::int64_t worth_waking_ns = 15000);
  ~cpu_stream() override;

  unsigned threads() const noexcept override { return threads_; }

  /// Runs all units and returns when the last is done. Serial when `cost_ns`, the estimated cost of
  /// the whole region on one thread, is not worth waking another.
  void run(std::int64_t units, std::int64_t cost_ns, body, void* context);

  /// Scratch of one worker; the caller's own is worker 0. Valid until the next call with the same
  /// worker.
  std::byte* worker_scratch(unsigned worker, std::size_t bytes) {
    return worker_scratch_[worker].reserve(bytes);
  }

  /// What a piece of shared scratch is for: nested use must take different ones.
  enum class shared : std::uint8_t { plan, input, result };

  /// Scratch that all workers of a region may touch. @pre called by the caller, outside a region.
  std::byte* shared_scratch(shared use, std::size_t bytes) {
    return shared_scratch_[static_cast<std::size_t>(use)].reserve(bytes);
  }

private:
  void serve(unsigned worker);
  void take_units(unsigned worker);

  unsigned threads_;
  std::int64_t worth_waking_ns_;
  std::vector<scratch_buffer> worker_scratch_;
  scratch_buffer shared_scratch_[3];
  std::vector<std::thread> pool_;

  // The open region. All but next_ are written under mutex_ while no worker is inside.
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::uint64_t generation_ = 0;
  bool open_ = false, stop_ = false;
  unsigned inside_ = 0; ///< workers that entered the open region
  std::int64_t units_ = 0, grain_ = 1;
  body body_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::int64_t> next_{0};
};

} // namespace di::kernels
