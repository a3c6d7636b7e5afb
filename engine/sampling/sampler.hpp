// SPDX-License-Identifier: Apache-2.0
// Picks a token from a row of logits: masks, bias, penalties, temperature, filters, Gumbel noise,
// argmax, logprobs.
#pragma once

#include "engine/sampling/sampling_params.hpp"
#include "engine/sampling/token_history.hpp"
#include "messaging/base/ids.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace di::engine {

/// One row to pick a token from, and everything outside the parameters that the choice depends on.
struct sample_row {
  std::span<const float> logits;  ///< [vocab] as the model gave it; not changed
  std::uint32_t position = 0;     ///< absolute index of the token being picked, prompt included
  std::uint32_t choice = 0;       ///< [0, n) number of the completion
  std::uint32_t output_index = 0; ///< output tokens before this one, `pending` included
  const token_history* history = nullptr; ///< may be null if !needs_history()
  /// Draft tokens before this row that are not in the history yet.
  std::span<const token_id> pending = {};
  /// [ceil(vocab / 64)] bit set = allowed (grammar); empty = all.
  std::span<const std::uint64_t> mask = {};
  bool id_only = false; ///< no logprobs, whatever the parameters ask for (drafts)
};

/// A token and the value that logprobs_mode asks for.
struct token_logprob {
  token_id id = 0;
  double logprob = 0;
  friend bool operator==(const token_logprob&, const token_logprob&) = default;
};

/// What was picked.
struct token_choice {
  token_id id = 0;
  std::optional<double> logprob;  ///< of the picked token; present iff logprobs were asked for
  std::vector<token_logprob> top; ///< [logprobs] by value descending, then id ascending
  friend bool operator==(const token_choice&, const token_choice&) = default;
};

/// The tokens that filters leave: all with a greater scaled logit, and at equality those up to
/// `id`.
///
/// Every filter keeps a prefix of the order (logit descending, id ascending), so one pair says it
/// all.
struct filter_cut {
  double scaled = -std::numeric_limits<double>::infinity();
  token_id id = std::numeric_limits<token_id>::max();

  bool keeps(double value, token_id token) const noexcept {
    return value > scaled || (value == scaled && token <= id);
  }
};

/// Buffers for one thread; contents mean nothing between calls.
struct sample_scratch {
  struct patch {
    token_id id;
    double logit; ///< after bias and penalties, before temperature
  };
  struct candidate {
    double scaled;
    token_id id;
  };
  std::vector<float> row;            ///< copy of the row where masks or patches change it
  std::vector<float> maxima;         ///< per block of 256
  std::vector<patch> patches;        ///< tokens whose logit is not the row's
  std::vector<candidate> candidates; ///< tokens under a filter
  std::vector<std::uint64_t> masses; ///< per bucket of top_p
};

/// Picks tokens for one request. Immutable: the same row, place and history give the same token on
/// every machine, so preemption, migration and rejected drafts need no undo. One instance serves
/// all threads (one scratch each).
///
/// Order of the steps: masks (allowed_token_ids, mask, min_tokens) -> logit_bias -> repetition,
/// frequency, presence penalty -> temperature -> min_p -> top_k -> top_p over what top_k left ->
/// argmax of logit + noise, ties to the lowest id. A temperature below 1e-5 takes the argmax of the
/// penalised row.
/// @source   decode specification, C; noise in philox.hpp and det_math.hpp; slow twin in
/// slow_sampler.hpp
class sampler {
public:
  /// @param vocab     [tokens] length of every row
  /// @param eos_ids   tokens that end a text; kept out while output_index < min_tokens
  /// @errors          those of sampling_params::validate
  static result<sampler> make(sampling_params params, std::size_t vocab,
                              std::span<const token_id> eos_ids);

  /// Picks a token.
  ///
  /// @errors   ec::bad_shape (row or mask of another length), ec::bad_argument (masks leave no
  /// token),
  ///           ec::internal (the row holds NaN or +infinity)
  /// @cost     one pass over the row when greedy or without filters, two with top_p; see
  /// tests/bench/sampler_bench.cpp
  result<token_choice> pick(const sample_row& row, sample_scratch& scratch) const;

  /// Whether pick() reads the history (some penalty is on).
  bool needs_history() const noexcept { return penalised_; }

  const sampling_params& params() const noexcept { return params_; }

private:
  friend class row_picker;

  sampling_params params_;
  std::size_t vocab_ = 0;
  std::vector<token_id> ends_;    // sorted: eos ids and stop_token_ids
  std::vector<token_id> allowed_; // sorted: allowed_token_ids
  bool penalised_ = false;
};

} // namespace di::engine
