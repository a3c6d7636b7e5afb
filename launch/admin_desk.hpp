// SPDX-License-Identifier: Apache-2.0
// Answers to an operator's lines: questions to KEEPER, JOURNAL and SCHEDULER,
// and JSON made of their answers.
#pragma once

#include "launch/child_link.hpp"
#include "messaging/bus/post_office.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/keeper.hpp"
#include "messaging/proto/scheduler.hpp"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace di::launch {

/// Says a line to an operator: connection, line; it is the last one. Any thread.
using admin_reply_fn = std::function<void(std::uint64_t connection, const std::string& line)>;

/// Lines:
///   {"command": "status"}                     the group, its ranks, its requests
///   {"command": "scale", "ranks": N}
///   {"command": "drain" | "rejoin" | "kill", "rank": R}
///   {"command": "upgrade"}
/// Answers: {"ok": true, "ranks": N, "view": V}, for status more; or {"ok": false, "code": C,
/// "error": words}. An order is answered when it is done; it goes on if its operator leaves.
///
/// Thread-safe. Sits at a path of the post office, which it needs until its last take(); any
/// process that has a route to /control may have one.
class admin_desk {
public:
  static constexpr const char* path_of_control = "/control/admin";

  /// @errors duplicate
  static result<std::shared_ptr<admin_desk>> open(bus::post_office& office, admin_reply_fn reply,
                                                  address path = path_of_control);
  void take(std::uint64_t connection, const std::string& line);

private:
  admin_desk(bus::post_office& office, admin_reply_fn reply, address path)
      : office_{office}, reply_{std::move(reply)}, path_{std::move(path)} {}
  /// Answers for one connection; a status needs three.
  struct question {
    bool status = false;
    std::size_t open = 0;
    std::optional<proto::keeper_state> keeper;
    std::optional<proto::journal_state> journal;
    std::optional<proto::schedule> schedule;
    std::optional<error> failed; ///< the last question that was
  };

  template <message M>
  void ask(std::uint64_t connection, const address& to, M m, duration timeout);
  void deliver(const envelope& mail);
  void settle(std::uint64_t connection, const envelope& mail);

  bus::post_office& office_;
  admin_reply_fn reply_;
  address path_;
  std::mutex guard_;
  std::map<std::uint64_t, question> questions_;     ///< by connection
  std::map<std::uint64_t, std::uint64_t> requests_; ///< number of a request -> connection
};

} // namespace di::launch
