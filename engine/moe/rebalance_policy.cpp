// SPDX-License-Identifier: Apache-2.0
// Reading a policy.
#include "engine/moe/rebalance_policy.hpp"

#include <charconv>
#include <limits>

namespace di::engine {

result<rebalance_policy> parse_rebalance(std::string_view text) {
  rebalance_policy p;
  if (text == "off")
    return p;
  if (text == "auto") {
    p.mode = rebalance_mode::automatic;
    return p;
  }
  if (text == "observe") { // by load, but no load is uneven enough
    p.mode = rebalance_mode::automatic;
    p.begin_above = std::numeric_limits<double>::infinity();
    return p;
  }
  constexpr std::string_view forced = "forced";
  if (text.starts_with(forced)) {
    p.mode = rebalance_mode::forced;
    p.window_steps = 8;
    std::string_view rest = text.substr(forced.size());
    bool good = rest.empty();
    if (rest.starts_with(':')) {
      rest.remove_prefix(1);
      const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), p.window_steps);
      good = read.ec == std::errc{} && read.ptr == rest.data() + rest.size() && p.window_steps > 0
             && p.window_steps <= 1'000'000;
    }
    p.bins = 1;
    p.interval_steps = p.window_steps;
    if (good)
      return p;
  }
  return fail(ec::bad_config,
              "'{}' is none of off, observe, auto, forced, forced:STEPS (1 to 1000000)", text);
}

} // namespace di::engine
