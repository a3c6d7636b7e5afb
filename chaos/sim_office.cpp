// SPDX-License-Identifier: Apache-2.0
// Delivery by address between simulated processes.
#include "chaos/sim_office.hpp"

#include "messaging/base/probe.hpp"
#include "messaging/proto/bus.hpp"

#include <string_view>

namespace di::sim {

result<void> sim_office::bind(const address& path, bus::deliver_fn) {
  if (!bound_.insert(path).second)
    return fail(ec::duplicate, "{} is bound already", path);
  return {};
}

void sim_office::unbind(const address& path, const error& reason) {
  bound_.erase(path);
  bounce_all([&](const asked& a) { return a.prefix.empty() && a.to == path; }, reason);
}

result<void> sim_office::add_route(const bus::peer& p) {
  if (p.life == life_)
    return {};
  if (p.life.v == 0)
    return fail(ec::bad_argument, "the route to {} names no incarnation", p.prefix);
  if (const auto at = routes_.find(p.prefix); at != routes_.end()) {
    if (at->second == p)
      return {};
    if (at->second.life != p.life)
      remove_route(p.prefix, {ec::peer_lost, p.prefix + " has another life now"});
  }
  learned_.erase(p.prefix);
  retired_.erase(p.life);
  routes_.insert_or_assign(p.prefix, p);
  return {};
}

void sim_office::remove_route(const address& prefix, const error& reason) {
  const auto at = routes_.find(prefix);
  if (at == routes_.end())
    return;
  const incarnation life = at->second.life;
  routes_.erase(at);
  bool others = false;
  for (const auto& [p, peer] : routes_)
    others = others || peer.life == life;
  if (others) {
    bounce_all([&](const asked& a) { return a.prefix == prefix; }, reason);
    return;
  }
  std::erase_if(learned_, [&](const auto& l) { return l.second == life; });
  retired_.insert(life);
  lost(life, reason);
}

std::vector<bus::peer> sim_office::routes() const {
  std::vector<bus::peer> all;
  for (const auto& [prefix, peer] : routes_)
    all.push_back(peer);
  return all;
}

bus::peer sim_office::self() const {
  return {prefix_, life_, "sim://" + prefix_, "sim://" + prefix_ + "/bulk", {}};
}

std::uint64_t sim_office::number() {
  // No life repeats the numbers of another.
  return life_.v * 0x9e37'79b9'7f4a'7c15U + ++last_number_;
}

std::optional<sim_office::hop> sim_office::find(const address& to) const {
  for (address prefix = to; !prefix.empty(); prefix = prefix.substr(0, prefix.rfind('/'))) {
    if (const auto at = routes_.find(prefix); at != routes_.end())
      return hop{prefix, at->second.life};
    if (const auto at = learned_.find(prefix); at != learned_.end())
      return hop{prefix, at->second};
  }
  return std::nullopt;
}

result<void> sim_office::post(envelope mail) {
  if (mail.view.v == 0)
    mail.view = view_;
  if (mail.kind == mail_kind::reply || mail.kind == mail_kind::failure)
    return post_answer(std::move(mail));
  const bool local = bound_.contains(mail.to);
  const auto to = local ? std::nullopt : find(mail.to);
  if (!local && !to)
    return fail(ec::not_found, "nobody is known at {}", mail.to);
  if (to && lost_.contains(to->life))
    return fail(ec::peer_lost, "the process of {} is lost", mail.to);
  if (mail.kind == mail_kind::request)
    pending_[mail.request] = {mail.from, mail.to, to ? to->prefix : address{},
                              to ? to->life : incarnation{}};
  ++stats_.sent;
  if (!local)
    return ship(*to, std::move(mail));
  carrier_->deliver(life_, std::move(mail));
  return {};
}

result<void> sim_office::ship(const hop& to, envelope mail) {
  carrier_->carry({life_, to.life, prefix_, std::move(mail)});
  return {};
}

result<void> sim_office::post_answer(envelope mail) {
  if (const auto at = inbound_.find({mail.to, mail.request}); at != inbound_.end()) {
    const incarnation life = at->second.life;
    inbound_.erase(at);
    return ship({{}, life}, std::move(mail));
  }
  if (const auto at = pending_.find(mail.request);
      at != pending_.end() && at->second.prefix.empty()) {
    pending_.erase(at);
    carrier_->deliver(life_, std::move(mail));
    return {};
  }
  ++stats_.dropped;
  return {};
}

void sim_office::answer_failure(incarnation life, const envelope& question, const error& why) {
  ++stats_.bounced;
  envelope mail;
  mail.to = question.from;
  mail.from = question.to;
  mail.kind = mail_kind::failure;
  mail.request = question.request;
  mail.body = parcel::of(proto::request_failed{why.code, why.what});
  (void)ship({{}, life}, std::move(mail));
}

void sim_office::receive(sim_frame frame) {
  ++stats_.received;
  envelope& mail = frame.mail;
  if (retired_.contains(frame.sender)) {
    reached("sim.frame_from_retired_life");
    ++stats_.stale_frames;
    return;
  }
  if (!routes_.contains(frame.sender_prefix))
    learned_[frame.sender_prefix] = frame.sender;
  if (const auto* refused = mail.body.as<proto::life_refused>()) {
    lost(refused->meant, {ec::stale_incarnation, "the process has another life now"});
    return;
  }
  if (frame.receiver != life_) {
    reached("sim.frame_for_another_life");
    ++stats_.stale_frames;
    envelope refusal;
    refusal.body = parcel::of(proto::life_refused{frame.receiver, life_});
    (void)ship({{}, frame.sender}, std::move(refusal));
    return;
  }
  mail.sender = frame.sender;
  if (mail.kind == mail_kind::reply || mail.kind == mail_kind::failure) {
    const auto at = pending_.find(mail.request);
    if (at == pending_.end() || at->second.life != frame.sender) {
      ++stats_.dropped;
      return;
    }
    pending_.erase(at);
  } else if (!bound_.contains(mail.to)) {
    if (mail.kind == mail_kind::request)
      return answer_failure(frame.sender, mail, {ec::not_found, mail.to + " is not here"});
    ++stats_.dropped;
    return;
  } else if (mail.kind == mail_kind::request) {
    inbound_[{mail.from, mail.request}] = {mail.to, frame.sender};
  }
  carrier_->deliver(life_, std::move(mail));
}

void sim_office::bounce(std::uint64_t number, const error& reason) {
  const asked a = pending_.at(number);
  pending_.erase(number);
  envelope mail;
  mail.to = a.from;
  mail.from = a.to;
  mail.kind = mail_kind::failure;
  mail.request = number;
  mail.body = parcel::of(proto::request_failed{reason.code, reason.what});
  ++stats_.bounced;
  carrier_->deliver(life_, std::move(mail));
}

template <class Pred>
void sim_office::bounce_all(Pred&& pred, const error& reason) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, a] : pending_)
    if (pred(a))
      numbers.push_back(number);
  for (const std::uint64_t number : numbers)
    bounce(number, reason);
}

void sim_office::lost(incarnation life, const error& reason) {
  lost_.insert(life);
  std::erase_if(inbound_, [&](const auto& i) { return i.second.life == life; });
  bounce_all([&](const asked& a) { return a.life == life && !a.prefix.empty(); }, reason);
}

} // namespace di::sim
