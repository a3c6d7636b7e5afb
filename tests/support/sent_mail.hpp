// SPDX-License-Identifier: Apache-2.0
// Reads what a core put into its outbox.
#pragma once

#include "messaging/proto/outbox.hpp"

#include <utility>
#include <vector>

namespace di::test {

/// All messages of type M that were sent, with their receivers, in order.
template <message M>
std::vector<std::pair<address, M>> sent(const outbox& out) {
  std::vector<std::pair<address, M>> found;
  for (const any_effect& effect : out.effects())
    if (const auto* send = std::get_if<effect::send>(&effect))
      if (const M* m = send->body.as<M>())
        found.emplace_back(send->to, *m);
  return found;
}

/// The only message of type M. A default one if there is none or several.
template <message M>
M only(const outbox& out) {
  const auto all = sent<M>(out);
  return all.size() == 1 ? all[0].second : M{};
}

inline bool armed(const outbox& out) {
  for (const any_effect& effect : out.effects())
    if (std::holds_alternative<effect::arm>(effect))
      return true;
  return false;
}

} // namespace di::test
