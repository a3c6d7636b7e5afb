// SPDX-License-Identifier: Apache-2.0
// GATEWAY for requests that clients wait for, and its desk: what the threads of the HTTP server use
// to submit, follow, leave, resume and cancel requests.
#pragma once

#include "actors/system.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace di::actors {

/// What becomes one open_request. `spec.request` and `spec.gateway` are set by the desk.
struct stream_order {
  proto::request_spec spec;
  std::string note;          ///< comes back with attach and get; at most 1 MiB
  std::string dedup;         ///< e.g. key and tenant; empty: none
  std::string dedup_digest;  ///< of the body
  std::uint64_t keep_ms = 0; ///< [ms] kept after its end: for get, attach and dedup
  /// [ms] goes on without a client, and is kept after its end at least; 0: cancelled at once
  std::uint64_t detached_ms = 0;
};

/// Gets what happens to a request. Called on the actor's thread (by a closed desk: on the
/// caller's): it must only hand over, never block and never call the desk back while it holds a
/// lock that its callers hold. The desk keeps it until ended(), known(), the last token of the last
/// choice, leave() or a newer listener of the request.
class stream_listener {
public:
  virtual ~stream_listener() = default;
  /// JOURNAL has it written down: it will be answered whatever dies. Before any token; not after
  /// attach.
  virtual void opened() = 0;
  /// Nothing was opened: another request has the same dedup. Attach to it if `same`. The last call.
  virtual void known(request_id request, bool same) = 0;
  /// Each index once, in order per choice. `end.reason` says that the choice is complete; with the
  /// end of the last choice nothing more comes.
  virtual void tokens(const proto::tokens_released& m) = 0;
  /// The request as a whole: refused, failed, cancelled, taken over by a newer listener
  /// (ec::moved), or this process stops (ec::unavailable). The last call.
  /// @param ask_again_ms  [ms] after which it makes sense to ask again; 0: it makes none
  virtual void ended(const proto::choice_end& why, std::uint32_t ask_again_ms) = 0;
};

struct desk_counts {
  std::size_t waiting = 0;         ///< submitted and not yet opened
  std::size_t open = 0;            ///< opened, with a client
  std::uint64_t finished = 0;      ///< answered to the end
  std::uint64_t failed = 0;        ///< refused or ended with an error
  std::uint64_t cancelled = 0;     ///< by cancel() or leave()
  std::uint64_t output_tokens = 0; ///< [tokens] handed to listeners
};

/// The desk of one GATEWAY. All calls from any thread; none blocks. Whatever is asked is carried
/// out in the order in which it was asked. Outlives the actor: a closed desk (the actor ended)
/// answers at once with ec::unavailable. Callbacks come once, on the actor's thread (closed desk:
/// the caller's).
class gateway_desk {
public:
  template <class Answer>
  using answer_fn = std::function<void(result<Answer>)>;

  virtual ~gateway_desk() = default;

  /// @return the number of the request: unique over all gateways and lives, below 2^63
  virtual request_id submit(stream_order order, std::shared_ptr<stream_listener> listener) = 0;
  /// Ends it for good, wherever it is and whoever listens: a listener here hears ended(cancelled).
  /// Also for requests of other gateways. Repeated until JOURNAL has it.
  virtual void cancel(request_id request) = 0;
  /// The same, but a listener here goes on to hear what JOURNAL still has, and then the end that it
  /// recorded in tokens(): what get() shows from then on.
  virtual void stop(request_id request) = 0;
  /// The client has gone: the listener hears nothing more. The request goes on for detached_ms
  /// (cancelled at once if that is 0).
  /// @param who  if given, and another listener has the request by now, nothing happens
  virtual void leave(request_id request, const std::shared_ptr<stream_listener>& who = nullptr) = 0;
  /// A stop string was found in the answer: the choice ends as stopped. Its tokens_released with
  /// the end comes as usual.
  virtual void end_choice(request_id request, std::uint32_t choice, std::uint32_t kept_tokens,
                          std::int32_t stop_index) = 0;
  /// Follows a request from now on, in place of whoever does; tokens come from index from[choice]
  /// on (0 where missing), after the answer. @errors not_found; unavailable (JOURNAL is away)
  virtual void attach(request_id request, std::vector<std::uint32_t> from,
                      std::shared_ptr<stream_listener> listener,
                      answer_fn<proto::request_attached> answer) = 0;
  /// What is recorded; steals nothing. @errors not_found; unavailable
  virtual void get(request_id request, answer_fn<proto::recorded_request> answer) = 0;
  /// Cancels it if it goes on, and keeps nothing of it. @errors unavailable
  virtual void forget(request_id request, answer_fn<proto::request_forgotten> answer) = 0;

  /// Requests that a client waits for: waiting and open.
  virtual std::size_t open() const = 0;
  virtual desk_counts counts() const = 0;
  /// No more requests: new ones end with ec::unavailable; those at hand go on. For good.
  virtual void drain() = 0;
};

struct stream_gateway_settings {
  address path = "/gateway/0";
  incarnation life{}; ///< of this process
  address journal = "/control/journal";
  std::uint32_t window = 4096;  ///< requests opened at a time; more wait at the desk
  std::uint32_t waiting = 4096; ///< requests that wait; more end with unavailable at once
  std::function<void(const error&)> ended; ///< once, when GATEWAY ends, whatever the reason
};

/// Spawns GATEWAY at settings.path. It also takes control_moved: whoever learns that the control
/// process is another life posts it to settings.path. @errors duplicate, unavailable
result<std::shared_ptr<gateway_desk>> spawn_stream_gateway(system& actors,
                                                           stream_gateway_settings settings);

} // namespace di::actors
