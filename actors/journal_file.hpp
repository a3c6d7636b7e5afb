// SPDX-License-Identifier: Apache-2.0
// The journal on disk: files of a folder, written by a thread of its own in groups, and read at the
// start of the control process.
#pragma once

#include "engine/core/journal_image.hpp"
#include "engine/core/journal_sink.hpp"
#include "messaging/base/env.hpp"
#include "messaging/proto/journal.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace di::actors {

/// What happens to requests while the disk takes nothing (topology: journal.on_error).
enum class journal_trouble : std::uint8_t {
  pause, ///< they wait for it
  memory ///< they go on; a new file is begun when the disk is back
};

struct journal_file_options {
  std::string folder;
  journal_trouble on_error = journal_trouble::pause;
  bool sync_groups = false; ///< fsync after each group (journal.sync: group)
  duration retry_after = std::chrono::milliseconds{100}; ///< then twice as long, up to 2 s
  /// Hears of each group that is written and of trouble. Called on the writer's thread.
  std::function<void(const proto::journal_written&)> tell;
};

/// What an earlier life left in a folder.
struct found_journal {
  engine::journal_image image;
  std::uint64_t file = 0; ///< number of the file that it was read from
  std::string note;       ///< of a torn end: what was dropped
};

/// Reads the newest file of a folder. Nothing is changed.
/// @return nothing if there is no folder, or no journal in it
/// @errors io_error; corrupt, bad_format: the newest file cannot be relied on, with name and offset
result<std::optional<found_journal>> find_journal(const std::string& folder);

/// Fault points: journal.write.enospc, journal.write.eio (nothing gets out), journal.write.short
/// (half of it does), journal.write.slow (50 ms each), journal.sync.eio.
///
/// A file is written beside its place as journal-<n>.tmp until its snapshot is whole, then takes
/// the place of all before it as journal-<n>.log. Records of a group go out in one write(). When
/// one fails the file is cut back to its last whole record at once, and before every new attempt.
class journal_file final : public engine::journal_sink {
public:
  /// Makes the folder and takes it for this process. The first call must be begin_file().
  /// @param found  what find_journal() gave: numbers go on behind it
  /// @errors       io_error; unavailable: another process has the folder
  static result<std::unique_ptr<journal_file>> open(journal_file_options options,
                                                    const std::optional<found_journal>& found);
  /// Writes what it has been given, if that goes at once.
  ~journal_file() override;

  void append(std::uint64_t position, std::uint64_t elapsed_ms, engine::any_record record) override;
  void begin_file(std::uint64_t position, std::uint64_t elapsed_ms,
                  std::vector<engine::any_record> snapshot) override;

private:
  class writer;
  explicit journal_file(std::unique_ptr<writer> made);
  std::unique_ptr<writer> writer_;
};

/// Removes all files of a journal from a folder, and the folder if nothing else is in it.
void remove_journal(const std::string& folder);

} // namespace di::actors
