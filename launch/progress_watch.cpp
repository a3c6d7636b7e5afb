// SPDX-License-Identifier: Apache-2.0
// Reads life pages, and /proc for those that seem to hang.
#include "launch/progress_watch.hpp"

#include "messaging/base/progress.hpp"
#include "messaging/wire/codec.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <memory>
#include <optional>
#include <sys/wait.h>

namespace di::launch {
namespace {

constexpr std::uint32_t samples_min = 16; ///< a p99 of fewer says nothing

std::optional<std::int64_t> p99_of(const progress_cell& cell, std::uint32_t phase) {
  const auto& row = cell.took[progress_cell::slot_of(phase)];
  std::uint64_t all = 0, seen = 0;
  for (const auto& n : row)
    all += n.load(std::memory_order_relaxed);
  if (all < samples_min)
    return std::nullopt;
  for (std::size_t b = 0; b < row.size(); ++b)
    if ((seen += row[b].load(std::memory_order_relaxed)) * 100 >= all * 99)
      return std::int64_t{1} << b;
  return std::nullopt;
}

/// A phase and a count of the same moment, or nothing if it moves just now.
std::optional<cell_view> view_of(const progress_cell& cell) {
  cell_view v;
  v.count = cell.count.load(std::memory_order_acquire);
  v.phase = cell.phase.load(std::memory_order_acquire);
  v.began_ns = cell.began_ns.load(std::memory_order_acquire);
  if (cell.count.load(std::memory_order_acquire) != v.count)
    return std::nullopt;
  return v;
}

/// First line of a small file of /proc, or nothing.
std::size_t read_line(const std::string& path, std::array<char, 512>& into) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> f{
      std::fopen(path.c_str(), "re"), [](std::FILE* p) { return std::fclose(p); }};
  if (!f)
    return 0;
  const auto n = std::fread(into.data(), 1, into.size() - 1, f.get());
  into[n] = '\0';
  return n;
}

/// What a thread's stat line says.
struct stat_words {
  char state = '?';        ///< R: ready; D: waits without being killable, for a disk
  std::int64_t faults = 0; ///< pages read from a disk
};

stat_words stat_of(const char* line) {
  constexpr int fault_word = 9; // the state is word 0: what is before may hold blanks
  const char* at = std::strrchr(line, ')');
  if (!at || at[1] != ' ')
    return {};
  stat_words out;
  out.state = *(at += 2);
  for (int word = 0; at && word < fault_word; ++word)
    if ((at = std::strchr(at, ' ')))
      ++at;
  out.faults = at ? std::strtoll(at, nullptr, 10) : 0;
  return out;
}

} // namespace

process_view process_view_of(pid_t pid) {
  process_view out;
  out.began_ns = progress_cell::clock_ns();
  const auto tasks = fmt::format("/proc/{}/task", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> all{::opendir(tasks.c_str()),
                                                [](DIR* d) { return ::closedir(d); }};
  std::array<char, 512> text{};
  while (const auto* entry = all ? ::readdir(all.get()) : nullptr) {
    const auto thread = std::strtoll(entry->d_name, nullptr, 10);
    if (thread <= 0)
      continue;
    thread_view v;
    // The state first: a wait that ends in between is told twice, not left out.
    if (read_line(fmt::format("{}/{}/stat", tasks, thread), text) > 0) {
      const auto words = stat_of(text.data());
      v.ready = words.state == 'R';
      v.faults = words.faults;
      out.disk = out.disk || words.state == 'D';
    }
    if (read_line(fmt::format("{}/{}/schedstat", tasks, thread), text) > 0) {
      char* rest = nullptr;
      v.cpu_ns = std::strtoll(text.data(), &rest, 10);
      v.delay_ns = std::strtoll(rest, nullptr, 10);
      out.threads[thread] = v;
    }
  }
  out.ended_ns = progress_cell::clock_ns();
  return out;
}

std::string phase_name(std::uint32_t phase) {
  static const auto names = wire::builtin_codecs();
  if (phase == 0)
    return "idle";
  if (phase == phase_start)
    return "start";
  if (phase == phase_timer)
    return "timer";
  const auto* known = names.find(wire_id{static_cast<std::uint16_t>(phase)});
  return known ? std::string{known->name} : fmt::format("message {:04x}", phase);
}

progress_watch::progress_watch(poll_loop& loop, const child_set& children, stuck_fn stuck)
    : loop_{loop}, children_{children}, stuck_{std::move(stuck)} {
}

progress_watch::~progress_watch() {
  loop_.cancel(timer_);
}

void progress_watch::add(const std::string& child, const stuck_options& options) {
  watched_.insert_or_assign(child, watched{stuck_core{options}, false});
  if (timer_ == 0)
    arm();
}

void progress_watch::remove(const std::string& child) {
  watched_.erase(child);
}

void progress_watch::arm() {
  timer_ = loop_.at(poll_loop::clock::now() + stuck_options{}.look_every, [this] { look(); });
}

void progress_watch::look() {
  timer_ = 0;
  if (watched_.empty())
    return;
  for (auto& [child, w] : watched_)
    look_at(child, w);
  arm();
}

void progress_watch::look_at(const std::string& child, watched& w) {
  if (!children_.runs(child))
    return;
  siginfo_t change{};
  if (::waitid(P_PIDFD, static_cast<id_t>(children_.pidfd_of(child)), &change,
               WSTOPPED | WCONTINUED | WNOHANG)
          == 0
      && change.si_pid != 0)
    w.stopped = change.si_code == CLD_STOPPED;
  std::array<cell_view, life_words::cells_max> cells{};
  const auto* words = children_.words_of(child);
  for (std::size_t i = 0; words && i < cells.size(); ++i)
    if (const auto v = view_of(words->cells[i]))
      cells[i] = *v;
  std::optional<process_view> asked; // of the kernel, once for all cells
  const auto found = w.core.look(
      progress_cell::clock_ns(), cells, w.stopped,
      [&] { return asked ? *asked : *(asked = process_view_of(children_.pid_of(child))); },
      [&](std::size_t cell) { return p99_of(words->cells[cell], cells[cell].phase); });
  if (!found)
    return;
  // It may have come on while the kernel was asked.
  if (words) {
    const auto still = view_of(words->cells[found->cell]);
    if (!still || still->count != cells[found->cell].count)
      return;
  }
  const auto name = phase_name(found->phase);
  stuck_(child, name, static_cast<std::uint32_t>(found->stuck.count()),
         found->stopped ? fmt::format("it was stopped by a signal while in {}", name)
                        : fmt::format("no progress in {} for {} ms in which nothing kept it; "
                                      "its limit is {} ms",
                                      name, found->stuck.count(), found->limit.count()));
}

} // namespace di::launch
