// SPDX-License-Identifier: Apache-2.0
// What a request may ask of the choice of tokens and of its end, and the check of every field.
#pragma once

#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace di::engine {

/// Bounds of sampling_params.
namespace sampling_limits {
inline constexpr std::int32_t logprobs_max = 20;  ///< entries per token
inline constexpr std::uint32_t choices_max = 128; ///< n
inline constexpr std::size_t stop_strings_max =
    64; ///< strings; each costs automaton nodes per request
inline constexpr std::size_t stop_string_bytes = 1024; ///< [bytes] of one stop string
inline constexpr std::size_t vocab_max = 1U
                                         << 18; ///< [tokens] so that 2^40 per token sums below 2^58
} // namespace sampling_limits

/// Which values `logprobs` reports.
enum class logprobs_mode : std::uint8_t {
  raw_logprobs,       ///< log softmax of the row as the model gave it (default)
  raw_logits,         ///< the row as the model gave it
  processed_logprobs, ///< after masks, bias, penalties, temperature and filters; dropped tokens are
                      ///< -infinity
  processed_logits,   ///< the same without normalising
};

/// Parameters of one request. A plain value: copied to the rank that serves the request and into
/// the journal.
struct sampling_params {
  double temperature = 1.0;                            ///< [0, 2]; below 1e-5 greedy
  double top_p = 1.0;                                  ///< (0, 1]
  std::int32_t top_k = 0;                              ///< 0 or -1: off
  double min_p = 0.0;                                  ///< [0, 1]; 0: off
  double presence_penalty = 0.0;                       ///< [-2, 2]; output tokens only
  double frequency_penalty = 0.0;                      ///< [-2, 2]; output tokens only
  double repetition_penalty = 1.0;                     ///< (0, 100]; prompt and output tokens
  std::vector<std::pair<token_id, double>> logit_bias; ///< value in [-100, 100]; each id once
  std::uint64_t seed = 0; ///< drawn at admission if the client gave none, and returned
  std::optional<std::int32_t> logprobs; ///< [0, 20] entries beside the chosen token; absent: none
  logprobs_mode logprobs_values = logprobs_mode::raw_logprobs;
  std::uint32_t n = 1; ///< [1, 128] completions
  std::uint32_t min_tokens = 0;
  std::uint32_t max_tokens = 16; ///< at least 1
  bool ignore_eos = false;
  std::vector<token_id> stop_token_ids;
  std::vector<std::string> stop; ///< not empty strings, UTF-8
  bool include_stop_str =
      false; ///< the stop string, or the text of the stop token, stays in the output
  std::optional<std::vector<token_id>> allowed_token_ids; ///< nothing else may be chosen
  std::vector<token_id>
      forced_ids; ///< teacher forcing: output token i is forced_ids[i]; then sampled as usual

  bool greedy() const noexcept { return temperature < 1e-5; }

  /// Checks every field against its range.
  ///
  /// @param vocab   [tokens] rows of the output matrix; ids must lie below
  /// @errors        ec::bad_argument or ec::limit_exceeded; the text begins with the field's name
  result<void> validate(std::size_t vocab) const;
};

} // namespace di::engine
