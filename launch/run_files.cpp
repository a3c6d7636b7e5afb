// SPDX-License-Identifier: Apache-2.0
// Opening and comparing the files of a batch.
#include "launch/run_files.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace di::launch {
namespace {

constexpr std::size_t input_bytes_max = 1U << 30U;

/// How another process of this user reaches our descriptor.
std::string seen_from_outside(const unique_fd& fd) {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), fd.get());
}

bool same_regular_file(int a, int b) {
  struct stat x {
  }, y{};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && S_ISREG(x.st_mode) && S_ISREG(y.st_mode)
         && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

} // namespace

result<void> run_files::open_prompts(const std::string& path) {
  prompts_ = unique_fd{path == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                   : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat about {};
  if (!prompts_ || ::fstat(prompts_.get(), &about) != 0)
    return fail(ec::io_error, "--prompts {}: {}", path, std::strerror(errno));
  if (S_ISDIR(about.st_mode))
    return fail(ec::bad_argument, "--prompts {}: is a folder", path);
  if (S_ISREG(about.st_mode) && path != "-")
    return {};
  DI_TRY(const auto text, read_all(prompts_.get(), input_bytes_max));
  // The regular file behind "-" stays the one to compare with: the copy is only what is read.
  DI_TRY(auto copy, sealed_memory("di-prompts", text));
  if (!S_ISREG(about.st_mode)) {
    prompts_ = std::move(copy);
    return {};
  }
  copy_ = std::move(copy);
  return {};
}

result<batch_boot> run_files::open(const std::string& prompts, const std::string& output) {
  batch_boot b;
  b.prompts_name = prompts == "-" ? "standard input" : prompts;
  DI_TRY_VOID(open_prompts(prompts));
  b.prompts = seen_from_outside(copy_ ? copy_ : prompts_);
  if (output.empty() || output == "-")
    return b;
  output_ = unique_fd{::open(output.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)};
  if (!output_)
    return fail(ec::io_error, "--output {}: {}", output, std::strerror(errno));
  if (same_regular_file(prompts_.get(), output_.get()))
    return fail(ec::bad_argument, "--output {}: is the same file as --prompts {}", output, prompts);
  struct stat about {};
  output_is_file_ = ::fstat(output_.get(), &about) == 0 && S_ISREG(about.st_mode);
  if (output_is_file_)
    b.output = seen_from_outside(output_);
  return b;
}

result<std::string> run_files::read_prompts() const {
  const int fd = copy_ ? copy_.get() : prompts_.get();
  const off_t before = ::lseek(fd, 0, SEEK_CUR);
  if (before < 0 || ::lseek(fd, 0, SEEK_SET) < 0)
    return fail(ec::io_error, "--prompts: {}", std::strerror(errno));
  auto text = read_all(fd, input_bytes_max);
  ::lseek(fd, before, SEEK_SET);
  return text;
}

int run_files::lines_to() const noexcept {
  return output_ && !output_is_file_ ? output_.get() : STDOUT_FILENO;
}

void run_files::hold_abandoned(const std::string& run_dir) {
  abandoned_ = unique_fd{::open((run_dir + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
  if (abandoned_ && ::flock(abandoned_.get(), LOCK_EX | LOCK_NB) != 0)
    abandoned_.reset(); // it runs: the journal's own lock tells
}

result<std::string> run_files::open_trace(const std::string& path) {
  struct stat about {};
  trace_is_new_ = ::stat(path.c_str(), &about) != 0;
  trace_ = unique_fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)};
  if (!trace_ || ::fstat(trace_.get(), &about) != 0)
    return fail(ec::io_error, "--trace {}: {}", path, std::strerror(errno));
  for (const unique_fd* other : {&prompts_, &output_})
    if (*other && same_regular_file(other->get(), trace_.get()))
      return fail(ec::bad_argument, "--trace {}: is the file of the prompts or of the answers",
                  path);
  if (!S_ISREG(about.st_mode))
    return seen_from_outside(trace_);
  trace_path_ = path;
  rings_ = path + ".unfinished";
  trace_ = unique_fd{::open(rings_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (!trace_)
    return fail(ec::io_error, "--trace {}: {}: {}", path, rings_, std::strerror(errno));
  return seen_from_outside(trace_);
}

result<void> run_files::end_trace(bool keep) {
  if (rings_.empty())
    return {};
  const std::string rings = std::exchange(rings_, {});
  if (keep ? ::rename(rings.c_str(), trace_path_.c_str()) != 0 : ::unlink(rings.c_str()) != 0)
    return fail(ec::io_error, "--trace {}: {}: {}", trace_path_, rings, std::strerror(errno));
  struct stat about {};
  if (!keep && trace_is_new_ && ::stat(trace_path_.c_str(), &about) == 0 && about.st_size == 0)
    ::unlink(trace_path_.c_str()); // what open_trace() made
  return {};
}

bool fill_standard_descriptors() {
  const bool has_stdout = ::fcntl(STDOUT_FILENO, F_GETFD) != -1;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) == -1)
      (void)::open("/dev/null", O_RDWR); // the lowest free number: this one
  return has_stdout;
}

} // namespace di::launch
