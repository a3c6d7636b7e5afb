// SPDX-License-Identifier: Apache-2.0
// Messages of the bus itself (0x00): answers that no actor wrote, down-notices, and what two buses
// tell each other.
#pragma once

#include "messaging/base/error.hpp"
#include "messaging/proto/message.hpp"

#include <string>
#include <vector>

namespace di::proto {

struct request_failed {
  static constexpr wire_id wire{0x0001};
  static constexpr std::string_view doc =
      "Answer in place of a reply: the request was refused, bounced or ran out of time.";
  ec code = ec::internal; ///< why, for programs
  std::string what;       ///< why, for people
  DI_FIELDS(request_failed, m.code, m.what)
};

struct actor_down {
  static constexpr wire_id wire{0x0002};
  static constexpr std::string_view doc =
      "Fact: a watched actor or process has ended; sent once per watch().";
  address path;           ///< as given to watch()
  incarnation life{};     ///< process that it lived in; 0: it was not known
  ec code = ec::internal; ///< why it ended; ec::ok: as planned
  std::string what;
  DI_FIELDS(actor_down, m.path, m.life, m.code, m.what)
};

struct watch_path {
  static constexpr wire_id wire{0x0003};
  static constexpr std::string_view doc =
      "Command of one bus to another: tell me once when `path` ends, at once if it is unknown.";
  address path;    ///< an actor below a prefix of the receiving process
  address watcher; ///< copied into the envelope that carries actor_down
  DI_FIELDS(watch_path, m.path, m.watcher)
};

struct hello {
  static constexpr wire_id wire{0x0004};
  static constexpr std::string_view doc =
      "Fact: first mail on a new link; says which life the sender is and how to reach it.";
  address prefix;     ///< of the sending process
  incarnation life{}; ///< of the sending process
  std::string control_endpoint;
  std::string bulk_endpoint;
  std::string curve_key;      ///< public key of the sender's sockets (Z85), empty on ipc
  bool reads_segment = false; ///< the sender has the receiver's send segment mapped for reading
  DI_FIELDS(hello, m.prefix, m.life, m.control_endpoint, m.bulk_endpoint, m.curve_key,
            m.reads_segment)
};

struct credit_granted {
  static constexpr wire_id wire{0x0005};
  static constexpr std::string_view doc =
      "Fact: the receiver of a link has taken everything up to these sequence numbers off it.";
  std::uint64_t control_sequence = 0; ///< of the last frame received on the control socket, 0: none
  std::uint64_t bulk_sequence = 0;    ///< of the last frame received on the bulk socket, 0: none
  DI_FIELDS(credit_granted, m.control_sequence, m.bulk_sequence)
};

struct life_refused {
  static constexpr wire_id wire{0x0006};
  static constexpr std::string_view doc =
      "Fact: a frame for another incarnation came here; the life it was meant for is no more.";
  incarnation meant{};   ///< receiver that the frame named
  incarnation present{}; ///< who got it
  DI_FIELDS(life_refused, m.meant, m.present)
};

/// One slot of the receiver's send segment, as its descriptor named it.
struct released_slot {
  std::uint64_t offset = 0; ///< [bytes]
  std::uint64_t generation = 0;
  DI_FIELDS(released_slot, m.offset, m.generation)
};

struct slots_released {
  static constexpr wire_id wire{0x0007};
  static constexpr std::string_view doc =
      "Fact: nobody in the sending process reads these slots of the receiver's send segment any "
      "more.";
  std::vector<released_slot> slots; ///< at most limits::segment_releases_max
  DI_FIELDS(slots_released, m.slots)
};

using bus_messages = type_list<request_failed, actor_down, watch_path, hello, credit_granted,
                               life_refused, slots_released>;

} // namespace di::proto
