// SPDX-License-Identifier: Apache-2.0
// Messages of GATEWAY (0x01): what clients may ask and what it learns about their requests.
#pragma once

#include "messaging/proto/sampling.hpp"

namespace di::proto {

struct tokens_released {
  static constexpr wire_id wire{0x0101};
  static constexpr std::string_view doc =
      "Fact of JOURNAL: these tokens are recorded and may be shown. Sent again until "
      "release_acknowledged covers them. Overload: bounded by accepted commits.";
  request_id request;
  std::uint32_t choice = 0;
  std::uint32_t first_index = 0;           ///< output index of tokens[0]
  std::vector<token_id> tokens;            ///< may be empty if `end` says that it ended
  std::vector<position_logprobs> logprobs; ///< one per token if asked for, else empty
  choice_end end;                          ///< reason none: more will come
  choice_timings timings;                  ///< complete when it ended
  std::uint32_t attempts = 1;              ///< how many ranks have worked on it
  rank_id rank;                            ///< that computed the last of them
  std::uint32_t cached_tokens = 0; ///< [tokens] of the prompt that its first attempt had cached
  DI_FIELDS(tokens_released, m.request, m.choice, m.first_index, m.tokens, m.logprobs, m.end,
            m.timings, m.attempts, m.rank, m.cached_tokens)
};

struct request_closed {
  static constexpr wire_id wire{0x0102};
  static constexpr std::string_view doc =
      "Fact of JOURNAL: the request ended as a whole without tokens: refused, failed or cancelled; "
      "choices that had ended stay as they are. Overload: one per request.";
  request_id request;
  choice_end end;                 ///< reason error or cancelled
  std::uint32_t ask_again_ms = 0; ///< [ms] nothing was opened: it may be asked for again then; 0:
                                  ///< that would not help
  DI_FIELDS(request_closed, m.request, m.end, m.ask_again_ms)
};

struct start_batch {
  static constexpr wire_id wire{0x0103};
  static constexpr std::string_view doc =
      "Command: the cluster serves; begin with the prompts of the batch. Overload: once per run.";
  DI_FIELDS(start_batch)
};

struct batch_finished {
  static constexpr wire_id wire{0x0104};
  static constexpr std::string_view doc =
      "Fact of GATEWAY: every prompt of the batch has its answer written. Overload: once per run.";
  std::uint64_t prompts = 0;       ///< lines that were requests
  std::uint64_t failed = 0;        ///< lines refused, and requests that ended with an error
  std::uint64_t prompt_tokens = 0; ///< [tokens]
  std::uint64_t output_tokens = 0; ///< [tokens]
  std::uint64_t elapsed_us = 0;    ///< [us] start_batch until the last answer
  DI_FIELDS(batch_finished, m.prompts, m.failed, m.prompt_tokens, m.output_tokens, m.elapsed_us)
};

struct get_gateway {
  static constexpr wire_id wire{0x0105};
  static constexpr std::string_view doc = "Question: how far is GATEWAY. Overload: none.";
  DI_FIELDS(get_gateway)
};

struct gateway_state {
  static constexpr wire_id wire{0x0106};
  static constexpr std::string_view doc = "Answer to get_gateway.";
  std::uint64_t waiting = 0;       ///< requests read and not yet opened
  std::uint64_t open = 0;          ///< requests opened and not ended
  std::uint64_t finished = 0;      ///< requests ended
  std::uint64_t failed = 0;        ///< of them, with an error
  std::uint64_t output_tokens = 0; ///< [tokens] received
  DI_FIELDS(gateway_state, m.waiting, m.open, m.finished, m.failed, m.output_tokens)
};

struct drain_batch {
  static constexpr wire_id wire{0x0107};
  static constexpr std::string_view doc =
      "Command: submit no more requests; those not yet submitted are refused, running ones finish. "
      "Overload: once per run, repeating it changes nothing.";
  DI_FIELDS(drain_batch)
};

struct desk_rang {
  static constexpr wire_id wire{0x0108};
  static constexpr std::string_view doc =
      "Fact for GATEWAY of other threads of its process: orders wait at its desk. Overload: one "
      "until GATEWAY has taken them.";
  DI_FIELDS(desk_rang)
};

using gateway_messages = type_list<tokens_released, request_closed, start_batch, batch_finished,
                                   get_gateway, gateway_state, drain_batch, desk_rang>;

} // namespace di::proto
