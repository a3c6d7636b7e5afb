// SPDX-License-Identifier: Apache-2.0
// The writer's thread.
#include "actors/journal_file.hpp"

#include "actors/journal_folder.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <sys/file.h>
#include <thread>
#include <unistd.h>

namespace di::actors {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t group_bytes_max = std::size_t{4} << 20;
constexpr duration retry_after_max = std::chrono::seconds{2};

/// write() with the fault points in front of it.
ssize_t write_some(int fd, std::span<const std::byte> bytes) {
  if (fault_point("journal.write.enospc")) {
    errno = ENOSPC;
    return -1;
  }
  if (fault_point("journal.write.eio")) {
    errno = EIO;
    return -1;
  }
  if (fault_point("journal.write.short")) {
    (void)!::write(fd, bytes.data(), bytes.size() / 2);
    errno = ENOSPC;
    return -1;
  }
  return ::write(fd, bytes.data(), bytes.size());
}

result<void> write_whole(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write_some(fd, bytes);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return fail(ec::io_error, "{}: {}", path, n < 0 ? std::strerror(errno) : "nothing written");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

result<void> sync_file(int fd, const std::string& path) {
  errno = EIO;
  if (fault_point("journal.sync.eio") || ::fdatasync(fd) != 0)
    return fail(ec::io_error, "{}: fdatasync: {}", path, std::strerror(errno));
  return {};
}

} // namespace

/// State of the files: the thread's own. Orders come through the queue.
class journal_file::writer {
public:
  writer(journal_file_options options, owned_file lock, const std::optional<found_journal>& found)
      : options_{std::move(options)},
        lock_{std::move(lock)},
        file_number_{found ? found->file : 0},
        record_number_{found ? found->image.number : 0} {
    thread_ = std::thread{[this] { run(); }};
  }

