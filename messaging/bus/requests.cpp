// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/requests.hpp"

#include "messaging/base/limits.hpp"

namespace di::bus {

// --- pending ----------------------------------------------------------------------------------

result<void> pending_requests::add(pending_request r, bool& earliest) {
  const std::lock_guard lock{guard_};
  if (by_number_.size() >= limits::pending_requests_max)
    return fail(ec::limit_exceeded, "{} requests wait for an answer, no more are allowed",
                by_number_.size());
  const std::pair order{r.deadline.ns, r.number};
  if (!by_number_.try_emplace(r.number, std::move(r)).second)
    return fail(ec::duplicate, "request number {} waits already", order.second);
  by_deadline_.insert(order);
  earliest = *by_deadline_.begin() == order;
  return {};
}

pending_request pending_requests::take_at(map::iterator at) {
  by_deadline_.erase({at->second.deadline.ns, at->first});
  pending_request out = std::move(at->second);
  by_number_.erase(at);
  return out;
}

std::optional<pending_request> pending_requests::take(std::uint64_t number) {
  const std::lock_guard lock{guard_};
  const auto at = by_number_.find(number);
  if (at == by_number_.end())
    return std::nullopt;
  return take_at(at);
}

std::optional<pending_request> pending_requests::take(std::uint64_t number, incarnation life,
                                                      const address& requester) {
  const std::lock_guard lock{guard_};
  const auto at = by_number_.find(number);
  if (at == by_number_.end() || at->second.life != life || at->second.from != requester)
    return std::nullopt;
  return take_at(at);
}

std::vector<pending_request> pending_requests::take_due(instant now) {
  const std::lock_guard lock{guard_};
  std::vector<pending_request> out;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now.ns)
    out.push_back(take_at(by_number_.find(by_deadline_.begin()->second)));
  return out;
}

template <class Matches>
std::vector<pending_request> pending_requests::take_where(Matches&& matches) {
  const std::lock_guard lock{guard_};
  std::vector<pending_request> out;
  for (auto at = by_number_.begin(); at != by_number_.end();) {
    const auto next = std::next(at);
    if (matches(at->second))
      out.push_back(take_at(at));
    at = next;
  }
  return out;
}

std::vector<pending_request> pending_requests::take_sent_to(incarnation life) {
  return take_where([&](const pending_request& r) { return r.life == life; });
}

std::vector<pending_request> pending_requests::take_routed_by(const address& prefix) {
  return take_where([&](const pending_request& r) { return r.life.v != 0 && r.route == prefix; });
}

std::vector<pending_request> pending_requests::take_local(const address& to) {
  return take_where([&](const pending_request& r) { return r.life.v == 0 && r.to == to; });
}

std::optional<instant> pending_requests::next_due() const {
  const std::lock_guard lock{guard_};
  if (by_deadline_.empty())
    return std::nullopt;
  return instant{by_deadline_.begin()->first};
}

std::size_t pending_requests::size() const {
  const std::lock_guard lock{guard_};
  return by_number_.size();
}

// --- inbound ----------------------------------------------------------------------------------

result<void> inbound_requests::add(inbound_request r) {
  const std::lock_guard lock{guard_};
  if (by_key_.size() >= limits::inbound_requests_max)
    return fail(ec::limit_exceeded, "{} requests are unanswered, no more are taken",
                by_key_.size());
  key k{r.number, r.requester};
  const auto [at, fresh] = by_key_.try_emplace(std::move(k), std::move(r));
  if (!fresh)
    return fail(ec::duplicate, "request number {} of {} is here already", at->first.first,
                at->first.second);
  by_deadline_.insert({at->second.deadline.ns, &at->first});
  return {};
}

inbound_request inbound_requests::take_at(map::iterator at) {
  by_deadline_.erase({at->second.deadline.ns, &at->first});
  inbound_request out = std::move(at->second);
  by_key_.erase(at);
  return out;
}

std::optional<inbound_request> inbound_requests::take(const address& requester,
                                                      std::uint64_t number) {
  const std::lock_guard lock{guard_};
  const auto at = by_key_.find({number, requester});
  if (at == by_key_.end())
    return std::nullopt;
  return take_at(at);
}

std::vector<inbound_request> inbound_requests::take_to(const address& path) {
  const std::lock_guard lock{guard_};
  std::vector<inbound_request> out;
  for (auto at = by_key_.begin(); at != by_key_.end();) {
    const auto next = std::next(at);
    if (at->second.to == path)
      out.push_back(take_at(at));
    at = next;
  }
  return out;
}

void inbound_requests::drop_life(incarnation life) {
  const std::lock_guard lock{guard_};
  for (auto at = by_key_.begin(); at != by_key_.end();) {
    const auto next = std::next(at);
    if (at->second.life == life)
      take_at(at);
    at = next;
  }
}

void inbound_requests::drop_due(instant now) {
  const std::lock_guard lock{guard_};
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now.ns)
    take_at(by_key_.find(*by_deadline_.begin()->second));
}

std::optional<instant> inbound_requests::next_due() const {
  const std::lock_guard lock{guard_};
  if (by_deadline_.empty())
    return std::nullopt;
  return instant{by_deadline_.begin()->first};
}

} // namespace di::bus
