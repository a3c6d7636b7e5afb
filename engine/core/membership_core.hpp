// SPDX-License-Identifier: Apache-2.0
// The view: which life of which rank belongs to the group. MEMBERSHIP alone changes it.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/outbox.hpp"

#include <deque>
#include <map>
#include <optional>
#include <set>

namespace di::engine {

/// What MEMBERSHIP does when a member is certainly dead or stuck.
enum class on_loss : std::uint8_t {
  end,             ///< the run ends with ec::peer_lost and the reason
  shrink,          ///< the next view goes on without it
  restart,         ///< the view stays until KEEPER admits a fresh life of its rank, or dismisses it
  restart_smaller, ///< the view stays until KEEPER replaces the group
};

struct membership_options {
  std::vector<address> listeners;        ///< get every view, e.g. "/control/scheduler"
  std::vector<std::string> member_parts; ///< below each member's prefix, e.g. "rank"
  on_loss loss = on_loss::end;
  /// A view of fewer members is not committed: the old one stays, its dead are remembered, until
  /// enough have been admitted. Under `end` fewer end the run.
  std::uint32_t members_min = 1;
  address journal;   ///< writes views down before they take effect; empty: nobody does
  address directory; ///< gets `withdrawn` of every life that leaves; empty: nobody
  address keeper;    ///< gets member_lost of every member that is dead or stuck; empty: nobody
  /// Losses within it are one view; 0: each is its own. The first loss starts it.
  duration evidence_window = std::chrono::milliseconds{2};
  duration record_timeout =
      std::chrono::milliseconds{500}; ///< for JOURNAL's answer; then it goes on
  /// Of the life of the control process before this one: the first view comes after it, and only
  /// its lives may be in it.
  std::optional<proto::view_committed> last_view;
};

/// One change at a time:
///
// clang-format off
///   no view   --group_formed-->                                    recording (view 1, or last + 1)
///   steady    --member_lost | member_stuck of a member-->          gathering (evidence_window)
///   steady    --admit_member | dismiss_member | replace_group-->   recording
///   gathering --the window is over, the next view differs-->       recording
///   gathering --it does not (restart, or too few)-->               steady; the dead are remembered
///   recording --view_recorded, refused, or no answer in time-->    steady: view e + 1 is committed;
///                                                                  what came meanwhile goes on as above
// clang-format on
///
/// Members keep the life that they joined with: a rank that comes back is a new member of a later
/// view, never silently the old one, and a life that left never comes back. Facts about other lives
/// are counted and dropped. A view is sent to its listeners, to the parts of its members, and to
/// those of the lives that left (if they live they fence themselves); then `withdrawn` of the lives
/// that left goes to DIRECTORY. Lives that are dead and stay in the view (restart) are withdrawn
/// too.
///
/// Owned by one shell, used on its thread only.
class membership_core {
public:
  explicit membership_core(membership_options options);

  void on(const proto::group_formed& m, instant now, outbox& out);
  result<proto::view_committed> on(const proto::get_view& m) const;
  void on(const proto::member_lost& m, instant now, outbox& out);
  void on(const proto::member_stuck& m, instant now, outbox& out);
  void on(const proto::member_suspected& m, instant now, outbox& out);
  void on(const proto::admit_member& m, instant now, outbox& out);
  void on(const proto::dismiss_member& m, instant now, outbox& out);
  void on(const proto::replace_group& m, instant now, outbox& out);
  result<proto::member_confirmed> on(const proto::check_member& m, instant now, outbox& out) const;
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out);
  void on_due(timer which, instant now, outbox& out);
  /// The view that holds; null before the first.
  const proto::view_committed* view() const noexcept { return view_ ? &*view_ : nullptr; }
  void check() const;

private:
  enum timer_kind : std::uint32_t { gather_due = 1 };
  using member_map = std::map<rank_id, proto::view_member>;
  struct loss {
    incarnation life{};
    std::string reason;
    bool told = false; ///< KEEPER, and DIRECTORY if the view stays, know it
  };

  const proto::view_member* find(rank_id rank) const;
  bool is_over(rank_id rank, incarnation life) const;
  void retire(rank_id rank, incarnation life);
  void lose(rank_id rank, incarnation life, std::string reason, outbox& out);
  void resume(const std::vector<proto::view_member>& there, outbox& out);
  void change(outbox& out);
  void tell_losses(outbox& out);
  member_map planned() const;
  void record(std::vector<proto::view_member> members, outbox& out);
  void commit(outbox& out);
  void send_view(const proto::view_committed& next, const std::vector<proto::view_member>& left,
                 outbox& out) const;

  membership_options options_;
  std::optional<proto::view_committed> view_;
  std::optional<proto::view_committed> next_; ///< being recorded
  std::uint64_t recording_ = 0;               ///< tag of the question; 0: none is under way
  std::uint64_t last_tag_ = 0;
  epoch highest_{}; ///< number of the newest view, committed or being recorded
  bool gathering_ = false;
  std::map<rank_id, loss> dead_; ///< members of view_ that are dead or stuck
  std::set<rank_id> dismissed_;  ///< members of view_ that are to leave
  member_map joining_;           ///< admitted, not yet in a view
  std::optional<std::vector<proto::view_member>> replacing_;
  std::map<rank_id, std::deque<incarnation>> over_; ///< lives that left, the newest last
};

} // namespace di::engine
