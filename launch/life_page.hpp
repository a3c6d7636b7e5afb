// SPDX-License-Identifier: Apache-2.0
// The page by which a node process knows that a rank lives, and what it does: memory that the node
// process made and both map. The rank holds a robust mutex in it; the kernel gives that up before
// it takes down the rank's memory, so its death shows within a millisecond at any size.
#pragma once

#include "launch/process.hpp"
#include "messaging/base/progress.hpp"
#include "messaging/base/result.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <pthread.h>
#include <string>

namespace di::launch {

/// What lies in the page.
struct life_words {
  static constexpr std::size_t cells_max = 4;
  /// 0: nobody holds the mutex yet (only the pidfd counts); 1: the rank does; 2: nobody will
  std::atomic<std::uint32_t> armed;
  pthread_mutex_t held;
  std::array<progress_cell, cells_max> cells; ///< RANK, EXPERT_SHARD, others
};

/// The page in this process's address space.
class life_page {
public:
  /// Makes and prepares a page: the node process's side. @errors io_error
  static result<life_page> make(const std::string& name);
  /// Maps what another process made: the rank's side. @errors io_error
  static result<life_page> take(unique_fd fd);

  life_page(life_page&& other) noexcept
      : fd_{std::move(other.fd_)}, words_{std::exchange(other.words_, nullptr)} {}
  life_page& operator=(life_page&&) = delete;
  ~life_page();

  int fd() const noexcept { return fd_.get(); }
  life_words& words() const noexcept { return *words_; }

private:
  life_page() = default;
  result<void> map();

  unique_fd fd_;
  life_words* words_ = nullptr;
};

/// In a fresh rank process: takes life_fd over, and holds its mutex on a thread that lives as long
/// as the process. Returns when it is held. The page stays mapped for ever.
/// @return its words @errors io_error
result<life_words*> hold_life(int fd = life_fd);

/// Waits for a page's holder to die. Its thread writes to an eventfd: `fd()` is readable then.
///
/// Destruction needs the holder's end first (it is dead, or was never armed).
class life_watch {
public:
  /// `page` outlives it. @errors io_error: no thread
  static result<std::unique_ptr<life_watch>> start(life_words& page);
  ~life_watch();
  life_watch(const life_watch&) = delete;
  life_watch& operator=(const life_watch&) = delete;

  int fd() const noexcept { return event_.get(); }
  /// The holder is dead for certain. It may not be reaped yet.
  bool dead() const noexcept { return dead_.load(); }
  /// The process has ended some other way: nobody will take the mutex any more.
  void give_up() noexcept;

private:
  explicit life_watch(life_words& page) : page_{page} {}
  void wait() noexcept;
  static void* run(void* self);

  life_words& page_;
  unique_fd event_;
  std::atomic<bool> dead_{false};
  pthread_t thread_{};
  bool started_ = false;
};

} // namespace di::launch
