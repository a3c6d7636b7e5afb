// SPDX-License-Identifier: Apache-2.0
// REGISTRAR: one per process, at <prefix>/registrar. Announces the process to DIRECTORY and keeps
// the post office's routes as DIRECTORY says.
#pragma once

#include "actors/kit.hpp"
#include "messaging/bus/post_office.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/membership.hpp"

#include <functional>
#include <optional>

namespace di::actors {

struct registrar_options {
  proto::process_entry process; ///< this process, as others shall know it
  address directory = "/control/directory";
  bus::post_office* office = nullptr;
  duration ask_timeout = std::chrono::seconds{1};
  duration retry_after = std::chrono::milliseconds{100};
  duration join_within = std::chrono::seconds{60}; ///< past this the actor fails
  /// Called after each installed snapshot, on the actor's thread; may be empty.
  std::function<void(const proto::directory_snapshot&)> installed;
};

/// A control process that was started again has an empty book: told of it, the registrar routes to
/// it, starts from its first version and announces the process anew. What the one before had sent
/// may come yet: snapshots that name it are refused.
///
/// Fails when DIRECTORY refuses the process for good, or does not admit it in time.
class registrar_core {
public:
  explicit registrar_core(registrar_options options);

  void start(instant now, outbox& out);
  result<proto::snapshot_installed> on(const proto::directory_snapshot& m);
  void on(const proto::withdrawn& m, instant now, outbox& out);
  result<void> on(const proto::control_moved& m, instant now, outbox& out);
  void on(const proto::view_committed& m);
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out);
  void on_due(timer which, instant now, outbox& out);

private:
  void ask(outbox& out);

  registrar_options options_;
  std::vector<proto::process_entry> routes_;    ///< installed by this actor
  std::optional<proto::process_entry> control_; ///< the last that was moved to; none: the first
  epoch version_{}, view_{};
  std::uint64_t asked_ = 0; ///< tag of the announcement that counts
  bool admitted_ = false;
  std::string last_refusal_ = "no answer yet";
};

struct registrar {
  static constexpr auto kind = "registrar";
  using core = registrar_core;
  using protocol =
      di::protocol<replies_to<proto::directory_snapshot>::with<proto::snapshot_installed>,
                   reacts_to<proto::withdrawn>,       // a life has ended
                   reacts_to<proto::control_moved>,   // the control process is another life
                   reacts_to<proto::view_committed>>; // mail of this process carries it
};

} // namespace di::actors
