// SPDX-License-Identifier: Apache-2.0
// The closed set of error codes and the error value that travels with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace di {

/// What went wrong, for programs. `error::what` says it for people, with numbers.
enum class ec : std::uint8_t {
  ok = 0,            ///< no error; only ever seen inside messages that carry an outcome
  bad_argument,      ///< a caller or a command line gave a value outside its range
  bad_config,        ///< config.json or a topology contradicts itself or the model's rules
  bad_format,        ///< a file or message is not what its format demands
  bad_shape,         ///< a tensor has another shape or element type than the model needs
  not_found,         ///< a name, file, tensor, address or id that does not exist
  duplicate,         ///< a name or id that must be unique exists twice
  io_error,          ///< the operating system refused a read, write, map or socket call
  limit_exceeded,    ///< a bound of limits.hpp or of the configuration would be passed
  context_exceeded,  ///< prompt plus requested tokens do not fit the model's context
  kv_exhausted,      ///< no page or sequence slot is free
  unavailable,       ///< the receiver exists but cannot serve now; try again later
  peer_lost,         ///< the receiving process is gone; the request was bounced
  deadline_exceeded, ///< no answer before the request's deadline
  stale_incarnation, ///< the message is for, or from, an incarnation that is no more
  stale_epoch,       ///< the message belongs to an older view or placement
  moved,             ///< the expert lives elsewhere; the placement in the answer is newer
  unknown_message,   ///< a wire id that this build does not know
  corrupt,           ///< a checksum or length does not match its content
  refused,           ///< the receiver will not do this: authentication, policy or drain
  cancelled,         ///< the caller withdrew the request
  device_lost,       ///< the compute device failed; the process must end
  gave_up,           ///< a supervisor used up its restart budget
  internal,          ///< a bug: an invariant of this program does not hold
};

/// Name of a code as written in logs and reports, e.g. "kv_exhausted".
std::string_view to_string(ec code) noexcept;

/// A code and one sentence with numbers. Never holds `ec::ok`.
struct error {
  ec code = ec::internal;
  std::string what;

  /// "code: what"
  std::string render() const;
  friend bool operator==(const error&, const error&) = default;
};

} // namespace di
