// SPDX-License-Identifier: Apache-2.0
// The only thread of a process that touches sockets: takes mail from all threads, batches it per
// peer, receives, and keeps time for deadlines and links. Sleeps in the kernel when idle.
#pragma once

#include "messaging/bus/fault_gate.hpp"
#include "messaging/bus/link.hpp"
#include "messaging/bus/socket_poll.hpp"
#include "messaging/bus/wake_event.hpp"
#include "messaging/bus/zap_handler.hpp"
#include "messaging/wire/frame.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

namespace di::bus {

/// What the bus thread tells its post office. All calls come on the bus thread.
class bus_events {
public:
  virtual ~bus_events() = default;
  /// A checked frame for this life. `label` and `body` are valid during the call.
  virtual void on_mail(const wire::frame_label& label, std::span<const std::byte> body,
                       std::span<shared_bytes> attachments) = 0;
  /// True if the segment of this life can be read here.
  virtual bool reads_segment_of(incarnation writer) const = 0;
  /// Attachments that lie in the sender's segment.
  virtual result<void> fetch(incarnation writer, const wire::segment_slot& slot,
                             std::span<const std::uint64_t> sizes,
                             std::vector<shared_bytes>& out) = 0;
  /// A mail whose attachments cannot be read.
  virtual void on_unreadable(const wire::frame_label& label, const error& why) = 0;
  /// True for lives that were replaced or removed.
  virtual bool retired(incarnation life) const = 0;
  /// A frame for another life came from `sender`.
  virtual void on_stale(incarnation sender, incarnation meant) = 0;
  /// The link gave up on its peer (or the peer refused our key).
  virtual void on_lost(const std::shared_ptr<link>& l, const error& reason) = 0;
  /// A request that was queued cannot leave any more.
  virtual void on_unsent(std::uint64_t request, const error& reason) = 0;
  /// Carries out what is due; gives the next time.
  virtual std::optional<instant> on_time(instant now) = 0;
  /// The peer shall know what has arrived from it.
  virtual void on_grant_due(incarnation to, std::uint64_t control_sequence,
                            std::uint64_t bulk_sequence) = 0;
};

struct bus_thread_options {
  link_options links;
  std::string control_endpoint, bulk_endpoint; ///< to bind; empty: no sockets
  std::string advertised_host;
  std::vector<std::string> allowed_keys;
  std::size_t peers = 0;
  int io_threads = 1;
};

class bus_thread {
public:
  bus_thread(bus_thread_options options, bus_events& events, bus_counters& counters);
  ~bus_thread();

  /// Binds and starts; afterwards options().links.self has the endpoints in use.
  result<void> start();
  /// Sends what is queued for at most limits::linger, then ends the thread.
  void stop();

  // --- any thread -----------------------------------------------------------------------------
  void send(std::shared_ptr<link> to, lane l, outgoing&& mail);
  void close(std::shared_ptr<link> l);
  /// Connects without mail, so that the end of the peer is seen.
  void open(std::shared_ptr<link> l);
  void allow_key(const std::string& public_key) { zap_.allow(public_key); }
  /// Looks at deadlines again.
  void wake();
  const link_options& links() const noexcept { return options_.links; }

private:
  enum class action { mail, open, close };
  struct posted {
    action what = action::mail;
    std::shared_ptr<link> to;
    lane which = lane::control;
    outgoing mail;
  };
  struct incoming {
    std::array<std::uint64_t, lanes> last{};
    std::array<std::uint64_t, lanes> granted{};
    std::array<std::uint64_t, lanes> bytes{}, mails{}; ///< since the last grant
  };

  result<void> bind_router(lane l);
  void run();
  void take_posted();
  void poll(instant until, bool sleep);
  void take_signal(std::uint64_t key);
  /// False if it stopped early: more is there.
  bool receive(lane l);
  void take_message(lane l, std::string_view routing_id, std::vector<part>& parts);
  /// take_message(), with the faults that are in force.
  void take_faulty(lane l, std::string_view routing_id, std::vector<part>& parts);
  void take_held(instant now);
  bool fetch(std::string_view routing_id, const wire::frame_view& frame);
  void take_single(lane l, std::string_view routing_id, std::vector<part>& parts);
  void take_batch(lane l, std::string_view routing_id, std::span<const std::byte> bytes);
  bool admit(lane l, std::string_view routing_id, incarnation sender, incarnation receiver,
             std::uint64_t sequence, bool hello);
  void account(lane l, incarnation sender, std::uint64_t bytes, std::uint64_t mails, bool hello);
  void malformed(std::string_view routing_id, const error& why);
  void say_hello(link& l, lane which);
  void tend_links(instant now);
  void judge(const std::shared_ptr<link>& l, link::event verdict);
  void unsent(const std::vector<std::uint64_t>& requests, const error& reason);
  void shut_down();
  void flush_links();
  void flush(const std::shared_ptr<link>& l);
  void mark_dirty(const std::shared_ptr<link>& l);
  result<void> register_sockets(link& l);
  std::vector<std::uint64_t> close_sockets(link& l);
  void post(posted&& p);
  std::optional<instant> next_link_due(instant now) const;

  bus_thread_options options_;
  bus_events& events_;
  bus_counters& counters_;
  context context_;
  zap_handler zap_;
  std::array<socket, lanes> routers_;
  wake_event wake_;
  std::unique_ptr<fault_gate> faults_;  ///< null: none can be in force
  std::atomic<bool> look_again_{false}; ///< deadlines have changed since they were looked at
  std::unordered_map<link*, std::shared_ptr<link>> open_; ///< links with sockets or mail
  // With many peers most links have nothing to do in a turn, and only those that have are touched.
  std::vector<std::shared_ptr<link>> dirty_;     ///< mail was queued, or may be sent again
  std::vector<std::shared_ptr<link>> events_of_; ///< their monitors have something
  bool tend_all_ = true;                         ///< look at every link's time and credit
  std::optional<instant> links_due_;             ///< when to do that at the latest
  std::array<bool, lanes> readable_{};           ///< routers that may have mail
  std::unordered_map<incarnation, incoming> incoming_;
  socket_poll sockets_;
  std::vector<part> parts_;
  std::vector<shared_bytes> fetched_; ///< of the mail being taken
  std::vector<posted> batch_;         ///< swapped with posted_

  std::mutex guard_; ///< for the two below
  std::vector<posted> posted_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace di::bus
