// SPDX-License-Identifier: Apache-2.0
// Decisions of the batch GATEWAY: submits the requests of a batch through a bounded window and
// collects their tokens, each once. Reads and writes no file; actors/batch_gateway.hpp does.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/gateway.hpp"
#include "messaging/proto/journal.hpp"
#include "messaging/proto/outbox.hpp"

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace di::engine {

/// How one request of a batch is submitted.
struct submit_options {
  /// A request of another phase than the one before it waits until all before it have ended.
  std::uint32_t phase = 0;
  bool token_times = false; ///< collected_choice::token_us is kept
};

struct gateway_options {
  address journal = "/control/journal";
  address finished_to;        ///< gets batch_finished; empty: nobody
  std::uint32_t window = 128; ///< requests open at a time
  duration resend_after = std::chrono::milliseconds{500};
  /// A request past its deadline is ended here if JOURNAL, which ends it first, is not heard of for
  /// so long.
  duration deadline_grace = std::chrono::milliseconds{500};
  std::vector<submit_options> submit; ///< as the requests; empty: all as the default
  bool keep = false; ///< JOURNAL keeps answers until delivered(), for another life of this
  /// JOURNAL may forget what is delivered; false: it is the only place that keeps answers.
  bool tell_delivered = true;
  std::size_t delivered = 0; ///< so many of the first requests an earlier life delivered
  /// A request that JOURNAL cannot open now is asked for again, for so long; then it fails.
  duration ask_again_for{};
};

/// One choice of a finished request.
struct collected_choice {
  std::vector<token_id> tokens; ///< all that were released; end.kept_tokens of them are the answer
  std::vector<proto::position_logprobs> logprobs; ///< as tokens, or empty
  proto::choice_end end;
  proto::choice_timings timings; ///< as the rank measured
  std::uint32_t attempts = 1;
  std::uint64_t first_token_us = 0;    ///< [us] submitted until the first token was released
  std::uint64_t total_us = 0;          ///< [us] submitted until it ended
  std::uint64_t submitted_us = 0;      ///< [us] start of the batch until it was submitted
  std::vector<std::uint64_t> token_us; ///< [us] start of the batch until each token, if wanted
  /// With token_us: from which token on which rank computed them.
  std::vector<std::pair<std::uint32_t, rank_id>> served_by;
};

/// Requests end in any order and are handed out in the order of the batch.
///
///   waiting --window--> submitted --request_opened--> open --all choices ended--> finished
///   submitted | open --request_closed--> finished (with an error)
///   submitted | open --deadline and grace--> finished (with an error; JOURNAL is told to cancel)
///
/// Owned by one shell, used on its thread only.
class gateway_core {
public:
  /// @param requests  the batch; spec.request distinct, sampling.n at least 1
  gateway_core(gateway_options options, std::vector<proto::request_spec> requests);

  result<void> on(const proto::start_batch& m, instant now, outbox& out);
  result<void> on(const proto::placement_settled& m, instant now, outbox& out);
  result<void> on(const proto::drain_batch& m, instant now, outbox& out);
  result<void> on(const proto::request_opened& m, instant now, outbox& out);
  result<void> on(const proto::request_closed& m, instant now, outbox& out);
  result<void> on(const proto::tokens_released& m, instant now, outbox& out);
  result<proto::gateway_state> on(const proto::get_gateway&) const { return state(); }
  result<void> on_due(timer which, instant now, outbox& out);

  /// Choices of the next request of the batch, once it has finished; then of the one behind it.
  std::optional<std::vector<collected_choice>> take_finished();
  /// What is there of the next request even if it has not finished; for the end of a broken run.
  std::optional<std::vector<collected_choice>> take_anyway();
  /// The answer that was taken last, or one that an earlier life delivered, needs nobody's care.
  void delivered(std::size_t request, outbox& out) const;
  std::size_t taken() const noexcept { return taken_; }
  bool done() const noexcept { return finished_ == entries_.size(); }
  proto::gateway_state state() const;
  void check() const;

private:
  enum timer_kind : std::uint32_t { resend_due = 1, deadline_due = 2 };
  enum class phase : std::uint8_t { waiting, submitted, open, finished };
  struct entry {
    proto::request_spec spec;
    phase state = phase::waiting;
    std::vector<collected_choice> choices;
    instant submitted, sent;
  };

  void begin(instant now, outbox& out);
  submit_options submit_of(std::size_t request) const;
  void submit_more(instant now, outbox& out);
  void finish(entry& e, instant now, outbox& out);
  void end_rest(entry& e, const proto::choice_end& end, instant now, outbox& out);
  entry* find(request_id id);

  gateway_options options_;
  std::vector<entry> entries_;
  std::map<request_id, std::size_t> index_;
  std::size_t next_ = 0, open_ = 0, finished_ = 0, taken_ = 0;
  std::uint64_t failed_ = 0, output_tokens_ = 0, prompt_tokens_ = 0;
  bool begun_ = false;
  instant began_;
};

} // namespace di::engine
