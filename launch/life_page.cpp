// SPDX-License-Identifier: Apache-2.0
// Robust mutexes between processes, and the threads that hold them and wait for them.
#include "launch/life_page.hpp"

#include <climits>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <linux/futex.h>
#include <new>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace di::launch {
namespace {

constexpr std::size_t stack_bytes = 64U << 10U;

failure failed(std::string_view call, int code) {
  return fail(ec::io_error, "life page: {}: {} (errno {})", call, std::strerror(code), code);
}

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) noexcept {
  (void)::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

result<pthread_t> small_thread(void* (*run)(void*), void* with) {
  pthread_attr_t how;
  ::pthread_attr_init(&how);
  ::pthread_attr_setstacksize(&how, std::max(stack_bytes, std::size_t{PTHREAD_STACK_MIN}));
  pthread_t thread{};
  const int code = ::pthread_create(&thread, &how, run, with);
  ::pthread_attr_destroy(&how);
  if (code != 0)
    return failed("pthread_create", code);
  return thread;
}

/// The holder's thread: takes the mutex, says so, and sleeps until the process ends.
void* hold(void* page) {
  auto& words = *static_cast<life_words*>(page);
  if (::pthread_mutex_lock(&words.held) != 0)
    return nullptr;
  words.armed.store(1);
  futex(words.armed, FUTEX_WAKE, INT_MAX);
  while (true)
    ::pause();
}

} // namespace

result<void> life_page::map() {
  auto* at = ::mmap(nullptr, sizeof(life_words), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED)
    return failed("mmap", errno);
  words_ = static_cast<life_words*>(at);
  return {};
}

result<life_page> life_page::make(const std::string& name) {
  life_page p;
  p.fd_ = unique_fd{::memfd_create(name.c_str(), MFD_CLOEXEC)};
  if (!p.fd_ || ::ftruncate(p.fd_.get(), sizeof(life_words)) != 0)
    return failed("memfd_create", errno);
  DI_TRY_VOID(p.map());
  new (p.words_) life_words{}; // zeros it
  pthread_mutexattr_t how;
  ::pthread_mutexattr_init(&how);
  ::pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
  const int code = ::pthread_mutex_init(&p.words_->held, &how);
  ::pthread_mutexattr_destroy(&how);
  if (code != 0)
    return failed("pthread_mutex_init", code);
  return p;
}

result<life_page> life_page::take(unique_fd fd) {
  life_page p;
  p.fd_ = std::move(fd);
  DI_TRY_VOID(p.map());
  return p;
}

life_page::~life_page() {
  if (words_)
    ::munmap(words_, sizeof(life_words));
}

result<life_words*> hold_life(int fd) {
  DI_TRY(auto page, life_page::take(unique_fd{fd}));
  static life_page* kept = nullptr; // mapped to the end of the process: threads write until then
  kept = new life_page{std::move(page)};
  auto& words = kept->words();
  DI_TRY(const auto thread, small_thread(hold, &words));
  ::pthread_detach(thread);
  while (words.armed.load() == 0)
    futex(words.armed, FUTEX_WAIT, 0);
  return &words;
}

result<std::unique_ptr<life_watch>> life_watch::start(life_words& page) {
  std::unique_ptr<life_watch> w{new life_watch{page}};
  w->event_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!w->event_)
    return failed("eventfd", errno);
  DI_TRY(w->thread_, small_thread(run, w.get()));
  w->started_ = true;
  return w;
}

life_watch::~life_watch() {
  if (!started_)
    return;
  give_up();
  ::pthread_join(thread_, nullptr);
}

void life_watch::give_up() noexcept {
  std::uint32_t nobody = 0;
  if (page_.armed.compare_exchange_strong(nobody, 2))
    futex(page_.armed, FUTEX_WAKE, INT_MAX);
}

void* life_watch::run(void* self) {
  static_cast<life_watch*>(self)->wait();
  return nullptr;
}

void life_watch::wait() noexcept {
  while (page_.armed.load() == 0)
    futex(page_.armed, FUTEX_WAIT, 0);
  if (page_.armed.load() != 1)
    return; // it ended before it was armed
  const int code = ::pthread_mutex_lock(&page_.held);
  if (code == EOWNERDEAD)
    ::pthread_mutex_consistent(&page_.held);
  if (code == EOWNERDEAD || code == 0) { // 0: its thread gave the mutex up, which it never does
    dead_.store(true);
    ::pthread_mutex_unlock(&page_.held);
  }
  (void)::eventfd_write(event_.get(), 1);
}

} // namespace di::launch
