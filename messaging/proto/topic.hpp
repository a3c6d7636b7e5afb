// SPDX-License-Identifier: Apache-2.0
// Messages of TOPIC (0x0D): who listens to which facts.
#pragma once

#include "messaging/proto/message.hpp"

#include <string>

namespace di {

/// Where facts for all who listen are sent: `out.send(topic_address, step_finished{…})`. TOPIC in
/// the control process hands them on by their name.
inline constexpr const char* topic_address = "/control/topic";

} // namespace di

namespace di::proto {

struct subscribe {
  static constexpr wire_id wire{0x0D01};
  static constexpr std::string_view doc =
      "Command: from now on send every fact of this name to `subscriber`. Repeating it changes "
      "nothing. Overload: bounded number of subscriptions, then the command is dropped and "
      "counted.";
  std::string fact;   ///< name of a message, e.g. "step_finished"
  address subscriber; ///< path of an actor; a restarted one goes on under the same path
  DI_FIELDS(subscribe, m.fact, m.subscriber)
};

struct unsubscribe {
  static constexpr wire_id wire{0x0D02};
  static constexpr std::string_view doc =
      "Command: ends a subscription; an unknown one is ignored. Overload: none.";
  std::string fact;
  address subscriber;
  DI_FIELDS(unsubscribe, m.fact, m.subscriber)
};

using topic_messages = type_list<subscribe, unsubscribe>;

} // namespace di::proto
