// SPDX-License-Identifier: Apache-2.0
// Subscriptions and the fan-out.
#include "engine/core/topic_core.hpp"

#include <algorithm>

namespace di::engine {

void topic_core::on(const proto::subscribe& m, instant /*now*/, outbox& out) {
  const bool fact_is_new = !subscribers_.contains(m.fact);
  if (fact_is_new && subscribers_.size() >= facts_max) {
    out.count("di_topic_subscriptions_refused_total");
    return;
  }
  auto& of = subscribers_[m.fact];
  if (std::find(of.begin(), of.end(), m.subscriber) != of.end())
    return;
  if (of.size() >= subscribers_max) {
    out.count("di_topic_subscriptions_refused_total");
    return;
  }
  of.push_back(m.subscriber);
}

void topic_core::on(const proto::unsubscribe& m) {
  const auto found = subscribers_.find(m.fact);
  if (found == subscribers_.end())
    return;
  std::erase(found->second, m.subscriber);
  if (found->second.empty())
    subscribers_.erase(found);
}

void topic_core::on_any(const parcel& fact, const origin& /*from*/, instant /*now*/,
                        outbox& out) const {
  const auto found = subscribers_.find(fact.name());
  if (found == subscribers_.end()) {
    out.count("di_topic_facts_unheard_total");
    return;
  }
  out.count("di_topic_facts_total");
  for (const auto& subscriber : found->second)
    out.forward(subscriber, fact);
}

} // namespace di::engine
