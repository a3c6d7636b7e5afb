// SPDX-License-Identifier: Apache-2.0
// An actor type whose message has the number of token_meter's get_meter.
#include "actors/kit.hpp"

namespace acme {

struct get_weather {
  static constexpr di::wire_id wire{0x8001};
  DI_FIELDS(get_weather)
};
struct weather_core {
  void on(const get_weather&) {}
};
struct weather {
  static constexpr auto kind = "weather";
  using core = weather_core;
  using protocol = di::protocol<di::reacts_to<get_weather>>;
};

} // namespace acme

DI_REGISTER_ACTOR(acme::weather)
