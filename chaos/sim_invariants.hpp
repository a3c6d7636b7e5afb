// SPDX-License-Identifier: Apache-2.0
// What must hold whatever happens, checked as messages are sent and handled. The names I1..I20 are
// those of doc/simulation.md.
#pragma once

#include "chaos/sim_nodes.hpp"
#include "chaos/sim_world.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/membership.hpp"
#include "messaging/proto/scheduler.hpp"

#include <functional>
#include <map>
#include <set>
#include <vector>

namespace di::sim {

class sim_invariants final : public sim_observer {
public:
  /// @param reference  what a request's choice must give
  using reference_fn =
      std::function<const std::vector<token_id>&(request_id request, std::uint32_t choice)>;
  sim_invariants(sim_world& world, const sim_nodes& nodes, reference_fn reference)
      : world_{world}, nodes_{nodes}, reference_{std::move(reference)} {}

  /// View that a rank's core works under; null: it is gone. For I4.
  std::function<const epoch*(incarnation)> view_of;
  /// Whether tokens of a choice below an index are on disk, and its request is. For I17.
  std::function<bool(request_id request, std::uint32_t choice, std::uint32_t next)> is_written;

  void on_mail(mail_event what, const sim_process& process, const address& self,
               const envelope& mail) override;

  epoch view() const noexcept { return view_; }
  std::size_t members() const noexcept { return members_.size(); }
  bool is_member(incarnation life) const;
  std::uint64_t views() const noexcept { return views_; }
  std::uint64_t joins() const noexcept { return joins_; }

private:
  void on_sent(const sim_process& process, const envelope& mail);
  void on_view(const proto::view_committed& m);
  void on_placement(const proto::placement_published& m);
  void on_tokens(const char* who, request_id request, std::uint32_t choice, std::uint32_t first,
                 const std::vector<token_id>& tokens);
  void check_written(const char* what, request_id request, std::uint32_t choice,
                     std::uint32_t next);
  void on_taken(const proto::request_taken& m);
  void broken(const char* name, std::string words);

  sim_world& world_;
  const sim_nodes& nodes_;
  reference_fn reference_;
  epoch view_{};
  std::map<rank_id, incarnation> members_;
  std::set<incarnation> gone_; ///< lives that left
  std::uint64_t views_ = 0, joins_ = 0;
  std::map<epoch, std::size_t> placements_;      ///< version -> digest
  std::map<request_id, std::uint32_t> attempts_; ///< newest that JOURNAL opened
  std::map<std::pair<request_id, std::uint32_t>, incarnation> owners_;
  std::map<std::pair<request_id, std::uint32_t>, std::uint32_t> released_; ///< by choice
  std::pair<request_id, std::uint32_t> stale_{}; ///< assignment of an older view at hand
};

} // namespace di::sim
