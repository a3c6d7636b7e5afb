// SPDX-License-Identifier: Apache-2.0
// The view: which life of which rank belongs to the group. MEMBERSHIP alone changes it.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"

#include <optional>

namespace di::engine {

/// What MEMBERSHIP does when a member is certainly dead.
enum class on_loss : std::uint8_t {
  end,    ///< the run ends with ec::peer_lost and the reason
  shrink, ///< the next view goes on without it
};

struct membership_options {
  std::vector<address> listeners;        ///< get every view, e.g. "/control/scheduler"
  std::vector<std::string> member_parts; ///< below each member's prefix, e.g. "rank"
  on_loss loss = on_loss::end;
  std::uint32_t members_min = 1; ///< fewer end the run also under shrink
};

///   state     group_formed          member_lost of a member        … of another life
///   no view   commit view 1         counted                        counted
///   view e    counted (repeated)    shrink: commit view e + 1      counted, dropped
///                                   end, or too few: fail
///
/// Members keep the life that they joined with: a rank that comes back is a new member of a later
/// view, never silently the old one.
class membership_core {
public:
  explicit membership_core(membership_options options);

  void on(const proto::group_formed& m, instant now, outbox& out);
  result<proto::view_committed> on(const proto::get_view& m) const;
  void on(const proto::member_lost& m, instant now, outbox& out);
  void on(const proto::member_suspected& m, instant now, outbox& out);
  result<proto::member_confirmed> on(const proto::check_member& m, instant now, outbox& out) const;
  void check() const;

private:
  const proto::view_member* find(rank_id rank) const;
  void commit(std::vector<proto::view_member> members, outbox& out);

  membership_options options_;
  std::optional<proto::view_committed> view_;
};

} // namespace di::engine
