// SPDX-License-Identifier: Apache-2.0
// Mail on its way out of an actor: to a neighbour as a pointer, to another process as a frame.
#include "messaging/base/limits.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/bus/office.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/proto/expert_shard.hpp"

#include <fmt/format.h>

#include <array>

namespace di::bus {
namespace {

/// Tells that answer a call: the call has reserved their room, so they never wait for credit.
bool answers_a_call(wire_id id) noexcept {
  return id == proto::expert_rows::wire || id == proto::expert_moved::wire
         || id == proto::expert_failed::wire || id == proto::call_known::wire;
}

} // namespace

office::destination office::find(const address& to) const {
  const std::shared_lock lock{guard_};
  if (const auto at = bindings_.find(to); at != bindings_.end())
    return {at->second, nullptr, {}};
  // The longest prefix: cut the path at its slashes, from the right.
  for (std::string_view prefix = to; !prefix.empty();
       prefix = prefix.substr(0, prefix.rfind('/'))) {
    if (const auto at = routes_.find(prefix); at != routes_.end())
      return {nullptr, at->second.to, at->first};
    if (const auto at = learned_.find(prefix); at != learned_.end())
      return {nullptr, at->second, at->first};
  }
  return {};
}

result<void> office::post(envelope mail) {
  if (mail.body.empty())
    return fail(ec::bad_argument, "empty envelope to {}", mail.to);
  if (mail.view.v == 0)
    mail.view = epoch{view_.load(std::memory_order_relaxed)};
  if (mail.kind == mail_kind::reply || mail.kind == mail_kind::failure)
    return post_answer(std::move(mail));
  if (mail.kind == mail_kind::request)
    return post_request(std::move(mail));

  destination to = find(mail.to);
  if (to.local != nullptr) {
    ++counters_.sent;
    (*to.local)(std::move(mail));
    return {};
  }
  if (to.remote == nullptr)
    return fail(ec::not_found, "nobody is known at {}", mail.to);
  return ship(to.remote, mail, !answers_a_call(mail.body.id()));
}

result<void> office::post_request(envelope&& mail) {
  const instant now = real_env().now();
  if (mail.request == 0 || mail.deadline.ns == 0)
    return fail(ec::bad_argument, "request to {} without number or deadline", mail.to);
  if (mail.deadline - now > limits::request_timeout_max)
    return fail(ec::bad_argument, "request to {} may wait {} s, at most {} are allowed", mail.to,
                (mail.deadline - now).count() / 1'000'000'000,
                limits::request_timeout_max.count() / 1'000'000'000);
  destination to = find(mail.to);
  if (to.local == nullptr && to.remote == nullptr)
    return fail(ec::not_found, "nobody is known at {}", mail.to);
  if (to.remote != nullptr && to.remote->lost())
    return fail(ec::peer_lost, "the process of {} is lost", mail.to);

  pending_request entry{mail.request, mail.from, mail.to, to.prefix, {}, mail.deadline};
  if (to.remote != nullptr)
    entry.life = to.remote->who().life;
  bool earliest = false;
  const std::uint64_t number = mail.request;
  DI_TRY_VOID(pending_.add(std::move(entry), earliest));
  if (to.local != nullptr) {
    ++counters_.sent;
    const address path = mail.to;
    (*to.local)(std::move(mail));
    // Unbound meanwhile: what it left behind was bounced, perhaps before this request was there.
    if (bound(path) != to.local)
      on_unsent(number, error{ec::unavailable, "the receiver has ended"});
  } else {
    const auto shipped = ship(to.remote, mail, true);
    // If the entry is gone the answer has been given already: by the loss of the peer.
    if (!shipped && pending_.take(number))
      return shipped;
  }
  if (earliest)
    bus_.wake();
  return {};
}

result<void> office::post_answer(envelope&& mail) {
  if (auto asked = inbound_.take(mail.to, mail.request)) {
    const link_ptr to = link_to(asked->life);
    if (to == nullptr) {
      ++counters_.dropped;
      return {}; // its life is gone, and nobody else has asked
    }
    const result<void> shipped = ship(to, mail, false);
    if (!shipped && mail.kind == mail_kind::reply)
      answer_failure(asked->life, mail.to, mail.from, mail.request, shipped.error());
    return shipped;
  }
  if (pending_.take(mail.request, {}, mail.to)) {
    if (const binding b = bound(mail.to)) {
      ++counters_.sent;
      (*b)(std::move(mail));
      return {};
    }
  }
  reached("bus.late_answer");
  ++counters_.dropped;
  return {};
}

result<void> office::ship(const link_ptr& to, const envelope& mail, bool needs_credit) {
  if (to->lost())
    return fail(ec::peer_lost, "the process of {} is lost", mail.to);
  DI_TRY(wire::encoded out, options_.codecs->encode(mail.body));
  const wire::codec* codec = options_.codecs->find(mail.body.id());
  // Releases go with the rows of the other direction: often in the same batch.
  const bool bulk = codec->bulk || mail.body.id() == proto::slots_released::wire;
  const lane which = bulk ? lane::bulk : lane::control;

  wire::frame_label label;
  label.kind = mail.kind;
  label.id = mail.body.id();
  label.view = mail.view;
  label.sender = options_.life;
  label.receiver = to->who().life;
  label.request = mail.request;
  if (mail.kind == mail_kind::request)
    label.remaining = std::max(duration{1}, mail.deadline - real_env().now());
  label.to = mail.to;
  label.from = mail.from;
  outgoing o;
  o.slot = slot_for(*to, out.attachments);
  DI_TRY(o.frame,
         wire::make_frame(label, out.body, out.attachments, o.slot ? &o.slot.slot() : nullptr));
  o.bytes = o.frame.size();
  for (const shared_bytes& a : out.attachments)
    o.bytes += a.size();
  o.request = mail.kind == mail_kind::request ? mail.request : 0;
  if (!needs_credit) {
    to->count(which, o.bytes);
  } else if (!to->reserve(which, o.bytes)) {
    reached("bus.credit_exhausted");
    bus_.wake(); // to ask for credit
    return fail(ec::limit_exceeded, "{} bytes to {} exceed the credit of its {} lane", o.bytes,
                mail.to, which == lane::bulk ? "bulk" : "control");
  }
  if (o.slot) {
    o.slot.write(out.attachments);
    ++counters_.segment_mails_sent;
    counters_.segment_bytes_sent += o.bytes - o.frame.size();
  } else {
    o.attachments = std::move(out.attachments);
  }
  if (fault_point("bus.send.drop")) {
    to->drop(which, o);
    return {};
  }
  ++counters_.sent;
  bus_.send(to, which, std::move(o));
  return {};
}

/// A slot if the receiver reads our segment and the attachments are worth one; else none.
slot_lease office::slot_for(const link& to, std::span<const shared_bytes> attachments) {
  if (segment_ == nullptr || attachments.empty() || !to.reads_segment.load())
    return {};
  std::array<std::uint64_t, limits::attachments_max> sizes{};
  std::uint64_t bytes = 0;
  if (attachments.size() > sizes.size())
    return {}; // make_frame says so
  for (std::size_t i = 0; i < attachments.size(); ++i)
    bytes += sizes[i] = attachments[i].size();
  if (bytes < options_.segments.mail_bytes_min)
    return {};
  auto slot = segment_->reserve(std::span{sizes}.first(attachments.size()), to.who().life);
  if (slot)
    return std::move(*slot);
  reached("bus.segment_full");
  ++counters_.segment_full;
  return {};
}

template <message M>
void office::tell_bus(const link_ptr& to, M m, const address& watcher) {
  envelope mail;
  mail.to = watcher;
  mail.body = parcel::of(std::move(m));
  if (!ship(to, mail, false))
    ++counters_.dropped;
}

template void office::tell_bus(const link_ptr&, proto::watch_path, const address&);
template void office::tell_bus(const link_ptr&, proto::actor_down, const address&);
template void office::tell_bus(const link_ptr&, proto::credit_granted, const address&);
template void office::tell_bus(const link_ptr&, proto::life_refused, const address&);
template void office::tell_bus(const link_ptr&, proto::slots_released, const address&);

void office::answer_failure(incarnation life, const address& to, const address& from,
                            std::uint64_t request, const error& why) {
  ++counters_.bounced;
  const link_ptr l = link_to(life);
  if (l == nullptr)
    return;
  envelope mail;
  mail.to = to;
  mail.from = from;
  mail.kind = mail_kind::failure;
  mail.request = request;
  mail.body = parcel::of(proto::request_failed{why.code, why.what});
  if (!ship(l, mail, false))
    ++counters_.dropped;
}

} // namespace di::bus
