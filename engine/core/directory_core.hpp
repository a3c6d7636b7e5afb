// SPDX-License-Identifier: Apache-2.0
// The book of processes: who announced which prefix in which life, and who has been told about it.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/outbox.hpp"

#include <map>
#include <optional>
#include <vector>

namespace di::engine {

struct directory_options {
  std::vector<address> expected;  ///< prefixes of the processes to wait for
  std::vector<address> formed_to; ///< get group_formed, e.g. "/control/membership"
  duration form_within{};         ///< past this DIRECTORY fails and names the missing; 0: never
  duration install_timeout = std::chrono::seconds{2}; ///< for one answer of a registrar
  duration retry_after = std::chrono::milliseconds{100};
};

///   process    announce            snapshot_installed       withdrawn
///   unknown    present             -                        counted
///   present    same life: present  version is ours:         retired; told to all
///              newer life: present installed
///   installed  same life: kept     kept                     retired; told to all
///
/// Snapshots go out once all expected processes are present, and again after each change. A life
/// that was replaced or withdrawn is retired: its announcements are refused from then on.
class directory_core {
public:
  static constexpr std::size_t processes_max = 4'096;

  explicit directory_core(directory_options options);

  void start(instant now, outbox& out);
  /// @errors bad_argument, refused (contract), stale_incarnation, duplicate, limit_exceeded
  result<proto::announced> on(const proto::announce& m, instant now, outbox& out);
  result<proto::resolved> on(const proto::resolve& m) const;
  result<proto::directory_snapshot> on(const proto::get_directory& m) const;
  void on(const proto::withdrawn& m, instant now, outbox& out);
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out);
  void on_due(timer which, instant now, outbox& out);
  bool formed() const noexcept { return formed_; }
  void check() const;

private:
  struct entry {
    proto::process_entry process;
    epoch installed{}; ///< version that its registrar has confirmed
    epoch asked{};     ///< version that a request is under way for
  };
  struct question {
    address prefix;
    incarnation life{};
    epoch version{};
  };

  result<void> admit(const proto::process_entry& p) const;
  std::vector<address> missing() const;
  proto::directory_snapshot snapshot() const;
  void distribute(outbox& out);
  void settle(outbox& out);

  directory_options options_;
  std::map<address, entry> entries_;
  std::map<address, std::vector<incarnation>> retired_; ///< lives that are over
  std::map<std::uint64_t, question> questions_;         ///< tag -> what was asked
  std::uint64_t last_tag_ = 0;
  epoch version_{};
  bool formed_ = false;
};

} // namespace di::engine
