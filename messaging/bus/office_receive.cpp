// SPDX-License-Identifier: Apache-2.0
// Mail that came from another process, on the bus thread.
#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/bus/office.hpp"
#include "messaging/bus/start_checks.hpp"
#include "messaging/proto/bus.hpp"

#include <fmt/format.h>

namespace di::bus {

void office::on_mail(const wire::frame_label& label, std::span<const std::byte> body,
                     std::span<shared_bytes> attachments) {
  result<parcel> content = options_.codecs->decode(label.id, body, attachments);
  if (!content) {
    ++counters_.malformed;
    log::warn("mail_refused",
              {{"to", label.to}, {"from", label.from}, {"why", content.error().render()}});
    if (label.kind == mail_kind::request)
      answer_failure(label.sender, address{label.from}, address{label.to}, label.request,
                     content.error());
    return;
  }
  if (label.id.v >= 0x0100 && fault_point("bus.receive.drop"))
    return;
  // The bus's own messages: high byte 0. Answers are addressed to actors.
  if (label.kind == mail_kind::tell && label.id.v < 0x0100)
    return take_bus_mail(label, *content);
  envelope mail;
  mail.to = label.to;
  mail.from = label.from;
  mail.kind = label.kind;
  mail.request = label.request;
  mail.view = label.view;
  mail.sender = label.sender;
  mail.body = std::move(*content);
  switch (label.kind) {
  case mail_kind::request:
    return take_request(std::move(mail), label);
  case mail_kind::reply:
  case mail_kind::failure:
    return take_answer(std::move(mail), label);
  case mail_kind::tell:
    break;
  }
  if (const binding b = bound(mail.to))
    (*b)(std::move(mail));
  else
    ++counters_.dropped;
}

void office::take_request(envelope&& mail, const wire::frame_label& label) {
  if (label.request == 0 || label.remaining.count() == 0) {
    ++counters_.malformed;
    return;
  }
  mail.deadline = real_env().now() + label.remaining;
  const binding b = bound(mail.to);
  if (b == nullptr)
    return answer_failure(label.sender, mail.from, mail.to, mail.request,
                          error{ec::not_found, mail.to + " is not here"});
  const result<void> added =
      inbound_.add({mail.from, mail.request, mail.to, label.sender, mail.deadline});
  if (!added)
    return answer_failure(label.sender, mail.from, mail.to, mail.request, added.error());
  const address to = mail.to, from = mail.from;
  const std::uint64_t number = mail.request;
  (*b)(std::move(mail));
  // Unbound while it was delivered: unbind() may have missed the entry.
  if (bound(to) != b && inbound_.take(from, number))
    answer_failure(label.sender, from, to, number,
                   error{ec::unavailable, "the receiver has ended"});
}

void office::take_answer(envelope&& mail, const wire::frame_label& label) {
  const auto asked = pending_.take(mail.request, label.sender, mail.to);
  const binding b = asked ? bound(mail.to) : nullptr;
  if (b == nullptr) {
    reached("bus.late_answer");
    ++counters_.dropped;
    return;
  }
  (*b)(std::move(mail));
}

// --- between buses ----------------------------------------------------------------------------

void office::take_bus_mail(const wire::frame_label& label, const parcel& body) {
  if (const auto* m = body.as<proto::hello>(); m != nullptr && m->life == label.sender) {
    take_hello(*m, label.receiver);
  } else if (const auto* grant = body.as<proto::credit_granted>()) {
    if (const link_ptr l = link_to(label.sender)) {
      l->granted(lane::control, grant->control_sequence);
      l->granted(lane::bulk, grant->bulk_sequence);
    }
  } else if (const auto* released = body.as<proto::slots_released>()) {
    take_releases(*released, label.sender);
  } else if (const auto* wanted = body.as<proto::watch_path>()) {
    take_watch(*wanted, label.sender);
  } else if (const auto* down = body.as<proto::actor_down>()) {
    // Only if the watch still stands: it may have been told already, or withdrawn.
    if (watches_.remove(down->path, address{label.to}, {}))
      tell_down({{down->path, address{label.to}, {}, label.sender, {}}},
                error{down->code, down->what});
  } else if (const auto* refused = body.as<proto::life_refused>()) {
    if (const link_ptr l = link_to(refused->meant); l != nullptr && !l->lost()) {
      l->mark_lost();
      on_lost(l, error{ec::stale_incarnation,
                       fmt::format("{} is life {:016x} now", l->who().prefix, refused->present.v)});
    }
  } else {
    ++counters_.malformed;
  }
}

void office::take_releases(const proto::slots_released& m, incarnation reader) {
  if (m.slots.size() > limits::segment_releases_max) {
    ++counters_.malformed;
    return;
  }
  for (const proto::released_slot& s : m.slots)
    if (segment_ == nullptr || !segment_->release(reader, s.offset, s.generation)) {
      reached("bus.release_refused");
      ++counters_.segment_refused;
    }
}

void office::send_releases() {
  for (auto& due : readers_.take_due())
    if (const link_ptr to = link_to(due.writer))
      tell_bus(to, proto::slots_released{std::move(due.slots)});
}

void office::on_unreadable(const wire::frame_label& label, const error& why) {
  if (label.kind == mail_kind::request)
    answer_failure(label.sender, address{label.from}, address{label.to}, label.request, why);
}

void office::take_hello(const proto::hello& m, incarnation meant) {
  const peer who{m.prefix, m.life, m.control_endpoint, m.bulk_endpoint, m.curve_key};
  if (const auto good = check_peer(who, options_); !good) {
    ++counters_.malformed;
    log::warn("hello_refused", {{"from", m.prefix}, {"why", good.error().render()}});
    return;
  }
  {
    const std::unique_lock lock{guard_};
    if (retired_.contains(m.life))
      return;
    link_ptr& to = links_[m.life];
    if (to == nullptr) {
      if (links_.size() > 2 * options_.peers)
        forget_unused_link();
      if (links_.size() > 2 * options_.peers) {
        links_.erase(m.life);
        log::warn("hello_refused", {{"from", m.prefix}, {"why", "too many peers"}});
        return;
      }
      to = std::make_shared<link>(who, bus_.links(), counters_);
      to->learned.store(true);
      learned_.insert_or_assign(m.prefix, to);
    }
    to->reads_segment.store(m.reads_segment);
  }
  if (meant != options_.life)
    on_stale(m.life, meant);
}

void office::forget_unused_link() {
  for (auto at = links_.begin(); at != links_.end(); ++at) {
    const link_ptr& l = at->second;
    if (l == nullptr || !l->learned.load() || l->open(lane::control) || l->open(lane::bulk))
      continue;
    if (const auto by_prefix = learned_.find(l->who().prefix);
        by_prefix != learned_.end() && by_prefix->second == l)
      learned_.erase(by_prefix);
    links_.erase(at);
    return;
  }
}

void office::take_watch(const proto::watch_path& m, incarnation watcher_life) {
  const watch_entry entry{m.path, m.watcher, watcher_life, {}, {}};
  const result<bool> added = watches_.add(entry);
  if (!added)
    return tell_down({entry}, added.error());
  if (bound(m.path) == nullptr && watches_.remove(m.path, m.watcher, watcher_life))
    tell_down({entry}, error{ec::not_found, m.path + " is not known"});
}

void office::on_stale(incarnation sender, incarnation meant) {
  if (const link_ptr to = link_to(sender))
    tell_bus(to, proto::life_refused{meant, options_.life});
}

void office::on_grant_due(incarnation to, std::uint64_t control_sequence,
                          std::uint64_t bulk_sequence) {
  if (const link_ptr l = link_to(to))
    tell_bus(l, proto::credit_granted{control_sequence, bulk_sequence});
}

} // namespace di::bus
