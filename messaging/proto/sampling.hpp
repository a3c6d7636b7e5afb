// SPDX-License-Identifier: Apache-2.0
// What a request asks for, as it travels inside messages of GATEWAY, JOURNAL, SCHEDULER and RANK;
// no message of its own.
#pragma once

#include "messaging/base/error.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/proto/message.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace di::proto {

/// Why a choice ended.
enum class finish_reason : std::uint8_t {
  none = 0,      ///< it goes on
  stop = 1,      ///< end-of-sequence token, stop token or stop string
  length = 2,    ///< max_tokens, the context or the forced tokens are used up
  error = 3,     ///< it failed; a code and a text say why
  cancelled = 4, ///< the client withdrew it
};

/// How the rows of a prompt are computed (design: section 6); recorded, so that a resumed attempt
/// repeats it.
enum class prefill_mode : std::uint8_t {
  full = 0,    ///< all rows through all layers
  compact = 1, ///< layers after the last KV source run only the last `keep_rows`
};

/// Whether KV of an earlier prompt may be used.
enum class prefix_mode : std::uint8_t { off = 0, exact = 1, bounded = 2 };

struct token_bias {
  token_id token = 0;
  double bias = 0; ///< added to the logit; in [-100, 100]
  DI_FIELDS(token_bias, m.token, m.bias)
};

/// How tokens are drawn and when a choice ends. Filters run in the order bias, penalties,
/// temperature, min_p, top_k, top_p. @source decode specification C.4, F.1
struct sampling_params {
  std::uint32_t max_tokens = 16; ///< [tokens] per choice
  std::uint32_t min_tokens = 0;  ///< [tokens] before which nothing ends a choice but max_tokens
  std::uint32_t n = 1;           ///< [choices]
  double temperature = 1.0;      ///< below 1e-5: the likeliest token
  double top_p = 1.0;            ///< (0, 1]
  std::uint32_t top_k = 0;       ///< [tokens]; 0: off
  double min_p = 0;              ///< [0, 1]
  double presence_penalty = 0;   ///< [-2, 2], over the output
  double frequency_penalty = 0;  ///< [-2, 2], over the output
  double repetition_penalty = 1; ///< > 0, over prompt and output
  std::vector<token_bias> logit_bias;
  std::int32_t logprobs = -1;    ///< alternatives per token; 0: the chosen one only; -1: none
  std::uint64_t seed = 0;        ///< GATEWAY draws one if the client gave none
  std::vector<std::string> stop; ///< strings that end a choice; not part of its text
  std::vector<token_id> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;        ///< a stop string stays in the text
  std::vector<token_id> forced_ids; ///< teacher forcing: output token i is forced_ids[i]
  DI_FIELDS(sampling_params, m.max_tokens, m.min_tokens, m.n, m.temperature, m.top_p, m.top_k,
            m.min_p, m.presence_penalty, m.frequency_penalty, m.repetition_penalty, m.logit_bias,
            m.logprobs, m.seed, m.stop, m.stop_token_ids, m.ignore_eos, m.include_stop,
            m.forced_ids)
};

/// All that a rank must know to compute a request, whatever the attempt.
struct request_spec {
  request_id request;
  address gateway;              ///< who gets the tokens
  std::vector<token_id> prompt; ///< [prompt tokens] at least one
  sampling_params sampling;
  prefill_mode prefill = prefill_mode::full;
  std::uint32_t keep_rows = 0; ///< [rows] of compact prefill; 0: the model's default
  prefix_mode prefix = prefix_mode::off;
  std::string prefix_salt;         ///< only requests with the same one share cached prefixes
  std::uint32_t prefix_tokens = 0; ///< [tokens] of the recorded hit: H of mode bounded
  bool prefix_recorded = false;    ///< an earlier attempt emitted tokens behind that hit (0: behind
                                   ///< none), so this one computes under the same floors
  bool speculate = true;           ///< may draft; never changes the output
  std::int32_t drafts = 0; ///< [drafts] if it may: 0 as its rank is set, -1 as many as pay, else so
                           ///< many in each step
  std::string contract;    ///< contract id that the answer is promised under; empty: any
  std::uint64_t deadline_ms = 0; ///< [ms] after opening at which it is given up; 0: none
  std::int32_t priority = 0;     ///< [-10, 10]; higher goes first
  std::string tenant;            ///< whose quota it counts against
  DI_FIELDS(request_spec, m.request, m.gateway, m.prompt, m.sampling, m.prefill, m.keep_rows,
            m.prefix, m.prefix_salt, m.prefix_tokens, m.prefix_recorded, m.speculate, m.drafts,
            m.contract, m.deadline_ms, m.priority, m.tenant)
};

/// What a choice has emitted already, for a rank that continues it.
struct choice_progress {
  std::uint32_t choice = 0;     ///< [0, n)
  std::vector<token_id> tokens; ///< committed, in order
  bool finished = false;        ///< nothing left to do for it
  DI_FIELDS(choice_progress, m.choice, m.tokens, m.finished)
};

/// Log probabilities at one output position.
struct position_logprobs {
  double logprob = 0;               ///< of the chosen token
  std::vector<token_id> top_tokens; ///< likeliest first, ties to the lower id
  std::vector<double> top_logprobs; ///< one per top_tokens
  DI_FIELDS(position_logprobs, m.logprob, m.top_tokens, m.top_logprobs)
};

/// How a choice ended.
struct choice_end {
  finish_reason reason = finish_reason::none;
  std::int32_t stop_index = -1;  ///< which stop string matched; -1: none did
  std::uint32_t kept_tokens = 0; ///< [tokens] of the answer; a stop string may cut some
  ec code = ec::ok;              ///< of reason error
  std::string what;              ///< of reason error
  DI_FIELDS(choice_end, m.reason, m.stop_index, m.kept_tokens, m.code, m.what)
};

/// Where a choice spent its time on its rank.
struct choice_timings {
  std::uint64_t queued_us = 0;  ///< [us] assigned until its first row ran
  std::uint64_t prefill_us = 0; ///< [us] first row until first token
  std::uint64_t decode_us = 0;  ///< [us] first token until last
  DI_FIELDS(choice_timings, m.queued_us, m.prefill_us, m.decode_us)
};

} // namespace di::proto
