// SPDX-License-Identifier: Apache-2.0
// Reading and removing the files of a journal.
#include "actors/journal_folder.hpp"

#include "actors/journal_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <sys/stat.h>

namespace di::actors {
namespace {

namespace fs = std::filesystem;

result<std::vector<std::byte>> read_whole(const std::string& path) {
  const owned_file in{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat about {};
  if (!in || ::fstat(in.get(), &about) != 0)
    return fail(ec::io_error, "{}: {}", path, std::strerror(errno));
  std::vector<std::byte> bytes(static_cast<std::size_t>(about.st_size));
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = ::read(in.get(), bytes.data() + have, bytes.size() - have);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(ec::io_error, "{}: offset {}: {}", path, have, std::strerror(errno));
    if (n == 0)
      break;
    have += static_cast<std::size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

} // namespace

std::string journal_file_name(std::uint64_t number, std::string_view ending) {
  return fmt::format("journal-{:08}.{}", number, ending);
}

/// Number of a file by its name, or nothing.
std::optional<std::uint64_t> journal_file_number(std::string_view name, std::string_view ending) {
  constexpr std::string_view before = "journal-";
  if (!name.starts_with(before) || !name.ends_with(ending))
    return std::nullopt;
  name.remove_prefix(before.size());
  name.remove_suffix(ending.size());
  std::uint64_t number = 0;
  const auto [at, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (problem != std::errc{} || at != name.data() + name.size())
    return std::nullopt;
  return number;
}

result<std::optional<found_journal>> find_journal(const std::string& folder) {
  std::vector<std::uint64_t> numbers;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator{folder, problem})
    if (const auto number = journal_file_number(entry.path().filename().string(), ".log"))
      numbers.push_back(*number);
  if (problem && problem != std::errc::no_such_file_or_directory)
    return fail(ec::io_error, "{}: {}", folder, problem.message());
  std::sort(numbers.begin(), numbers.end(), std::greater<>{});
  std::string incomplete;
  for (const std::uint64_t number : numbers) {
    const std::string path = folder + "/" + journal_file_name(number, "log");
    DI_TRY(const auto bytes, read_whole(path));
    DI_TRY(auto read, engine::recover_log(bytes, path));
    if (!read.complete) { // a power cut took what it begins with; the one before it is still there
      incomplete = fmt::format("{}: has no whole beginning", path);
      continue;
    }
    return std::optional{found_journal{std::move(read.image), number, std::move(read.why)}};
  }
  if (!incomplete.empty())
    return fail(ec::corrupt, "{}, and no file before it is left", incomplete);
  return std::optional<found_journal>{};
}

void remove_journal(const std::string& folder) {
  std::error_code ignored;
  std::vector<fs::path> ours;
  for (const auto& entry : fs::directory_iterator{folder, ignored}) {
    const std::string name = entry.path().filename().string();
    if (journal_file_number(name, ".log") || journal_file_number(name, ".tmp") || name == "lock")
      ours.push_back(entry.path());
  }
  for (const fs::path& path : ours)
    fs::remove(path, ignored);
  fs::remove(folder, ignored); // only if empty
}

} // namespace di::actors
