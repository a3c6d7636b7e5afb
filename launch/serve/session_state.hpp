// SPDX-License-Identifier: Apache-2.0
// What a session keeps; seen by session*.cpp only.
#pragma once

#include "launch/serve/session.hpp"

namespace di::serve {

/// Whether this token, if it is the last of a choice that stopped, ended it: then it is no text.
bool may_end(const proto::sampling_params& sampling, const served_model& model, token_id id);

/// The tokens of a recorded choice that are text.
std::span<const token_id> text_tokens(const proto::sampling_params& sampling,
                                      const served_model& model, const proto::recorded_choice& c);

/// Tokens of one choice that came together.
struct session_piece {
  std::size_t choice = 0; ///< of the session
  std::vector<token_id> tokens;
  std::vector<proto::position_logprobs> logprobs; ///< as tokens, or empty
  std::size_t at = 0;                             ///< tokens taken from here
  proto::choice_end end;                          ///< reason none: more will come
};

struct session::choice_state {
  std::size_t part = 0;
  std::uint32_t index = 0; ///< in its part, as the messages say
  std::optional<engine::answer_stream> stream;
  /// Reads tokens as they come, while `stream` waits for a slow client; only to find where the text
  /// ends the choice.
  std::optional<engine::answer_stream> ahead;
  std::optional<token_id> held;                         ///< may be the token that ends it
  std::optional<proto::position_logprobs> held_logprob; ///< of it
  bool readied = false;                                 ///< its first events are made
  bool told_end = false;                                ///< end_choice was sent
  bool last_came = false;                               ///< its end is in the queue, or behind us
  bool finished = false;                                ///< its last event is made
  std::uint32_t taken = 0;                              ///< [tokens] given to `stream`
  double logprob_sum = 0;                               ///< of the tokens taken, for best_of
  proto::choice_end end;
  proto::choice_timings timings;
};

struct session::part_state {
  request_id request; ///< 0: not known (any more)
  std::shared_ptr<listener> ear;
  std::shared_ptr<const engine::answer_recipe> recipe;
  std::size_t first_choice = 0, choices = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0;
  proto::sampling_params sampling;
  bool closed = false; ///< nothing more comes from the desk
};

struct session::state {
  enum class phase : std::uint8_t { starting, streaming, done };
  phase now = phase::starting;
  generation what; ///< of a started one; of a resumed one: how it is answered
  std::optional<resume_point> resumed;
  public_id id; ///< request and secret of the first part
  admission::ticket place;
  std::vector<part_state> parts;
  std::vector<choice_state> choices;
  std::deque<session_piece> queue;
  std::string out; ///< bytes of events not handed to the client yet
  bool writable = true;
  std::uint64_t tail = 0; ///< events that belong to no choice
  std::uint64_t tail_skip = 0;
  bool last_made = false; ///< the events behind those of all choices
  instant last_sent;
  std::optional<request_meter> meter;
  bool streams_counted = false;
  std::uint64_t park_ms = 0; ///< [ms] its place stays taken after it
};

} // namespace di::serve
