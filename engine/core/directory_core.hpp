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
  std::vector<address> expected;        ///< prefixes of the processes to wait for
  std::vector<address> formed_to;       ///< get group_formed, e.g. "/control/membership"
  std::vector<address> ready_to;        ///< get process_ready, e.g. "/control/keeper"
  std::vector<address> gateway_lost_to; ///< get withdrawn of role gateway, e.g. "/control/journal"
  /// A process that is withdrawn before the group has formed is waited for no more; else DIRECTORY
  /// waits for another life of it. For a control process that was started again.
  bool forms_without_lost = false;
  duration form_within{}; ///< past this DIRECTORY fails and names the missing; 0: never
  duration install_timeout = std::chrono::seconds{2}; ///< for one answer of a registrar
  duration retry_after = std::chrono::milliseconds{100};
};

///   process    announce            snapshot_installed       withdrawn
///   unknown    present             -                        counted
///   present    same life: present  version is ours:         retired; told to all
///              newer life: present installed
///   installed  same life: kept     kept                     retired; told to all
///
/// Ranks must agree on the contract and on the proof, also with those that were there before. A
/// process that comes after the group has formed is `process_ready` once all have installed it.
///
/// Snapshots go out once all expected processes are present, and again after each change. A life
/// that was replaced or withdrawn is retired: its announcements are refused from then on.
class directory_core {
public:
  static constexpr std::size_t processes_max = 4'096;

  explicit directory_core(directory_options options);

  void start(instant now, outbox& out);
  /// @errors bad_argument, refused (contract), stale_incarnation, duplicate, limit_exceeded
  /// @param from  its view: the newest goes into group_formed
  result<proto::announced> on(const proto::announce& m, const origin& from, instant now,
                              outbox& out);
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
    epoch since{};     ///< version that it came with
    bool late = false; ///< came after the group had formed, and is not ready yet
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
  void retire(const address& prefix, incarnation life);
  void settle(outbox& out);
  void settle_late(outbox& out);

  directory_options options_;
  std::map<address, entry> entries_;
  std::map<address, std::vector<incarnation>> retired_; ///< lives that are over
  std::map<std::uint64_t, question> questions_;         ///< tag -> what was asked
  std::uint64_t last_tag_ = 0;
  epoch version_{};
  epoch view_{}; ///< newest that a process works under
  bool formed_ = false;
  std::optional<proto::process_entry> example_; ///< the first rank: its contract and proof hold
};

} // namespace di::engine
