// SPDX-License-Identifier: Apache-2.0
// The receiving half of the bus thread: nothing from a socket is trusted before it was checked
// here.
#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"
#include "messaging/bus/bus_thread.hpp"
#include "messaging/proto/bus.hpp"

#include <fmt/format.h>

namespace di::bus {
namespace {

/// Bytes of attachments in the segment: the sender counted them against its credit.
std::uint64_t slot_attachments(const wire::frame_view& frame) {
  std::uint64_t bytes = 0;
  if (frame.slot)
    for (const std::uint64_t size : frame.attachment_sizes)
      bytes += size;
  return bytes;
}

} // namespace

bool bus_thread::receive(lane l) {
  socket& s = routers_[static_cast<std::size_t>(l)];
  // The other lane, and answers, get their turn even while mail streams in.
  const std::uint64_t enough = counters_.received + limits::mails_per_turn;
  for (std::size_t n = 0; n < limits::frames_per_turn && counters_.received < enough; ++n) {
    part id;
    if (!s.receive(id))
      return true;
    parts_.clear();
    std::size_t surplus = 0;
    for (bool more = id.more(); more;) {
      part next;
      if (!s.receive(next))
        return true;
      more = next.more();
      if (parts_.size() <= limits::attachments_max)
        parts_.push_back(std::move(next));
      else
        ++surplus;
    }
    const std::string routing_id{reinterpret_cast<const char*>(id.bytes().data()), id.size()};
    if (parts_.empty() || surplus != 0)
      malformed(routing_id,
                error{ec::bad_format, fmt::format("message of {} parts", parts_.size() + surplus)});
    else if (faults_ && faults_->touches_links())
      take_faulty(l, routing_id, parts_);
    else
      take_message(l, routing_id, parts_);
  }
  return false;
}

void bus_thread::take_faulty(lane l, std::string_view routing_id, std::vector<part>& parts) {
  // Only what has a checksum: attachments are guarded by their transport
  // (messaging/wire/frame.hpp).
  const fault_gate::verdict v = faults_->judge(routing_id, 8 * parts.front().size());
  if (v.drop)
    return;
  std::vector<part> again;
  if (v.twice)
    for (part& p : parts)
      again.emplace_back(std::span<const std::byte>{p.bytes()});
  if (v.flip) {
    std::byte& turned = parts.front().bytes()[*v.flip / 8];
    turned ^= std::byte{static_cast<unsigned char>(1U << (*v.flip % 8))};
  }
  for (std::vector<part>* copy : {&parts, &again}) {
    if (copy->empty())
      continue;
    if (v.hold > duration{})
      faults_->hold({real_env().now() + v.hold, l, std::string{routing_id}, std::move(*copy)});
    else
      take_message(l, routing_id, *copy);
  }
  parts.clear();
}

void bus_thread::take_held(instant now) {
  if (!faults_)
    return;
  while (auto frame = faults_->take_due(now))
    take_message(frame->which, frame->routing_id, frame->parts);
}

void bus_thread::take_message(lane l, std::string_view routing_id, std::vector<part>& parts) {
  for (part& p : parts)
    counters_.bytes_received += p.size();
  if (wire::is_batch(parts.front().bytes())) {
    if (parts.size() != 1)
      malformed(routing_id, error{ec::bad_format, "batch with attachments"});
    else
      take_batch(l, routing_id, parts.front().bytes());
    return;
  }
  take_single(l, routing_id, parts);
}

void bus_thread::take_single(lane l, std::string_view routing_id, std::vector<part>& parts) {
  auto frame = wire::read_frame(parts.front().bytes());
  if (!frame)
    return malformed(routing_id, frame.error());
  const std::size_t raw = frame->slot ? 0 : frame->attachment_sizes.size();
  if (raw != parts.size() - 1)
    return malformed(routing_id,
                     error{ec::corrupt, fmt::format("{} attachments, the header names {}",
                                                    parts.size() - 1, raw)});
  std::uint64_t bytes = parts.front().size();
  std::vector<shared_bytes> attachments;
  attachments.reserve(frame->attachment_sizes.size());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].size() != frame->attachment_sizes[i - 1])
      return malformed(
          routing_id,
          error{ec::corrupt, fmt::format("attachment of {} bytes, the header says {}",
                                         parts[i].size(), frame->attachment_sizes[i - 1])});
    bytes += parts[i].size();
    attachments.push_back(adopt(std::move(parts[i]), counters_.attachment_bytes_realigned));
  }
  const bool hello = frame->label.id == proto::hello::wire && frame->label.to.empty();
  if (!admit(l, routing_id, frame->label.sender, frame->label.receiver, frame->label.sequence,
             hello)) {
    // Who says hello to an earlier life must learn that it is over.
    if (hello && frame->label.receiver != options_.links.self.life)
      events_.on_mail(frame->label, frame->body, attachments);
    return;
  }
  ++counters_.received;
  if (!frame->slot)
    events_.on_mail(frame->label, frame->body, attachments);
  else if (fetch(routing_id, *frame))
    events_.on_mail(frame->label, frame->body, fetched_);
  account(l, frame->label.sender, bytes + slot_attachments(*frame), 1, hello);
}

