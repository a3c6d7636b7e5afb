// SPDX-License-Identifier: Apache-2.0
// One generation between its client and the cluster: orders to the desk, tokens to events, events
// to a stream or one body; also what was begun on another connection or gateway.
//
//   starting  --opened------------> waiting   (no header is sent: a refusal still gets its status)
//   waiting   --tokens | silence--> streaming (headers, events; comments while it is silent)
//   waiting | streaming --all choices ended--> done (body, or [DONE])
//   any       --refused, failed---> done (status, or one error event)
//   any       --client gone-------> done (cancelled; or left, if it may come back)
//
// Tokens wait as ids while the client is slow, and become events when its buffer drains.
#pragma once

#include "engine/chat/answer.hpp"
#include "launch/serve/public_id.hpp"
#include "launch/serve/service.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace di::serve {

/// What GATEWAY stores with a request, so that any gateway continues or repeats its answer.
struct session_note {
  engine::answer_recipe recipe; ///< without id: public_id has it
  std::uint64_t secret = 0;     ///< of the public id
  bool stream = false;          ///< how it was asked for
  engine::json extra;           ///< of the route (stored responses); null: nothing

  std::string to_text() const;
  static result<session_note> from_text(std::string_view text);
};

/// A generation to be started.
struct generation {
  engine::answer_recipe recipe; ///< without id; of all prompts together: n is prompts times n
  std::vector<std::vector<token_id>> prompts; ///< [prompts] each becomes one request
  std::vector<std::string> echoes;            ///< [prompts] or empty: recipe.echo_text of each
  proto::request_spec spec; ///< of each request, without prompt; sampling.max_tokens is resolved
  bool stream = false;
  std::uint64_t keep_ms = 0;        ///< [ms] kept after its end; see stream_order
  std::uint64_t detached_ms = 0;    ///< [ms] goes on without its client
  bool leave_on_disconnect = false; ///< else a client that leaves cancels it
  std::string dedup, dedup_digest;  ///< Idempotency-Key; empty: none
  engine::json extra;               ///< becomes session_note::extra
  /// Last look at the whole answer, or at the data of each event; may be empty.
  std::function<void(engine::json&)> shape_answer;
  std::function<void(engine::answer_event&)> shape_event;
  /// Keeps the best of sampling.n: so many of them are shown; 0: all.
  std::uint32_t best_of = 0;
};

/// What is left of a request for someone who comes back to it.
struct resume_point {
  public_id answer;
  std::vector<std::uint64_t> seen; ///< [choices] events the client has; missing: 0
  std::uint64_t tail = 0;
  bool stream = true;
};

/// Lives on the thread of its client's connection; the service owns it until it is done.
class session : public std::enable_shared_from_this<session> {
public:
  /// Starts a generation whose answer goes to the call's client. The call's ticket is kept until
  /// the end.
  static void start(service& home, call_ptr from, generation what, admission::ticket place);

  /// Continues (or repeats from its record) an answer for a client that knows its id.
  /// 404 if there is no such request of this tenant.
  static void resume(service& home, call_ptr from, resume_point where, admission::ticket place,
                     std::function<void(engine::json&)> shape_answer = {},
                     std::function<void(engine::answer_event&)> shape_event = {});

  ~session();
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  /// A comment, if nothing was sent for so long. Any thread.
  void tick();
  /// Lets go of the service, which ends; the HTTP server has stopped.
  void abandon();

private:
  class listener;
  struct choice_state;
  struct part_state;
  session(service& home, call_ptr from);

  // orders and their fate (session_orders.cpp)
  void submit(generation what);
  void known(std::size_t part, request_id request, bool same);
  void ended(std::size_t part, const proto::choice_end& why, std::uint32_t ask_again_ms);
  void follow(std::size_t part, session_note note, proto::recorded_request record);
  void replay(std::size_t part, proto::recorded_request record);
  void attach(std::size_t part);
  void watch_client();
  void client_gone(http::gone why);
  void withdraw(bool may_return);

  // tokens to events to bytes (session.cpp)
  void make_streams(std::size_t part, const std::shared_ptr<const engine::answer_recipe>& recipe);
  void take(std::size_t part, proto::tokens_released m);
  void look_ahead(choice_state& c);
  void end_here(choice_state& c, std::uint32_t tokens, std::int32_t stop_index);
  void give(choice_state& c, token_id id, const proto::position_logprobs* logprob);
  bool advance(choice_state& c);
  void end_choice(choice_state& c, const proto::choice_end& end);
  void finish_choice(choice_state& c);
  void pump();
  void send(choice_state* from, engine::answer_events events);
  bool begin_stream();
  void flush();
  void drained();
  void complete();
  void fail(const api_error& e);
  void done();
  served_end how_it_ended() const;

  // whole answers (session_answer.cpp)
  engine::answer_events last_events() const;
  void make_last_events();
  std::string whole_body() const;
  std::vector<std::size_t> best_choices() const;

  service& home_;
  call_ptr call_;
  std::shared_ptr<const serve_settings> settings_;
  struct state;
  std::unique_ptr<state> state_;
};

/// Starts a generation that no connection waits for (Responses: background). `told` gets the
/// request, or why it was refused; on any thread, once.
void submit_detached(service& home, generation what,
                     std::function<void(std::variant<public_id, api_error>)> told);

/// The whole answer as far as it is recorded: what a GET shows.
engine::json recorded_answer(const service& home, const session_note& note, const public_id& id,
                             const proto::recorded_request& record);

/// What GATEWAY finds of a request that a client names.
struct found_request {
  session_note note;
  proto::recorded_request record;
};

/// [bytes] that are read to show its answer: of the note and the tokens.
std::size_t found_bytes(const proto::recorded_request& record);

/// Asks for a recorded request of this client: 404 as api_error if there is none with this secret
/// and tenant. A large note is read aside. `told` runs on the thread of the call's connection.
void look_up(service& home, call_ptr from, const public_id& id,
             std::function<void(std::variant<found_request, api_error>)> told);

} // namespace di::serve
