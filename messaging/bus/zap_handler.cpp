// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/zap_handler.hpp"

#include "messaging/base/log.hpp"
#include "messaging/bus/post_office.hpp"

#include <string_view>
#include <vector>

namespace di::bus {
namespace {

constexpr std::size_t key_bytes = 32;
constexpr std::size_t key_characters = 40;

std::string_view text_of(part& p) {
  return {reinterpret_cast<const char*>(p.bytes().data()), p.bytes().size()};
}

bool send_text(socket& s, std::string_view text, bool more) {
  part p{std::as_bytes(std::span{text})};
  return s.send(p, more);
}

} // namespace

result<void> zap_handler::start(void* context) {
  socket_ = socket{context, ZMQ_REP};
  if (!socket_)
    return fail(ec::limit_exceeded, "no socket for the key check: {}", zmq_strerror(zmq_errno()));
  socket_.set(ZMQ_LINGER, 0);
  return socket_.bind("inproc://zeromq.zap.01");
}

void zap_handler::allow(const std::string& public_key) {
  const std::lock_guard lock{guard_};
  allowed_.insert(public_key);
}

bool zap_handler::knows(std::span<const std::byte> key) const {
  char text[key_characters + 1] = {};
  if (key.size() != key_bytes
      || zmq_z85_encode(text, reinterpret_cast<const std::uint8_t*>(key.data()), key_bytes)
             == nullptr)
    return false;
  const std::lock_guard lock{guard_};
  return allowed_.contains(text);
}

std::uint64_t zap_handler::serve() {
  std::uint64_t refused = 0;
  if (!socket_)
    return refused;
  // version, request id, domain, address, identity, mechanism, credentials
  std::vector<part> question;
  for (;;) {
    question.clear();
    part p;
    if (!socket_.receive(p))
      return refused;
    bool more = p.more();
    question.push_back(std::move(p));
    while (more) {
      part next;
      if (!socket_.receive(next))
        return refused;
      more = next.more();
      question.push_back(std::move(next));
    }
    const bool curve = question.size() == 7 && text_of(question[5]) == "CURVE";
    const bool good = curve && knows(question[6].bytes());
    if (!good) {
      ++refused;
      log::warn("peer_key_refused",
                {{"from", question.size() > 3 ? text_of(question[3]) : std::string_view{"?"}}});
    }
    send_text(socket_, "1.0", true);
    send_text(socket_, question.size() > 1 ? text_of(question[1]) : std::string_view{}, true);
    send_text(socket_, good ? "200" : "400", true);
    send_text(socket_, good ? "OK" : "key is not on the allow-list", true);
    send_text(socket_, "", true);
    send_text(socket_, "", false);
  }
}

result<curve_keys> make_curve_keys() {
  char public_key[key_characters + 1] = {};
  char secret_key[key_characters + 1] = {};
  if (zmq_curve_keypair(public_key, secret_key) != 0)
    return fail(ec::internal, "libzmq makes no CURVE keys: {}", zmq_strerror(zmq_errno()));
  return curve_keys{public_key, secret_key};
}

} // namespace di::bus
