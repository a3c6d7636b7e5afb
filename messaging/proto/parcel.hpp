// SPDX-License-Identifier: Apache-2.0
// A message of any type on its way (parcel), and the label it travels under (envelope). No copy is
// made of the body.
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/error.hpp"
#include "messaging/proto/message.hpp"

#include <memory>

namespace di {

/// One immutable message of any type. Copying shares the body. The wire id tells the type; ids are
/// proven unique by the catalog and, for user types, by the registry.
class parcel {
public:
  parcel() = default;

  template <message M>
  static parcel of(M m) {
    parcel p;
    p.id_ = M::wire;
    p.name_ = M::message_name();
    p.body_ = std::make_shared<const M>(std::move(m));
    return p;
  }

  wire_id id() const noexcept { return id_; }
  std::string_view name() const noexcept { return name_; }
  bool empty() const noexcept { return !body_; }
  const void* body() const noexcept { return body_.get(); }

  /// The message if it is an M, else null.
  template <message M>
  const M* as() const noexcept {
    return id_ == M::wire ? static_cast<const M*>(body_.get()) : nullptr;
  }

private:
  wire_id id_;
  std::string_view name_;
  std::shared_ptr<const void> body_;
};

/// How an envelope is to be understood.
enum class mail_kind : std::uint8_t {
  tell = 0,    ///< no answer expected
  request = 1, ///< the receiver owes one answer with the same request number
  reply = 2,   ///< answer to a request
  failure = 3, ///< the request failed or bounced; body is proto::request_failed
};

/// A parcel with its label. `request` is unique per sending process incarnation, 0 for tell.
struct envelope {
  address to;
  address from;
  mail_kind kind = mail_kind::tell;
  std::uint64_t request = 0;
  instant deadline{};   ///< requests only; on the sender's clock, sent as remaining time
  epoch view{};         ///< membership view of the sender
  incarnation sender{}; ///< of the sending process; 0 = this process
  parcel body;
};

} // namespace di
