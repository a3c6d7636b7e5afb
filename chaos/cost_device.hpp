// SPDX-License-Identifier: Apache-2.0
// RANK and EXPERT_SHARD on a device that computes nothing and takes the time that a table says. The
// decisions are those of the production cores.
#pragma once

#include "actors/expert_shard.hpp"
#include "actors/kit.hpp"
#include "chaos/cost_table.hpp"
#include "chaos/cost_world.hpp"
#include "engine/core/expert_call_core.hpp"
#include "engine/core/rank_core.hpp"
#include "messaging/proto/journal.hpp"

#include <memory>
#include <vector>

namespace di::chaos {

/// Which experts rows choose: the e-th likeliest of a layer with weight (e + 1)^-skew, another
/// order of experts in each layer.
class expert_lottery {
public:
  /// @param skew  0: all alike
  expert_lottery(std::uint32_t layers, std::uint32_t experts, std::uint32_t per_token, double skew);
  /// Distinct experts, ascending, appended to `out`. The same row of a layer chooses the same.
  void draw(std::uint64_t row, std::uint32_t layer, std::vector<std::int32_t>& out) const;

private:
  static constexpr std::size_t tickets = 1U << 14U;
  std::uint32_t experts_, per_token_;
  std::vector<std::vector<std::int32_t>> tickets_; ///< [layers][tickets]
};

/// Rows that shards computed, for the balance.
struct expert_rows_count {
  std::vector<std::vector<std::uint64_t>> rows; ///< [layers][ranks] row and expert pairs
  /// Mean over the layers of the busiest rank's rows over the mean rank's; 1 is perfect.
  double moe_lb() const noexcept;
};

/// What all devices of a world share; outlives them.
struct cost_device {
  cost_device(cost_table t, cost_world& w, double skew, std::uint32_t ranks);

  static constexpr std::uint32_t hidden = 32; ///< of the rows that travel: they say nothing
  cost_table table;
  cost_world& world;
  expert_lottery lottery;
  expert_rows_count counted;
  std::vector<double> step_ms; ///< of all steps
};

/// RANK with the production cores in the order of actors/rank.hpp, without drafts.
class cost_rank_core {
public:
  cost_rank_core(engine::rank_options options, engine::load_window_options load,
                 cost_device& device);

  template <class M>
  result<void> on(const M& m, instant now, outbox& out) {
    DI_TRY_VOID(core_.on(m, now, out));
    wake(out);
    return {};
  }
  result<void> on(const proto::placement_published& m, instant now, outbox& out);
  result<void> on(const proto::work_due& m, instant now, outbox& out);
  result<void> on(const proto::expert_rows& m, instant now, outbox& out);
  result<void> on(const proto::expert_moved& m, instant now, outbox& out);
  result<void> on(const proto::expert_failed& m, instant now, outbox& out);
  result<void> on(const proto::call_known& m, instant now, outbox& out);
  result<void> on_due(timer which, instant now, outbox& out);

private:
  void tell_installed(outbox& out);
  void wake(outbox& out);
  void send_work(outbox& out);
  result<void> launch(instant now, outbox& out);
  result<void> begin_layer(instant now, outbox& out);
  result<void> end_layer(instant now, outbox& out);
  void send_calls(instant now, outbox& out);

  engine::rank_options options_;
  cost_device& device_;
  engine::rank_core core_;
  engine::expert_call_core calls_;
  std::vector<std::uint64_t> rows_; ///< names of the step's rows
  std::vector<std::int32_t> experts_;
  std::vector<float> logits_;
  double row_positions_ = 0;
  std::uint32_t layer_ = 0;
  instant launched_;
  bool computing_ = false, due_ = false, owes_installed_ = false;
};

std::unique_ptr<core_handle> make_cost_rank(engine::rank_options options,
                                            engine::load_window_options load, cost_device& device);
std::unique_ptr<core_handle> make_cost_shard(rank_id rank, incarnation life, cost_device& device);

} // namespace di::chaos
