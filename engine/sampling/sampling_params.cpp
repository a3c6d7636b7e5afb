// SPDX-License-Identifier: Apache-2.0
// Range checks, one field after the other.
#include "engine/sampling/sampling_params.hpp"

#include "messaging/base/utf8.hpp"

#include <algorithm>
#include <span>
#include <string_view>

namespace di::engine {
namespace {

// Written so that NaN fails.
result<void> in_range(std::string_view field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    return fail(ec::bad_argument, "{}: {} lies outside [{}, {}]", field, value, low, high);
  return {};
}

result<void> above_zero(std::string_view field, double value, double high) {
  if (!(value > 0 && value <= high))
    return fail(ec::bad_argument, "{}: {} lies outside (0, {}]", field, value, high);
  return {};
}

result<void> ids_in_vocab(std::string_view field, std::span<const token_id> ids,
                          std::size_t vocab) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= vocab)
      return fail(ec::bad_argument, "{}[{}]: token id {} lies outside [0, {})", field, i, ids[i],
                  vocab);
  return {};
}

result<void> check_bias(const std::vector<std::pair<token_id, double>>& bias, std::size_t vocab) {
  std::vector<token_id> ids;
  for (const auto& [id, value] : bias) {
    DI_TRY_VOID(in_range("logit_bias[" + std::to_string(id) + "]", value, -100, 100));
    ids.push_back(id);
  }
  DI_TRY_VOID(ids_in_vocab("logit_bias", ids, vocab));
  std::sort(ids.begin(), ids.end());
  if (const auto it = std::adjacent_find(ids.begin(), ids.end()); it != ids.end())
    return fail(ec::bad_argument, "logit_bias: token id {} is given twice", *it);
  return {};
}

result<void> check_stops(const std::vector<std::string>& stops) {
  if (stops.size() > sampling_limits::stop_strings_max)
    return fail(ec::limit_exceeded, "stop: {} strings, at most {}", stops.size(),
                sampling_limits::stop_strings_max);
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::string& s = stops[i];
    if (s.empty())
      return fail(ec::bad_argument, "stop[{}]: is empty", i);
    if (s.size() > sampling_limits::stop_string_bytes)
      return fail(ec::limit_exceeded, "stop[{}]: {} bytes, at most {}", i, s.size(),
                  sampling_limits::stop_string_bytes);
    if (const std::size_t good = utf8_valid_prefix(s); good != s.size())
      return fail(ec::bad_argument, "stop[{}]: is not UTF-8 at byte {}", i, good);
  }
  return {};
}

} // namespace

result<void> sampling_params::validate(std::size_t vocab) const {
  if (vocab == 0 || vocab > sampling_limits::vocab_max)
    return fail(ec::limit_exceeded, "vocab: {} tokens, expected 1 to {}", vocab,
                sampling_limits::vocab_max);
  DI_TRY_VOID(in_range("temperature", temperature, 0, 2));
  DI_TRY_VOID(above_zero("top_p", top_p, 1));
  if (top_k < -1)
    return fail(ec::bad_argument, "top_k: {} is below -1", top_k);
  DI_TRY_VOID(in_range("min_p", min_p, 0, 1));
  DI_TRY_VOID(in_range("presence_penalty", presence_penalty, -2, 2));
  DI_TRY_VOID(in_range("frequency_penalty", frequency_penalty, -2, 2));
  DI_TRY_VOID(above_zero("repetition_penalty", repetition_penalty, 100));
  DI_TRY_VOID(check_bias(logit_bias, vocab));
  if (logprobs)
    DI_TRY_VOID(in_range("logprobs", *logprobs, 0, sampling_limits::logprobs_max));
  DI_TRY_VOID(in_range("n", n, 1, sampling_limits::choices_max));
  if (max_tokens == 0)
    return fail(ec::bad_argument, "max_tokens: 0, at least 1");
  if (min_tokens > max_tokens)
    return fail(ec::bad_argument, "min_tokens: {} is above max_tokens {}", min_tokens, max_tokens);
  DI_TRY_VOID(ids_in_vocab("stop_token_ids", stop_token_ids, vocab));
  DI_TRY_VOID(check_stops(stop));
  if (allowed_token_ids) {
    if (allowed_token_ids->empty())
      return fail(ec::bad_argument, "allowed_token_ids: is empty, no token could be chosen");
    DI_TRY_VOID(ids_in_vocab("allowed_token_ids", *allowed_token_ids, vocab));
  }
  return ids_in_vocab("forced_ids", forced_ids, vocab);
}

} // namespace di::engine
