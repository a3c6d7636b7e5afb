// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/zmq_socket.hpp"

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace di::bus {
namespace {

using owner_ptr = std::shared_ptr<const void>;

/// Called by ZeroMQ once the bytes are written or dropped, on any of its threads.
void release_owner(void*, void* hint) {
  delete static_cast<owner_ptr*>(hint);
}

void release_frame(void*, void* hint) {
  delete static_cast<std::vector<std::byte>*>(hint);
}

constexpr std::size_t row_alignment = 8;

} // namespace

part::part(std::span<const std::byte> bytes) : part{bytes.size()} {
  if (!bytes.empty())
    std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
}

part part::lend(const shared_bytes& bytes) {
  part out;
  if (bytes.empty())
    return out;
  // ZeroMQ never writes to what it sends.
  auto* data = const_cast<std::byte*>(bytes.data());
  auto owner = std::make_unique<owner_ptr>(bytes.owner());
  if (zmq_msg_init_data(&out.message_, data, bytes.size(), release_owner, owner.get()) != 0)
    throw std::bad_alloc{};
  static_cast<void>(owner.release());
  return out;
}

part part::lend(std::vector<std::byte>&& frame) {
  part out;
  auto held = std::make_unique<std::vector<std::byte>>(std::move(frame));
  if (zmq_msg_init_data(&out.message_, held->data(), held->size(), release_frame, held.get()) != 0)
    throw std::bad_alloc{};
  static_cast<void>(held.release());
  return out;
}

shared_bytes adopt(part&& received, std::atomic<std::uint64_t>& realigned_bytes) {
  const std::size_t size = received.size();
  if (size == 0)
    return {};
  if (reinterpret_cast<std::uintptr_t>(received.bytes().data()) % row_alignment != 0) {
    // Parts that fit ZeroMQ's receive buffer (8 KiB) stay inside it, at any offset; and very small
    // ones live inside the part itself.
    realigned_bytes += size;
    return shared_bytes::adopt(
        std::vector<std::byte>(received.bytes().begin(), received.bytes().end()));
  }
  auto held = std::make_shared<part>(std::move(received));
  const std::byte* data = held->bytes().data();
  return {std::move(held), data, size};
}

std::string socket::endpoint() const {
  char text[512] = {};
  std::size_t size = sizeof text;
  if (zmq_getsockopt(handle_, ZMQ_LAST_ENDPOINT, text, &size) != 0)
    return {};
  return text;
}

result<void> socket::bind(const std::string& where) {
  if (zmq_bind(handle_, where.c_str()) != 0)
    return fail(ec::io_error, "cannot bind {}: {}", where, zmq_strerror(zmq_errno()));
  return {};
}

result<void> socket::connect(const std::string& where) {
  if (zmq_connect(handle_, where.c_str()) != 0)
    return fail(ec::io_error, "cannot connect to {}: {}", where, zmq_strerror(zmq_errno()));
  return {};
}

} // namespace di::bus
