// SPDX-License-Identifier: Apache-2.0
// RANK's talk with its KV_AGENT: sealed pieces out; a resumed attempt waits, for a bounded time,
// for what others hold of it.
#include "actors/rank.hpp"

#include <algorithm>

namespace di::actors {

/// Whether the attempt shall wait for pieces; then it is taken when they are here.
bool rank_actor::await_restore(const proto::assign_request& m, outbox& out) {
  if (parts_.options.kv_agent.empty() || core_.knows(m.spec.request, m.attempt))
    return false;
  if (const auto held = restoring_.find(m.spec.request); held != restoring_.end()) {
    if (held->second.attempt >= m.attempt)
      return true; // sent again
    restoring_.erase(held);
  }
  if (m.life != parts_.options.life && m.life != incarnation{})
    return false; // will be refused
  engine::step_shape chunk;
  chunk.add(parts_.options.step_rows, static_cast<double>(m.spec.prompt.size()) / 2);
  const double token_us = core_.tuning().cost.ms(chunk) / parts_.options.step_rows * 1e3;
  auto ask = kv_.transfer().wants(m, token_us);
  if (!ask)
    return false;
  out.count("di_rank_restores_total");
  out.arm({restore_due, m.spec.request.v},
          std::chrono::milliseconds{ask->within_ms} + std::chrono::milliseconds{100});
  out.send(parts_.options.kv_agent, std::move(*ask));
  restoring_[m.spec.request] = m;
  return true;
}

result<void> rank_actor::on(const proto::pages_restored& m, instant now, outbox& out) {
  const auto held = restoring_.find(m.request);
  if (held == restoring_.end() || held->second.attempt != m.attempt)
    return {};
  kv_.transfer().import(held->second, m);
  out.disarm({restore_due, m.request.v});
  return take_restored(m.request, now, out);
}

/// With what has come, or without.
result<void> rank_actor::take_restored(request_id request, instant now, outbox& out) {
  const auto held = restoring_.find(request);
  if (held == restoring_.end())
    return {};
  const proto::assign_request m = std::move(held->second);
  restoring_.erase(held);
  DI_TRY_VOID(core_.on(m, now, out));
  if (!core_.knows(request, m.attempt)) // refused
    kv_.transfer().forget(request);
  wake(out);
  return {};
}

void rank_actor::send_sealed(outbox& out) {
  for (proto::pages_sealed& m : kv_.transfer().take_sealed())
    out.send(parts_.options.kv_agent, std::move(m));
}

/// Whoever has left may have held copies: they are offered again, to others.
void rank_actor::offer_to(std::span<const engine::placed_rank> members) {
  const bool left = std::any_of(members_.begin(), members_.end(), [&](const auto& m) {
    return std::find(members.begin(), members.end(), m) == members.end();
  });
  members_.assign(members.begin(), members.end());
  if (left)
    kv_.transfer().offer_again();
}

} // namespace di::actors
