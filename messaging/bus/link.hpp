// SPDX-License-Identifier: Apache-2.0
// The way to one life of one process: a control and a bulk dealer, opened by the first mail, their
// queues, credits and the watch over the connection.
//
//   state      event                          next       effect
//   opening    handshake done                 up         hello goes first
//   opening    connect_grace is over          lost       pending requests bounce
//   opening    disconnected, on one host      opening    tried again
//   opening    handshake refused              lost       pending requests bounce at once
//   up         disconnected                   doubtful   grace begins
//   doubtful   handshake done                 up         hello again
//   doubtful   grace is over                  lost       pending requests bounce, watchers told
//   lost       handshake done                 up         hello again, mail is taken again
#pragma once

#include "messaging/base/env.hpp"
#include "messaging/base/error.hpp"
#include "messaging/bus/post_office.hpp"
#include "messaging/bus/send_segment.hpp"
#include "messaging/bus/zmq_socket.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace di::bus {

/// The two socket classes.
enum class lane : std::uint8_t { control = 0, bulk = 1 };
inline constexpr std::size_t lanes = 2;

/// A mail that is ready to leave.
struct outgoing {
  std::vector<std::byte> frame;          ///< made by wire::make_frame
  std::vector<shared_bytes> attachments; ///< that travel as frames
  slot_lease slot;                       ///< else where they lie
  std::uint64_t request = 0; ///< bounces if the mail cannot leave; 0 for tells and answers
  std::uint64_t bytes = 0;   ///< frame and attachments, as counted against the credit
  bool first = false; ///< a hello: goes before all others, alone, on a lane of its own choice
};

/// Counters shared by all threads of a post office.
struct bus_counters {
  std::atomic<std::uint64_t> sent{0}, received{0}, dropped{0}, bounced{0};
  std::atomic<std::uint64_t> bytes_sent{0}, bytes_received{0}, frames_sent{0};
  std::atomic<std::uint64_t> batches_sent{0}, batched_mails_sent{0};
  std::atomic<std::uint64_t> attachment_bytes_sent{0}, attachment_bytes_copied{0},
      attachment_bytes_realigned{0};
  std::atomic<std::uint64_t> malformed{0}, stale_frames{0}, sequence_gaps{0}, peers_lost{0},
      keys_refused{0};
  std::atomic<std::uint64_t> segment_mails_sent{0}, segment_bytes_sent{0},
      segment_mails_received{0}, segment_full{0}, segment_refused{0}, segment_overwritten{0};
};

/// What all links of a post office share.
struct link_options {
  peer self;
  curve_keys keys;
  std::array<std::size_t, lanes> credit_bytes{};
  std::array<std::size_t, lanes> credit_mails{};
  duration connect_grace{};
  duration grace_ipc{};
  duration grace_tcp{};
};

class link {
public:
  enum class event { none, came_back, lost, refused };

  link(peer who, const link_options& options, bus_counters& counters);

  // --- any thread -----------------------------------------------------------------------------
  const peer& who() const noexcept { return who_; }
  bool lost() const noexcept { return lost_.load(); }
  /// Counts a mail against the credit of its lane. False: no credit, nothing was counted. A mail
  /// larger than the whole credit passes when nothing else is in flight.
  bool reserve(lane l, std::uint64_t bytes) noexcept;
  /// Counts a mail that needs no credit.
  void count(lane l, std::uint64_t bytes) noexcept;

  // --- bus thread -----------------------------------------------------------------------------
  /// True once per lane: its first mail is coming, and a hello goes before it.
  bool needs_hello(lane l) noexcept { return !std::exchange(lane_of(l).greeted, true); }
  /// Appends to a lane's queue.
  void queue(lane l, outgoing&& mail);
  /// Gives the credit of a mail back that will not be queued.
  void drop(lane l, const outgoing& mail) noexcept;
  void mark_lost() noexcept { lost_.store(true); }
  /// Opens a lane's socket at its first mail and sends what the socket takes.
  /// @errors io_error: the endpoint cannot be used at all
  result<void> flush(lane l, void* context);
  /// True if mail waits for the socket to take it: poll for output.
  bool waits(lane l) const noexcept { return !lane_of(l).mails.empty() && lane_of(l).to_peer; }
  bool open(lane l) const noexcept { return static_cast<bool>(lane_of(l).to_peer); }
  void* socket_of(lane l) const noexcept { return lane_of(l).to_peer.raw(); }
  void* monitor() const noexcept { return monitor_.raw(); }
  int sockets_open() const noexcept {
    return (open(lane::control) ? 1 : 0) + (open(lane::bulk) ? 1 : 0) + (monitor_ ? 1 : 0);
  }
  int registered = 0; ///< sockets that the bus thread waits for
  bool dirty = false; ///< in the bus thread's list of links to flush
  /// Reads monitor events. Gives at most one verdict; call again until none.
  event read_monitor(instant now);
  /// The verdict of time.
  event on_time(instant now);
  std::optional<instant> next_due() const;
  /// Frees what the peer has received, up to a sequence number.
  void granted(lane l, std::uint64_t sequence);
  /// A lane that waits for credit shall ask for it: true at most every credit_probe_wait.
  bool asks_for_credit(lane l, instant now);
  /// More than half of a lane's credit is in flight, or a mail found none: grants must come, or be
  /// asked for.
  bool short_of_credit() const noexcept;
  /// Drops queued mail and closes the sockets. Gives the request numbers of what was dropped.
  std::vector<std::uint64_t> close(bool linger);
  std::vector<std::uint64_t> drop_queued();

  std::atomic<bool> learned{false};       ///< made from a hello, no route names it; goes when lost
  std::atomic<bool> reads_segment{false}; ///< the peer said that it reads our send segment

private:
  struct unacknowledged {
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    std::uint32_t mails = 0;
  };
  struct lane_state {
    socket to_peer;
    std::deque<outgoing> mails;
    std::deque<unacknowledged> sent;
    std::uint64_t next_sequence = 1;
    std::atomic<std::uint64_t> bytes_in_flight{0}, mails_in_flight{0};
    std::atomic<bool> starved{false}; ///< a mail found no credit since the last question for it
    instant asked{};
    bool greeted = false;
  };

  lane_state& lane_of(lane l) noexcept { return lanes_[static_cast<std::size_t>(l)]; }
  const lane_state& lane_of(lane l) const noexcept { return lanes_[static_cast<std::size_t>(l)]; }
  result<void> open_lane(lane l, void* context);
  std::size_t batch_length(const lane_state& s) const noexcept;
  bool send_batch(lane_state& s, std::size_t count);
  bool send_one(lane_state& s);
  bool short_of_credit(lane l) const noexcept;
  void note_sent(lane_state& s, std::uint64_t bytes, std::size_t mails);
  void forget(lane_state& s, std::uint64_t bytes, std::uint64_t mails) noexcept;

  const peer who_;
  const link_options& options_;
  bus_counters& counters_;
  std::array<lane_state, lanes> lanes_;
  socket monitor_;
  std::atomic<bool> lost_{false};
  bool was_up_ = false;
  std::optional<instant> doubtful_until_;
};

} // namespace di::bus
