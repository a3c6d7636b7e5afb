// SPDX-License-Identifier: Apache-2.0
// Reads like the specification; shares only noise, exp and log with the fast path.
#include "engine/sampling/slow_sampler.hpp"

#include "engine/sampling/det_math.hpp"
#include "engine/sampling/philox.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace di::engine {
namespace {

constexpr double dropped = -std::numeric_limits<double>::infinity();

using dense = std::vector<double>; // [vocab]

void mask_row(const sampling_params& p, std::span<const token_id> eos_ids, const sample_row& row,
              dense& l) {
  for (std::size_t i = 0; i < l.size(); ++i) {
    const auto id = static_cast<token_id>(i);
    const auto in = [&](const auto& ids) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    const bool early_end = row.output_index < p.min_tokens && (in(p.stop_token_ids) || in(eos_ids));
    const bool not_allowed = p.allowed_token_ids && !in(*p.allowed_token_ids);
    const bool masked = !row.mask.empty() && (row.mask[i / 64] >> (i % 64) & 1) == 0;
    if (early_end || not_allowed || masked)
      l[i] = dropped;
  }
}

void penalise(const sampling_params& p, const sample_row& row, dense& l) {
  for (const auto& [id, bias] : p.logit_bias)
    l[static_cast<std::size_t>(id)] += bias;
  for (std::size_t i = 0; i < l.size(); ++i) {
    const auto id = static_cast<token_id>(i);
    const auto seen = row.history == nullptr ? token_history::counts{} : row.history->of(id);
    const double output =
        seen.output + static_cast<double>(std::count(row.pending.begin(), row.pending.end(), id));
    if (seen.prompt + output > 0)
      l[i] = l[i] > 0 ? l[i] / p.repetition_penalty : l[i] * p.repetition_penalty;
    l[i] -= p.frequency_penalty * output;
    if (output > 0)
      l[i] -= p.presence_penalty;
  }
}

void filter(const sampling_params& p, dense& l) {
  std::vector<std::size_t> order(l.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return l[a] > l[b] || (l[a] == l[b] && a < b); });
  const double highest = l[order[0]];
  if (p.min_p > 0)
    for (double& x : l)
      if (x < highest + det_log(std::max(p.min_p, std::numeric_limits<double>::min())))
        x = dropped;
  if (p.top_k > 0)
    for (std::size_t i = static_cast<std::size_t>(p.top_k); i < order.size(); ++i)
      l[order[i]] = dropped;
  if (p.top_p >= 1)
    return;
  const auto mass = [&](double x) {
    const double below = x - highest;
    return below < -40 ? std::uint64_t{0} : static_cast<std::uint64_t>(det_exp(below) * 0x1p40);
  };
  std::uint64_t total = 0;
  for (const double x : l)
    total += mass(x);
  // sum >= p * total, with p as the exact fraction that the double is (64 bits of mantissa suffice
  // for the product's top)
  __extension__ using wide = unsigned __int128;
  int exponent = 0;
  const auto mantissa = static_cast<std::uint64_t>(std::frexp(p.top_p, &exponent) * 0x1p53);
  const auto enough = [&](std::uint64_t sum) { // mantissa * 2^(exponent - 53) * total <= sum
    const int shift = 53 - exponent;
    return shift >= 70 ? sum > 0
                       : static_cast<wide>(mantissa) * total <= static_cast<wide>(sum) << shift;
  };
  std::uint64_t sum = 0;
  bool reached = false;
  for (const std::size_t i : order) {
    if (reached)
      l[i] = dropped;
    sum += mass(l[i]);
    reached = reached || enough(sum);
  }
}

void report_all(const dense& values, bool normalise, std::size_t count, token_choice& out) {
  const double highest = *std::max_element(values.begin(), values.end());
  std::array<double, 256> lanes{};
  for (std::size_t i = 0; i < values.size(); ++i)
    lanes[i % 256] += det_exp(values[i] - highest);
  for (std::size_t width = 128; width > 0; width /= 2)
    for (std::size_t i = 0; i < width; ++i)
      lanes[i] += lanes[i + width];
  const double norm = normalise ? highest + det_log(lanes[0]) : 0.0;
  for (std::size_t i = 0; i < values.size(); ++i)
    out.top.push_back({static_cast<token_id>(i), values[i] - norm});
  out.logprob = out.top[static_cast<std::size_t>(out.id)].logprob;
  std::sort(out.top.begin(), out.top.end(), [](const token_logprob& a, const token_logprob& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
  });
  out.top.resize(std::min(count, out.top.size()));
}

} // namespace

result<token_choice> pick_slowly(const sampling_params& params, std::span<const token_id> eos_ids,
                                 const sample_row& row) {
  const dense raw(row.logits.begin(), row.logits.end());
  dense l = raw;
  mask_row(params, eos_ids, row, l);
  penalise(params, row, l);
  if (*std::max_element(l.begin(), l.end()) == dropped)
    return fail(ec::bad_argument, "no token is allowed at position {}", row.position);
  if (!params.greedy()) {
    for (double& x : l)
      x /= params.temperature;
    filter(params, l);
  }
  token_choice out;
  double best = dropped;
  for (std::size_t i = 0; i < l.size(); ++i) {
    const noise_place place{params.seed, row.position, row.choice};
    const double noise = params.greedy()
                             ? 0.0
                             : gumbel(noise_words(place, static_cast<std::uint32_t>(i / 4))[i % 4]);
    if (l[i] + noise > best) {
      best = l[i] + noise;
      out.id = static_cast<token_id>(i);
    }
  }
  if (row.output_index < params.forced_ids.size())
    out.id = params.forced_ids[row.output_index];
  if (params.logprobs) {
    const bool raw_values = params.logprobs_values == logprobs_mode::raw_logprobs
                            || params.logprobs_values == logprobs_mode::raw_logits;
    const bool normalise = params.logprobs_values == logprobs_mode::raw_logprobs
                           || params.logprobs_values == logprobs_mode::processed_logprobs;
    report_all(raw_values ? raw : l, normalise, static_cast<std::size_t>(*params.logprobs), out);
  }
  return out;
}

} // namespace di::engine
