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
/// a busy core costs at most the unit that was begun on it. When the caller had to wait long for
/// such a unit it works alone for a while (twice as long each time it happens again).
///
/// A thread that ran out of work looks for the next region for at most `linger_ns` before it
/// sleeps: in decoding, regions follow each other faster than a sleeper wakes. It sleeps at once
/// if it shares the caller's core. The caller looks as long for the end of a helper's last unit.
class cpu_stream final : public stream {
public:
  /// Computes units [begin, end) on thread `worker` (0 = the caller).
  using body = void (*)(void* context, std::int64_t begin, std::int64_t end, unsigned worker);

  /// @param worth_waking_ns  least estimated cost of a region for which sleeping threads are woken;
  /// a third of it is enough to share a region with a thread that is awake
  explicit cpu_stream(unsigned threads, std::int64_t worth_waking_ns = 15000,
                      std::int64_t linger_ns = 20000);
  ~cpu_stream() override;

  unsigned threads() const noexcept override { return threads_; }

  /// Runs all units and returns when the last is done. Serial when `cost_ns`, the estimated cost of
  /// the whole region on one thread, is not worth waking another.
  void run(std::int64_t units, std::int64_t cost_ns, body, void* context);

  /// False while the caller works alone because a helper kept it waiting.
  bool sharing() const;

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
  bool worth_sharing(std::int64_t cost_ns) const;
  void serve(unsigned worker);
  void take_units(unsigned worker);
  void linger(std::uint64_t seen);
  void judge(std::int64_t worked_ns, std::int64_t waited_ns);

  unsigned threads_;
  std::int64_t worth_waking_ns_, linger_ns_;
  std::int64_t alone_until_ns_ = 0; ///< steady clock
  int strikes_ = 0;                 ///< of late for `judge`
  std::vector<scratch_buffer> worker_scratch_;
  scratch_buffer shared_scratch_[3];
  std::vector<std::thread> pool_;

  // The open region. All but the atomics are written under mutex_ while no worker is inside.
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> caller_core_{-1};
  std::atomic<int> lingering_{0}; ///< threads awake without work
  bool open_ = false, stop_ = false;
  std::atomic<unsigned> inside_{0}; ///< workers in the open region; changed under mutex_
  std::int64_t units_ = 0, grain_ = 1;
  body body_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::int64_t> next_{0};
};

} // namespace di::kernels
