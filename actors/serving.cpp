// SPDX-License-Identifier: Apache-2.0
// Where the generic shells of serving are instantiated, once.
#include "actors/serving.hpp"

#include "actors/expert_shard.hpp"
#include "actors/rank.hpp"

namespace di::actors {

std::unique_ptr<core_handle> make_scheduler(engine::scheduler_options options) {
  return wrap_core<scheduler>(std::move(options));
}

std::unique_ptr<core_handle> make_journal(engine::journal_options options) {
  return wrap_core<journal>(std::move(options));
}

std::unique_ptr<core_handle> make_rebalancer(engine::rebalancer_options options) {
  return wrap_core<rebalancer>(std::move(options));
}

std::unique_ptr<core_handle> make_rank(rank_parts parts) {
  return wrap_core<rank>(std::move(parts));
}

std::unique_ptr<core_handle> make_expert_shard(shard_parts parts) {
  return wrap_core<expert_shard>(std::move(parts));
}

} // namespace di::actors
