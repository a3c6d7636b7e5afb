// SPDX-License-Identifier: Apache-2.0
// The desk: orders of other threads in, the core's news out to their listeners.
#include "actors/stream_gateway.hpp"

#include "actors/kit.hpp"
#include "actors/stream_gateway_actor.hpp"
#include "messaging/base/env.hpp"

#include <utility>

namespace di::actors {
namespace {

const error stopped{ec::unavailable, "this gateway has stopped"};

proto::choice_end stopped_end() {
  return {proto::finish_reason::error, -1, 0, stopped.code, stopped.what};
}

/// Tells whoever waits for an order that nobody will carry it out.
struct refuse_order {
  void operator()(const submit_order& o) const { o.listener->ended(stopped_end(), 0); }
  void operator()(const attach_order& o) const { o.answer(fail(stopped)); }
  void operator()(const get_order& o) const { o.answer(fail(stopped)); }
  void operator()(const forget_order& o) const { o.answer(fail(stopped)); }
  template <class Other>
  void operator()(const Other&) const {}
};

} // namespace

desk_state::desk_state(address path, bus::post_office& office,
                       std::function<std::uint64_t()> random)
    : path_{std::move(path)}, office_{office}, random_{std::move(random)} {
  next_ = fresh_block();
}

/// Numbers of other lives and gateways are elsewhere: 39 random bits, then 24 that count.
std::uint64_t desk_state::fresh_block() {
  constexpr unsigned counted_bits = 24;
  return ((random_() >> (counted_bits + 1)) << counted_bits) + 1;
}

request_id desk_state::draw_id() {
  const std::lock_guard lock{guard_};
  if ((next_ & ((1U << 24U) - 1)) == 0)
    next_ = fresh_block();
  return request_id{next_++};
}

void desk_state::put(any_order order) {
  bool ring = false;
  {
    const std::lock_guard lock{guard_};
    if (!closed_) {
      submits_ += std::holds_alternative<submit_order>(order);
      orders_.push_back(std::move(order));
      ring = !std::exchange(rung_, true);
      if (!ring)
        return;
    }
  }
  if (!ring) // closed
    return std::visit(refuse_order{}, order);
  envelope mail;
  mail.to = path_;
  mail.from = path_;
  mail.body = parcel::of(proto::desk_rang{});
  if (const auto sent = office_.post(std::move(mail)); !sent)
    close(); // the actor has ended, or has not begun: it will not
}

std::vector<any_order> desk_state::take() {
  const std::lock_guard lock{guard_};
  rung_ = false;
  submits_ = 0;
  return std::exchange(orders_, {});
}

void desk_state::close() {
  std::vector<any_order> left;
  {
    const std::lock_guard lock{guard_};
    closed_ = true;
    submits_ = 0;
    left = std::exchange(orders_, {});
  }
  for (any_order& order : left)
    std::visit(refuse_order{}, order);
}

void desk_state::set_counts(const desk_counts& counts) {
  const std::lock_guard lock{guard_};
  counts_ = counts;
}

request_id desk_state::submit(stream_order order, std::shared_ptr<stream_listener> listener) {
  const request_id id = draw_id();
  order.spec.request = id;
  order.spec.gateway = path_;
  put(submit_order{std::move(order), std::move(listener)});
  return id;
}

void desk_state::cancel(request_id request) {
  put(cancel_order{request, false});
}

void desk_state::stop(request_id request) {
  put(cancel_order{request, true});
}

void desk_state::leave(request_id request, const std::shared_ptr<stream_listener>& who) {
  put(leave_order{request, who});
}

void desk_state::end_choice(request_id request, std::uint32_t choice, std::uint32_t kept_tokens,
                            std::int32_t stop_index) {
  put(proto::end_choice{request, choice, kept_tokens, stop_index});
}

void desk_state::attach(request_id request, std::vector<std::uint32_t> from,
                        std::shared_ptr<stream_listener> listener,
                        answer_fn<proto::request_attached> answer) {
  put(attach_order{request, std::move(from), std::move(listener), std::move(answer)});
}

void desk_state::get(request_id request, answer_fn<proto::recorded_request> answer) {
  put(get_order{request, std::move(answer)});
}

void desk_state::forget(request_id request, answer_fn<proto::request_forgotten> answer) {
  put(forget_order{request, std::move(answer)});
}

void desk_state::drain() {
  put(drain_order{});
}

std::size_t desk_state::open() const {
  const std::lock_guard lock{guard_};
  return counts_.waiting + counts_.open + submits_;
}

desk_counts desk_state::counts() const {
  const std::lock_guard lock{guard_};
  return counts_;
}

stream_gateway_actor::stream_gateway_actor(engine::stream_gateway_options options,
                                           std::shared_ptr<desk_state> desk)
    : desk_{std::move(desk)}, core_{std::move(options)} {
}

stream_gateway_actor::~stream_gateway_actor() {
  desk_->close();
  desk_->set_counts({});
  for (auto& [id, listener] : listeners_)
    listener->ended(stopped_end(), 0);
  for (auto& [ticket, waits] : waits_)
    std::visit(refuse_order{}, waits);
}

result<void> stream_gateway_actor::on(const proto::desk_rang&, instant now, outbox& out) {
  for (any_order& order : desk_->take())
    std::visit([&](auto& o) { carry_out(o, now, out); }, order);
  tell();
  return {};
}

void stream_gateway_actor::carry_out(submit_order& o, instant now, outbox& out) {
  const request_id id = o.order.spec.request;
  listeners_[id] = std::move(o.listener);
  proto::open_request m;
  m.spec = std::move(o.order.spec);
  m.note = std::move(o.order.note);
  m.dedup = std::move(o.order.dedup);
  m.dedup_digest = std::move(o.order.dedup_digest);
  m.keep_ms = o.order.keep_ms;
  m.detached_ms = o.order.detached_ms;
  core_.submit(std::move(m), now, out);
}

void stream_gateway_actor::carry_out(cancel_order& o, instant now, outbox& out) {
  if (o.listens)
    core_.stop(o.request, now, out);
  else
    core_.cancel(o.request, now, out);
}

void stream_gateway_actor::carry_out(leave_order& o, instant now, outbox& out) {
  const auto at = listeners_.find(o.request);
  if (o.who && (at == listeners_.end() || at->second != o.who))
    return; // it has gone, or is a newer one's
  if (at != listeners_.end())
    listeners_.erase(at);
  core_.leave(o.request, now, out);
}

void stream_gateway_actor::carry_out(proto::end_choice& o, instant now, outbox& out) {
  core_.end_choice(o, now, out);
}

void stream_gateway_actor::carry_out(attach_order& o, instant now, outbox& out) {
  const std::uint64_t ticket = ++last_ticket_;
  core_.attach(ticket, o.request, std::move(o.from), now, out);
  waits_.emplace(ticket, std::move(o));
  tell(); // a listener from before hears that it is no more
}

void stream_gateway_actor::carry_out(get_order& o, instant now, outbox& out) {
  const std::uint64_t ticket = ++last_ticket_;
  core_.get(ticket, o.request, now, out);
  waits_.emplace(ticket, std::move(o));
}

void stream_gateway_actor::carry_out(forget_order& o, instant now, outbox& out) {
  const std::uint64_t ticket = ++last_ticket_;
  core_.forget(ticket, o.request, now, out);
  waits_.emplace(ticket, std::move(o));
}

void stream_gateway_actor::carry_out(drain_order&, instant, outbox&) {
  core_.drain();
}

/// Hands the core's news to those that wait for them.
void stream_gateway_actor::tell() {
  for (engine::any_stream_news& news : core_.take_news())
    std::visit([this](auto& n) { tell_one(n); }, news);
  const engine::stream_counts c = core_.counts();
  desk_->set_counts({c.waiting, c.open, c.finished, c.failed, c.cancelled, c.output_tokens});
}

void stream_gateway_actor::tell_one(engine::stream_news::opened& n) {
  if (const auto at = listeners_.find(n.request); at != listeners_.end())
    at->second->opened();
}

void stream_gateway_actor::tell_one(engine::stream_news::known& n) {
  if (const auto last = listeners_.extract(n.request))
    last.mapped()->known(n.known, n.same);
}

void stream_gateway_actor::tell_one(engine::stream_news::tokens& n) {
  const auto at = listeners_.find(n.m.request);
  if (at == listeners_.end())
    return;
  const auto follower = at->second;
  if (n.last)
    listeners_.erase(at);
  follower->tokens(n.m);
}

void stream_gateway_actor::tell_one(engine::stream_news::ended& n) {
  if (const auto last = listeners_.extract(n.request))
    last.mapped()->ended(n.why, n.ask_again_ms);
}

void stream_gateway_actor::tell_one(engine::stream_news::attached& n) {
  const auto order = waits_.extract(n.ticket);
  if (!order)
    return;
  auto& o = std::get<attach_order>(order.mapped());
  if (n.answer)
    listeners_[n.request] = std::move(o.listener);
  o.answer(std::move(n.answer));
}

void stream_gateway_actor::tell_one(engine::stream_news::recorded& n) {
  if (const auto order = waits_.extract(n.ticket))
    std::get<get_order>(order.mapped()).answer(std::move(n.answer));
}

void stream_gateway_actor::tell_one(engine::stream_news::forgotten& n) {
  if (const auto order = waits_.extract(n.ticket))
    std::get<forget_order>(order.mapped()).answer(std::move(n.answer));
}

result<proto::gateway_state> stream_gateway_actor::on(const proto::get_gateway&) const {
  const engine::stream_counts c = core_.counts();
  return proto::gateway_state{c.waiting, c.open, c.finished, c.failed, c.output_tokens};
}

result<std::shared_ptr<gateway_desk>> spawn_stream_gateway(system& actors,
                                                           stream_gateway_settings settings) {
  auto desk = std::make_shared<desk_state>(settings.path, actors.office(),
                                           [] { return real_env().random(); });
  engine::stream_gateway_options options;
  options.self = settings.path;
  options.life = settings.life;
  options.journal = settings.journal;
  options.window = settings.window;
  options.waiting_max = settings.waiting;
  spawn_options watched;
  watched.ended = std::move(settings.ended);
  DI_TRY_VOID(actors.spawn(settings.path, wrap_core<stream_gateway>(std::move(options), desk),
                           std::move(watched)));
  return std::shared_ptr<gateway_desk>{std::move(desk)};
}

} // namespace di::actors
