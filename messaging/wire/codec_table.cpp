// SPDX-License-Identifier: Apache-2.0
#include "messaging/wire/codec.hpp"

#include <algorithm>

namespace di::wire {

result<void> codec_table::add(const codec& c) {
  const auto [at, fresh] = by_id_.emplace(c.id.v, c);
  if (!fresh && at->second.name != c.name)
    return fail(ec::duplicate, "wire id {:#06x} belongs to {}, {} wants it too", c.id.v,
                at->second.name, c.name);
  return {};
}

const codec* codec_table::find(wire_id id) const noexcept {
  const auto at = by_id_.find(id.v);
  return at == by_id_.end() ? nullptr : &at->second;
}

result<encoded> codec_table::encode(const parcel& p) const {
  const codec* c = find(p.id());
  if (c == nullptr || p.empty())
    return fail(ec::unknown_message, "wire id {:#06x} is not registered", p.id().v);
  encoded out = c->encode(p.body());
  if (out.body.size() > limits::body_bytes_max)
    return fail(ec::limit_exceeded, "{} takes {} bytes, at most {} are allowed", c->name,
                out.body.size(), limits::body_bytes_max);
  if (out.attachments.size() > limits::attachments_max)
    return fail(ec::limit_exceeded, "{} has {} attachments, at most {} are allowed", c->name,
                out.attachments.size(), limits::attachments_max);
  for (const shared_bytes& a : out.attachments)
    if (a.size() > limits::attachment_bytes_max)
      return fail(ec::limit_exceeded, "{} has an attachment of {} bytes, at most {} are allowed",
                  c->name, a.size(), limits::attachment_bytes_max);
  return out;
}

result<parcel> codec_table::decode(wire_id id, std::span<const std::byte> body,
                                   std::span<shared_bytes> attachments) const {
  const codec* c = find(id);
  if (c == nullptr)
    return fail(ec::unknown_message, "wire id {:#06x} is not known to this build", id.v);
  return c->decode(body, attachments);
}

std::string codec_table::print(const parcel& p) const {
  const codec* c = find(p.id());
  if (c == nullptr || p.empty())
    return fmt::format("message {:#06x}", p.id().v);
  return c->print(p.body());
}

std::vector<const codec*> codec_table::all() const {
  std::vector<const codec*> out;
  out.reserve(by_id_.size());
  for (const auto& [id, c] : by_id_)
    out.push_back(&c);
  std::sort(out.begin(), out.end(), [](const codec* a, const codec* b) { return a->id < b->id; });
  return out;
}

} // namespace di::wire