  ~writer() {
    {
      const std::lock_guard guard{guard_};
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  struct order {
    std::uint64_t position = 0, elapsed_ms = 0;
    std::vector<engine::any_record> records; ///< one, or a snapshot
    bool begins_file = false;
  };

  void put(order o) {
    bool first = false;
    {
      const std::lock_guard guard{guard_};
      first = queue_.empty();
      queue_.push_back(std::move(o));
    }
    if (first)
      wake_.notify_one();
  }

private:
  void run();
  bool wait();
  void work();
  void take_group();
  result<void> flush();
  result<void> begin(const order& o);
  void cut_back();
  void drop_group();
  void in_trouble(const error& why, bool lost);
  void tell(bool needs_snapshot = false);
  std::string path(std::string_view ending) const {
    return options_.folder + "/" + journal_file_name(file_number_, ending);
  }

  journal_file_options options_;
  owned_file lock_;
  std::mutex guard_;
  std::condition_variable wake_;
  std::deque<order> queue_;
  bool stopping_ = false;
  std::thread thread_;

  std::deque<order> taken_;      ///< out of the queue, in order
  owned_file out_;               ///< none until the first file is begun
  std::uint64_t file_number_;    ///< of out_, or of the last before it
  std::uint64_t good_bytes_ = 0; ///< [bytes] of whole records in out_
  std::uint64_t record_number_;  ///< of the last record in out_ or in group_
  std::vector<std::byte> group_; ///< encoded, not yet written
  std::uint64_t group_position_ = 0, group_records_ = 0;
  std::uint64_t written_position_ = 0;
  bool lost_ = false; ///< out_ cannot be relied on: nothing but a new file helps
  bool failing_ = false;
  std::string why_;
  duration retry_{};
  std::chrono::steady_clock::time_point retry_at_{};
};

void journal_file::writer::run() {
  while (wait())
    work();
  if (!failing_)
    work(); // what came last
}

/// @return false: time to end
bool journal_file::writer::wait() {
  std::unique_lock lock{guard_};
  const auto ready = [this] { return stopping_ || !queue_.empty(); };
  if (!failing_)
    wake_.wait(lock, ready);
  else if (options_.on_error == journal_trouble::pause)
    wake_.wait_until(lock, retry_at_, [this] { return stopping_; });
  else
    wake_.wait_until(lock, retry_at_, ready);
  for (order& o : queue_)
    taken_.push_back(std::move(o));
  queue_.clear();
  return !stopping_;
}

void journal_file::writer::work() {
  if (fault_point("journal.write.slow")) {
    std::unique_lock lock{guard_};
    wake_.wait_for(lock, std::chrono::milliseconds{50}, [this] { return stopping_; });
  }
  const bool was_failing = failing_;
  if (failing_ && !lost_)
    cut_back();
  while (!taken_.empty() || !group_.empty()) {
    if (group_.empty() && taken_.front().begins_file) {
      if (const auto begun = begin(taken_.front()); !begun) {
        const bool usable = out_ && !lost_;
        if (usable) { // the old file takes more
          taken_.pop_front();
          continue;
        }
        return in_trouble(begun.error(), true);
      }
      taken_.pop_front();
      continue;
    }
    take_group();
    if (!out_ || lost_) { // the next file begins with these
      if (options_.on_error == journal_trouble::memory && failing_)
        written_position_ = group_position_;
      drop_group();
      continue;
    }
    if (const auto out = flush(); !out)
      return in_trouble(out.error(), lost_);
  }
  if (lost_)
    return in_trouble({ec::io_error, why_}, true);
  failing_ = false;
  if (was_failing)
    log::warn("journal_written_again", {{"file", path("log")}});
  tell();
}

/// Encodes orders until the group is full or a file begins.
void journal_file::writer::take_group() {
  while (!taken_.empty() && !taken_.front().begins_file && group_.size() < group_bytes_max) {
    order& o = taken_.front();
    for (engine::any_record& r : o.records) {
      const bool fits =
          engine::append_frame(group_, {record_number_ + 1, o.elapsed_ms, std::move(r)});
      if (fits) {
        ++record_number_;
        ++group_records_;
      }
    }
    group_position_ = o.position;
    taken_.pop_front();
  }
}

result<void> journal_file::writer::flush() {
  DI_TRY_VOID(write_whole(out_.get(), group_, path("log")));
  if (options_.sync_groups)
    if (auto synced = sync_file(out_.get(), path("log")); !synced) {
      lost_ = true; // which pages are on disk is not known any more
      return synced;
    }
  good_bytes_ += group_.size();
  group_records_ = 0; // they keep their numbers
  drop_group();
  written_position_ = group_position_;
  return {};
}

/// Writes a snapshot as the next file and drops those before it.
result<void> journal_file::writer::begin(const order& o) {
  const std::string before = out_ ? path("log") : std::string{};
  const std::uint64_t number = record_number_;
  ++file_number_;
  const std::string making = path("tmp");
  const auto made = [&]() -> result<owned_file> {
    owned_file out{
        ::open(making.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600)};
    if (!out)
      return fail(ec::io_error, "{}: {}", making, std::strerror(errno));
    std::vector<std::byte> bytes;
    good_bytes_ = 0;
    for (std::size_t i = 0; i < o.records.size(); ++i) {
      record_number_ +=
          engine::append_frame(bytes, {record_number_ + 1, o.elapsed_ms, o.records[i]});
      if (bytes.size() < group_bytes_max && i + 1 < o.records.size())
        continue;
      DI_TRY_VOID(write_whole(out.get(), bytes, making));
      good_bytes_ += bytes.size();
      bytes.clear();
    }
    if (options_.sync_groups)
      DI_TRY_VOID(sync_file(out.get(), making));
    if (::rename(making.c_str(), path("log").c_str()) != 0)
      return fail(ec::io_error, "{}: rename: {}", making, std::strerror(errno));
    return out;
  };
  const std::uint64_t good_before = good_bytes_;
  auto out = made();
  if (!out) {
    ::unlink(making.c_str());
    --file_number_;
    record_number_ = number;
    good_bytes_ = good_before;
    return fail(out.error());
  }
  out_ = std::move(out).value();
  lost_ = false;
  written_position_ = std::max(written_position_, o.position);
  std::error_code ignored;
  if (options_.sync_groups)
    if (const owned_file folder{
            ::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)})
      ::fsync(folder.get());
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator{options_.folder, ignored}) {
    const std::string name = entry.path().filename().string();
    auto n = journal_file_number(name, ".log");
    if (!n)
      n = journal_file_number(name, ".tmp");
    if (n && *n < file_number_)
      old.push_back(entry.path());
  }
  for (const fs::path& p : old)
    fs::remove(p, ignored);
  return {};
}

/// Nothing but whole records stays in the file.
void journal_file::writer::cut_back() {
  if (out_ && ::ftruncate(out_.get(), static_cast<off_t>(good_bytes_)) != 0)
    lost_ = true;
}

void journal_file::writer::drop_group() {
  record_number_ -= group_records_;
  group_records_ = 0;
  group_.clear();
}

void journal_file::writer::in_trouble(const error& why, bool lost) {
  cut_back();
  lost_ = lost_ || lost;
  why_ = why.what;
  const auto now = std::chrono::steady_clock::now();
  const bool retry = !failing_ || now >= retry_at_;
  if (!failing_)
    log::error("journal_write_failed", {{"what", why.what}});
  if (retry) {
    retry_ = failing_ ? std::min(2 * retry_, retry_after_max) : options_.retry_after;
    retry_at_ = now + retry_;
  }
  failing_ = true;
  if (options_.on_error == journal_trouble::memory) {
    // From here on the file misses records; it is good for nothing but to be replaced.
    lost_ = true;
    if (!group_.empty())
      written_position_ = group_position_;
    for (const order& o : taken_)
      written_position_ = std::max(written_position_, o.position);
    taken_.clear();
  }
  if (lost_)
    drop_group();
  // A file that is asked for already comes by itself.
  const bool asked =
      std::any_of(taken_.begin(), taken_.end(), [](const order& o) { return o.begins_file; });
  tell(lost_ && retry && !asked);
}

void journal_file::writer::tell(bool needs_snapshot) {
  proto::journal_written m;
  m.position = written_position_;
  m.file = file_number_;
  m.file_bytes = good_bytes_;
  m.failing = failing_;
  m.needs_snapshot = needs_snapshot;
  m.in_memory = failing_ && options_.on_error == journal_trouble::memory;
  if (failing_)
    m.what = why_;
  options_.tell(m);
}

journal_file::journal_file(std::unique_ptr<writer> made) : writer_{std::move(made)} {
}

journal_file::~journal_file() = default;

result<std::unique_ptr<journal_file>>
journal_file::open(journal_file_options options, const std::optional<found_journal>& found) {
  std::error_code problem;
  fs::create_directories(options.folder, problem);
  if (problem)
    return fail(ec::io_error, "{}: {}", options.folder, problem.message());
  const std::string path = options.folder + "/lock";
  owned_file lock{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  if (!lock)
    return fail(ec::io_error, "{}: {}", path, std::strerror(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ec::unavailable, "{}: another run uses this journal", options.folder);
  auto made = std::make_unique<writer>(std::move(options), std::move(lock), found);
  return std::unique_ptr<journal_file>{new journal_file{std::move(made)}};
}

void journal_file::append(std::uint64_t position, std::uint64_t elapsed_ms,
                          engine::any_record record) {
  writer::order o{position, elapsed_ms, {}, false};
  o.records.push_back(std::move(record));
  writer_->put(std::move(o));
}

void journal_file::begin_file(std::uint64_t position, std::uint64_t elapsed_ms,
                              std::vector<engine::any_record> snapshot) {
  writer_->put({position, elapsed_ms, std::move(snapshot), true});
}

} // namespace di::actors
