// SPDX-License-Identifier: Apache-2.0
// acme/token_meter.cpp: counts generated tokens and fails past a budget.
#include "actors/kit.hpp"

namespace acme {

struct get_meter {
  static constexpr di::wire_id wire{0x8001};
  DI_FIELDS(get_meter)
};
struct meter_reading {
  static constexpr di::wire_id wire{0x8002};
  std::uint64_t tokens = 0; ///< [tokens] counted since the actor was spawned
  DI_FIELDS(meter_reading, m.tokens)
};

class token_meter_core { // pure: no CAF, no clock, no I/O
public:
  explicit token_meter_core(const di::actor_config& cfg) : max_{cfg.u64("tokens_max", 1'000'000)} {}
  di::result<void> on(const di::proto::step_finished& m) {
    if (tokens_ + m.tokens.size() > max_)
      return di::fail(di::ec::limit_exceeded, "tokens_max={}", max_);
    tokens_ += m.tokens.size();
    return {};
  }
  di::result<meter_reading> on(const get_meter&) const { return meter_reading{tokens_}; }

private:
  std::uint64_t max_, tokens_ = 0;
};

struct token_meter { // the actor type = kind + core + protocol
  static constexpr auto kind = "token_meter";
  using core = token_meter_core;
  using protocol = di::protocol<di::reacts_to<di::proto::step_finished>,
                                di::replies_to<get_meter>::with<meter_reading>>;
};

} // namespace acme

DI_REGISTER_ACTOR(acme::token_meter)