/// True if the attachments are in fetched_.
bool bus_thread::fetch(std::string_view routing_id, const wire::frame_view& frame) {
  fetched_.clear();
  const auto fetched =
      events_.fetch(frame.label.sender, *frame.slot, frame.attachment_sizes, fetched_);
  if (fetched) {
    ++counters_.segment_mails_received;
    return true;
  }
  reached("bus.slot_refused");
  ++counters_.segment_refused;
  malformed(routing_id, fetched.error());
  events_.on_unreadable(frame.label, fetched.error());
  return false;
}

void bus_thread::take_batch(lane l, std::string_view routing_id, std::span<const std::byte> bytes) {
  const auto batch = wire::read_batch(bytes);
  if (!batch)
    return malformed(routing_id, batch.error());
  if (!admit(l, routing_id, batch->sender, batch->receiver, batch->sequence, false))
    return;
  std::uint64_t credit = bytes.size();
  for (const std::span<const std::byte> item : batch->items) {
    const auto frame = wire::read_frame(item);
    if (!frame) {
      malformed(routing_id, frame.error());
      continue;
    }
    if ((!frame->attachment_sizes.empty() && !frame->slot) || frame->label.sender != batch->sender
        || frame->label.receiver != batch->receiver) {
      malformed(routing_id, error{ec::bad_format, "batch item contradicts its batch"});
      continue;
    }
    ++counters_.received;
    credit += slot_attachments(*frame);
    if (!frame->slot)
      events_.on_mail(frame->label, frame->body, {});
    else if (fetch(routing_id, *frame))
      events_.on_mail(frame->label, frame->body, fetched_);
  }
  account(l, batch->sender, credit, batch->items.size(), false);
}

bool bus_thread::admit(lane l, std::string_view routing_id, incarnation sender,
                       incarnation receiver, std::uint64_t sequence, bool hello) {
  const auto mark = routing_id.rfind('#');
  if (mark == std::string_view::npos
      || routing_id.substr(mark + 1) != fmt::format("{:016x}", sender.v)) {
    malformed(routing_id,
              error{ec::refused, fmt::format("frame claims to be from life {:016x}", sender.v)});
    return false;
  }
  if (receiver != options_.links.self.life) {
    ++counters_.stale_frames;
    reached("bus.frame_for_another_life");
    if (!hello)
      events_.on_stale(sender, receiver);
    return false;
  }
  if (events_.retired(sender)) {
    ++counters_.stale_frames;
    reached("bus.frame_from_retired_life");
    return false;
  }
  if (incoming_.size() > 4 * options_.peers && !incoming_.contains(sender))
    incoming_.erase(incoming_.begin()); // a peer that is still there says hello again
  std::uint64_t& last = incoming_[sender].last[static_cast<std::size_t>(l)];
  if (hello || sequence == last + 1) {
    last = sequence;
    return true;
  }
  ++counters_.sequence_gaps;
  if (sequence <= last) {
    reached("bus.repeated_frame");
    return false;
  }
  reached("bus.sequence_gap");
  last = sequence;
  return true;
}

void bus_thread::account(lane l, incarnation sender, std::uint64_t bytes, std::uint64_t mails,
                         bool hello) {
  const auto i = static_cast<std::size_t>(l);
  incoming& in = incoming_[sender];
  in.bytes[i] += bytes;
  in.mails[i] += mails;
  const bool due = in.bytes[i] >= options_.links.credit_bytes[i] / limits::credit_grant_divisor
                   || in.mails[i] >= options_.links.credit_mails[i] / limits::credit_grant_divisor;
  // A first hello has nothing to free; a later one asks.
  if (!due && !(hello && in.last[i] > 1))
    return;
  in.bytes[i] = 0;
  in.mails[i] = 0;
  events_.on_grant_due(sender, in.last[0], in.last[1]);
}

void bus_thread::malformed(std::string_view routing_id, const error& why) {
  if (++counters_.malformed <= 16) // an attacker must not fill the disk
    log::warn("frame_refused", {{"from", routing_id}, {"why", why.render()}});
}

} // namespace di::bus
