// SPDX-License-Identifier: Apache-2.0
// What a node process and its children say to each other over status_fd, a socket pair: JSON, one
// object per line, both ways. Children report (child_status, boot.hpp) and order (child_word); the
// node process tells (node_word). A descriptor may ride along with a node_word.
#pragma once

#include "launch/boot.hpp"
#include "launch/poll_loop.hpp"
#include "launch/process.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace di::launch {

/// Node process to child.
enum class node_word_kind : std::uint8_t {
  // to ranks and gateways
  control_is, ///< a control process started again: from now on it is `peer`
  // to ranks
  segment, ///< a neighbour started: `life`; the read-only descriptor of its segment rides along
  reaped,  ///< nothing is left of `life` of `rank`: what it held may be used again
  // to the control process
  rank_lost,    ///< certificate: `node`, `rank`, `life`, `what`; before it is reaped
  rank_stuck,   ///< `node`, `rank`, `life`, `phase`, `stuck_ms`, `what`
  rank_exited,  ///< reaped: `node`, `rank`, `life`, `state`, `what`; after rank_lost
  rank_started, ///< answer to start_rank: `number`, `node`, `rank`, `life`
  start_failed, ///< answer to start_rank: `number`, `node`, `rank`, `what`
  node_there,   ///< `node` takes orders (again)
  node_lost,    ///< `node` is gone with all its ranks; rank_lost and rank_exited of each come too
  admin,        ///< an operator's line: `number` names the connection, `what` is the line
  admin_gone,   ///< the operator of connection `number` has gone
  gateway_lost, ///< `number` is the gateway: `life`, `what`; without `what`: it drained, as told
  // to gateways
  processes, ///< of the run `number` of `rank` are ready; `what` names those that are not
  reload,    ///< `what` is the topology's text: take its limits, read the keys again
};
struct node_word {
  node_word_kind kind = node_word_kind::control_is;
  std::uint32_t node = 0, rank = 0;
  incarnation life{};
  std::uint64_t number = 0;
  std::uint32_t stuck_ms = 0;
  exit_state state;  ///< rank_exited
  std::string phase; ///< rank_stuck
  std::string what;  ///< for people: reason, words; admin: the line
  bus::peer peer;    ///< control_is
};
std::string to_json(const node_word& word); ///< without a line end
/// @errors bad_format
result<node_word> parse_node_word(std::string_view line);

/// Child to node process, besides its child_status lines. All are of the control process.
enum class child_word_kind : std::uint8_t {
  start_rank,  ///< a fresh life of `rank` on `node`; answered with `number`
  kill_rank,   ///< end `life` of `rank` on `node`: SIGKILL, or SIGTERM if `politely`; rank_exited
               ///< follows, at once if that life is gone
  admin_reply, ///< `what` is a line for connection `number`; `last`: then close it
};
struct child_word {
  child_word_kind kind = child_word_kind::start_rank;
  std::uint32_t node = 0, rank = 0;
  incarnation life{};
  std::uint64_t number = 0; ///< chosen by who asks; returned in the answer
  bool politely = false;
  bool last = false;
  std::string what;
};
std::string to_json(const child_word& word); ///< without a line end
/// @errors bad_format
result<child_word> parse_child_word(std::string_view line);
/// Whether a line of a child is a child_word; else it is a child_status.
bool is_child_word(std::string_view line) noexcept;

/// What a child does with what it is told. Called on the thread of the loop (the main thread).
using node_word_fn = std::function<void(const node_word&, unique_fd descriptor)>;

/// The child's end of the link, on status_fd.
///
/// Reports and orders: any thread; a line goes out whole. It waits for a node process that is slow
/// to read; one that is gone is not an error: the child gets SIGKILL anyway.
void report_status(const child_status& status);
void tell_node(const child_word& word);

/// Reads what a node process tells. Used on the loop's thread.
class node_listener {
public:
  /// Watches `fd` (status_fd) while it lives. What came before waits in the socket.
  node_listener(poll_loop& loop, node_word_fn heard, int fd = status_fd);
  ~node_listener();
  node_listener(const node_listener&) = delete;
  node_listener& operator=(const node_listener&) = delete;

private:
  void read();
  void take(std::string_view line);

  poll_loop& loop_;
  node_word_fn heard_;
  int fd_;
  std::string pending_;
  std::deque<unique_fd> descriptors_; ///< came with lines that are not complete yet
};

/// The node process's end: sends, never blocks; what the child does not take now waits. Used on the
/// loop's thread.
class child_speaker {
public:
  static constexpr std::size_t waiting_bytes_max = 64U << 20U; ///< then the link counts as broken

  child_speaker(poll_loop& loop, int fd) : loop_{loop}, fd_{fd} {}
  ~child_speaker();
  child_speaker(const child_speaker&) = delete;
  child_speaker& operator=(const child_speaker&) = delete;

  /// `descriptor` is duplicated if it has to wait; -1: none rides along.
  void send(const node_word& word, int descriptor = -1);

private:
  struct line {
    std::string text;
    unique_fd descriptor;
    std::size_t sent = 0;
  };
  bool flush();
  void retry();

  poll_loop& loop_;
  int fd_;
  std::deque<line> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::uint64_t timer_ = 0;
  bool broken_ = false;
};

} // namespace di::launch
