// SPDX-License-Identifier: Apache-2.0
// GATEWAY as the front end of `dilaunch run`: a file of prompts in, a line per prompt out, in the
// order of the file, written as soon as it is known.
#pragma once

#include "actors/kit.hpp"
#include "engine/core/batch_io.hpp"
#include "engine/core/gateway_core.hpp"

#include <functional>
#include <memory>
#include <string>

namespace di::actors {

struct batch_parts {
  engine::gateway_options options; ///< `delivered` is set from lines_written
  engine::batch work;
  std::size_t lines_written = 0; ///< by an earlier life; they are not written again
  std::size_t lines_failed = 0;  ///< of them
  bool resumable = false;        ///< another run may go on: what has no answer gets no line
  std::shared_ptr<const engine::tokenizer> words; ///< null: outputs have no text
  std::vector<token_id> eos_ids;
  /// Writes one output line with its end. An error ends the actor.
  std::function<result<void>(std::string_view)> write;
  /// Shows progress now and then; empty: nothing. One short text without a line end.
  std::function<void(std::string_view)> show;
  duration show_every = std::chrono::milliseconds{200};
  /// Once, after the last line is written; `failed` counts refused lines too.
  std::function<void(const proto::batch_finished&)> finished;
  /// Once, if the actor ends before the batch does: how many of how many lines have no answer.
  /// Before the lines that say so are written.
  std::function<void(std::size_t unanswered, std::size_t lines)> broke_off;
};

/// Lines of requests that ended early wait for those before them; if the actor ends before the
/// batch does, they are written then, and each request that has not ended gets a line that says so.
class batch_gateway_actor {
public:
  explicit batch_gateway_actor(batch_parts parts);
  ~batch_gateway_actor();
  batch_gateway_actor(const batch_gateway_actor&) = delete;
  batch_gateway_actor& operator=(const batch_gateway_actor&) = delete;

  result<void> on(const proto::start_batch& m, instant now, outbox& out);
  result<void> on(const proto::placement_settled& m, instant now, outbox& out);
  result<void> on(const proto::drain_batch& m, instant now, outbox& out);
  result<void> on(const proto::request_opened& m, instant now, outbox& out);
  result<void> on(const proto::request_closed& m, instant now, outbox& out);
  result<void> on(const proto::tokens_released& m, instant now, outbox& out);
  result<proto::gateway_state> on(const proto::get_gateway& m) const { return core_.on(m); }
  result<void> on_due(timer which, instant now, outbox& out);
  void check() const { core_.check(); }

private:
  enum timer_kind : std::uint32_t { show_due = 100 };
  result<void> begin(instant now, outbox& out);
  result<void> write_and_finish(instant now, outbox& out);
  result<void> write_ready(outbox& out);
  result<void> write_line(const std::string& line);
  void break_off();
  void show(instant now);
  void finish_if_done(instant now);

  batch_parts parts_;
  std::vector<engine::batch_entry> entries_;
  std::size_t refused_ = 0;
  std::size_t failed_before_ = 0; ///< lines of requests that failed in an earlier life
  engine::gateway_core core_;
  std::size_t written_ = 0; ///< entries
  instant began_;
  bool begun_ = false, finished_ = false, write_failed_ = false, draining_ = false;
};

struct batch_gateway {
  static constexpr auto kind = "batch_gateway";
  using core = batch_gateway_actor;
  using protocol = di::protocol<reacts_to<proto::start_batch>,       // begin
                                reacts_to<proto::placement_settled>, // begin: the cluster serves
                                reacts_to<proto::drain_batch>,       // submit no more
                                reacts_to<proto::request_opened>,    // it exists
                                reacts_to<proto::request_closed>,    // it does not, or failed
                                reacts_to<proto::tokens_released>,   // tokens of it
                                replies_to<proto::get_gateway>::with<proto::gateway_state>>;
};

/// Ready for system::spawn() at parts.options' gateway path.
std::unique_ptr<core_handle> make_batch_gateway(batch_parts parts);

/// A `write` for a descriptor: whole lines, retried until all bytes are out.
/// @errors io_error; cancelled: nobody reads any more (a closed pipe)
std::function<result<void>(std::string_view)> descriptor_writer(int fd);

} // namespace di::actors
