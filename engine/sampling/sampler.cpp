// SPDX-License-Identifier: Apache-2.0
// The fast path: the row stays fp32, the few tokens that bias and penalties touch stand beside it,
// filters become one cut, and noise is computed only where it could still win.
#include "engine/sampling/sampler.hpp"

#include "engine/sampling/det_math.hpp"
#include "engine/sampling/philox.hpp"
#include "engine/sampling/row_filter.hpp"
#include "engine/sampling/row_logprobs.hpp"
#include "engine/sampling/row_scan.hpp"

#include <algorithm>
#include <array>

namespace di::engine {
namespace {

constexpr float off = -std::numeric_limits<float>::infinity();
constexpr double off_double = -std::numeric_limits<double>::infinity();

// Step 4 for one token.
double penalised_logit(const sampling_params& p, double logit, token_history::counts seen) {
  if (seen.prompt + seen.output > 0)
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  logit -= p.frequency_penalty * seen.output;
  return seen.output > 0 ? logit - p.presence_penalty : logit;
}

} // namespace

// Works on one row. Lives for one call of pick().
class row_picker {
public:
  row_picker(const sampler& of, const sample_row& row, sample_scratch& scratch)
      : of_{of}, params_{of.params_}, row_{row}, scratch_{scratch}, base_{row.logits} {}

  result<token_choice> run() {
    if (row_.logits.size() != of_.vocab_)
      return fail(ec::bad_shape, "row of {} logits, the vocabulary has {}", row_.logits.size(),
                  of_.vocab_);
    if (!row_.mask.empty() && row_.mask.size() != (of_.vocab_ + 63) / 64)
      return fail(ec::bad_shape, "mask of {} words, {} tokens need {}", row_.mask.size(),
                  of_.vocab_, (of_.vocab_ + 63) / 64);
    apply_masks();
    apply_patches();
    if (!block_maxima(base_, scratch_.maxima) || bad_patch_)
      return fail(ec::internal, "the row at position {} holds NaN or +infinity", row_.position);
    DI_TRY_VOID(find_highest());
    token_choice out;
    const bool forced = row_.output_index < params_.forced_ids.size();
    if (!params_.greedy() && (!forced || wants_processed()))
      cut_ = find_cut(params_, prepared_, scratch_);
    out.id = forced ? params_.forced_ids[row_.output_index] : params_.greedy() ? highest() : draw();
    if (wants_logprobs())
      DI_TRY_VOID(report(out));
    return out;
  }

private:
  double scaled(double logit) const noexcept { return prepared_.scaled(logit); }
  double at(std::size_t i) const noexcept { return prepared_.at(i); }

  // ---- steps 2 to 4 ----

  std::vector<float>& own_row() { // the row as a copy that may be changed
    if (base_.data() == row_.logits.data()) {
      scratch_.row.assign(row_.logits.begin(), row_.logits.end());
      base_ = scratch_.row;
    }
    return scratch_.row;
  }

  void apply_masks() {
    if (params_.allowed_token_ids) {
      scratch_.row.assign(of_.vocab_, off);
      for (const token_id id : of_.allowed_)
        scratch_.row[static_cast<std::size_t>(id)] = row_.logits[static_cast<std::size_t>(id)];
      base_ = scratch_.row;
    }
    if (!row_.mask.empty()) {
      std::vector<float>& row = own_row();
      for (std::size_t i = 0; i < row.size(); ++i)
        if ((row_.mask[i / 64] >> (i % 64) & 1) == 0)
          row[i] = off;
    }
    if (row_.output_index < params_.min_tokens)
      for (const token_id id : of_.ends_)
        own_row()[static_cast<std::size_t>(id)] = off;
  }

  void apply_patches() {
    scratch_.patches.clear();
    if (of_.penalised_) {
      if (row_.history != nullptr)
        for (const auto& [id, counts] : row_.history->all())
          patch(id, counts);
      for (std::size_t i = 0; i < row_.pending.size(); ++i) {
        const token_id id = row_.pending[i];
        const bool again = std::find(row_.pending.begin(),
                                     row_.pending.begin() + static_cast<std::ptrdiff_t>(i), id)
                           != row_.pending.begin() + static_cast<std::ptrdiff_t>(i);
        const auto known = row_.history == nullptr ? token_history::counts{} : row_.history->of(id);
        if (!again && known.prompt + known.output == 0)
          patch(id, {});
      }
    }
    for (const auto& [id, bias] : params_.logit_bias)
      put_patch(id, static_cast<double>(own_row()[static_cast<std::size_t>(id)]) + bias);
  }

  double bias_of(token_id id) const {
    const auto& all = params_.logit_bias; // sorted by make()
    const auto it = std::lower_bound(all.begin(), all.end(), id,
                                     [](const auto& b, token_id t) { return b.first < t; });
    return it != all.end() && it->first == id ? it->second : 0.0;
  }

  void patch(token_id id, token_history::counts counts) {
    if (id < 0 || static_cast<std::size_t>(id) >= of_.vocab_) // a prompt may hold ids without a row
      return;
    counts.output +=
        static_cast<std::uint32_t>(std::count(row_.pending.begin(), row_.pending.end(), id));
    const auto logit = static_cast<double>(own_row()[static_cast<std::size_t>(id)]);
    put_patch(id, penalised_logit(params_, logit + bias_of(id), counts));
  }

  void put_patch(token_id id, double logit) {
    float& slot = own_row()[static_cast<std::size_t>(id)];
    bad_patch_ = bad_patch_ || !(slot <= std::numeric_limits<float>::max());
    if (slot != off) // masked tokens stay masked, and a patched one reads -infinity already
      scratch_.patches.push_back({id, logit});
    slot = off; // from here on the patch stands for this token
  }

  // ---- maximum ----

  result<void> find_highest() {
    highest_base_ = *std::max_element(scratch_.maxima.begin(), scratch_.maxima.end());
    highest_logit_ = static_cast<double>(highest_base_);
    for (const auto& p : scratch_.patches)
      highest_logit_ = std::max(highest_logit_, p.logit);
    if (highest_logit_ == off_double)
      return fail(ec::bad_argument, "no token is allowed at position {} (output {})", row_.position,
                  row_.output_index);
    prepared_ = {base_, scratch_.maxima, scratch_.patches,
                 params_.greedy() ? 1.0 : params_.temperature, 0.0};
    prepared_.highest = scaled(highest_logit_);
    return {};
  }

  token_id highest() const { // lowest id among equals
    token_id best = std::numeric_limits<token_id>::max();
    if (static_cast<double>(highest_base_) == highest_logit_) {
      const auto block = std::find(scratch_.maxima.begin(), scratch_.maxima.end(), highest_base_);
      const auto first =
          base_.begin()
          + (block - scratch_.maxima.begin()) * static_cast<std::ptrdiff_t>(row_block);
      best = static_cast<token_id>(std::find(first, base_.end(), highest_base_) - base_.begin());
    }
    for (const auto& p : scratch_.patches)
      if (p.logit == highest_logit_)
        best = std::min(best, p.id);
    return best;
  }

  // ---- step 9 ----

  token_id draw() {
    const auto first = static_cast<std::size_t>(
        std::max_element(scratch_.maxima.begin(), scratch_.maxima.end()) - scratch_.maxima.begin());
    visit(first); // a good score early spares most of the rest
    for (const auto& p : scratch_.patches)
      if (const double value = scaled(p.logit); reaches(value) && cut_.keeps(value, p.id))
        consider(value, p.id,
                 noise_words(place(), static_cast<std::uint32_t>(p.id)
                                          / 4)[static_cast<std::size_t>(p.id) % 4]);
    for (std::size_t b = 0; b < scratch_.maxima.size(); ++b)
      if (b != first)
        visit(b);
    return best_id_;
  }

  noise_place place() const noexcept { return {params_.seed, row_.position, row_.choice}; }

  // Whether a token of this value can still win, whatever its noise. Exact: rounding of sums keeps
  // their order.
  bool reaches(double value) const noexcept { return value + gumbel_max >= best_; }

  void visit(std::size_t block) {
    const double top = scaled(static_cast<double>(scratch_.maxima[block]));
    if (top == off_double || top < cut_.scaled || !reaches(top))
      return;
    const std::size_t end = std::min((block + 1) * row_block, base_.size());
    const bool whole = end == (block + 1) * row_block;
    if (whole
        && !block_can_win(&base_[block * row_block], prepared_.divisor, best_, place(),
                          static_cast<std::uint32_t>(block * row_block)))
      return;
    for (std::size_t quad = block * row_block; quad < end; quad += 4) {
      std::array<double, 4> values{off_double, off_double, off_double, off_double};
      bool any = false;
      for (std::size_t i = quad; i < std::min(quad + 4, end); ++i) {
        const double value = at(i);
        if (value != off_double && reaches(value) && cut_.keeps(value, static_cast<token_id>(i))) {
          values[i - quad] = value;
          any = true;
        }
      }
      if (!any)
        continue;
      const auto words = noise_words(place(), static_cast<std::uint32_t>(quad / 4));
      for (std::size_t i = 0; i < 4; ++i)
        if (values[i] != off_double)
          consider(values[i], static_cast<token_id>(quad + i), words[i]);
    }
  }

  void consider(double value, token_id id, std::uint32_t word) {
    if (value + gumbel_bound(word) < best_)
      return;
    const double score = value + gumbel(word);
    if (score > best_ || (score == best_ && id < best_id_)) {
      best_ = score;
      best_id_ = id;
    }
  }

  // ---- step 10 ----

  bool wants_logprobs() const noexcept { return params_.logprobs && !row_.id_only; }

  bool wants_processed() const noexcept {
    return wants_logprobs()
           && (params_.logprobs_values == logprobs_mode::processed_logprobs
               || params_.logprobs_values == logprobs_mode::processed_logits);
  }

  result<void> report(token_choice& out) {
    const auto count = static_cast<std::size_t>(*params_.logprobs);
    if (!wants_processed()) {
      if (base_.data() != row_.logits.data() && !block_maxima(row_.logits, scratch_.maxima))
        return fail(ec::internal, "the row at position {} holds NaN or +infinity", row_.position);
      report_row(row_.logits, scratch_.maxima,
                 params_.logprobs_values == logprobs_mode::raw_logprobs, count, out);
      return {};
    }
    std::vector<double> values(of_.vocab_, off_double);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (base_[i] != off && cut_.keeps(at(i), static_cast<token_id>(i)))
        values[i] = at(i);
    for (const auto& p : scratch_.patches)
      if (cut_.keeps(scaled(p.logit), p.id))
        values[static_cast<std::size_t>(p.id)] = scaled(p.logit);
    report_values(values, params_.logprobs_values == logprobs_mode::processed_logprobs, count, out);
    return {};
  }

  const sampler& of_;
  const sampling_params& params_;
  const sample_row& row_;
  sample_scratch& scratch_;
  std::span<const float> base_; // the caller's row or the copy in scratch
  prepared_row prepared_;       // the same with what the filters need
  bool bad_patch_ = false;      // a token that became a patch was NaN or +infinity
  float highest_base_ = off;
  double highest_logit_ = off_double; // over base and patches
  filter_cut cut_;
  double best_ = off_double;
  token_id best_id_ = std::numeric_limits<token_id>::max();
};

result<sampler> sampler::make(sampling_params params, std::size_t vocab,
                              std::span<const token_id> eos_ids) {
  DI_TRY_VOID(params.validate(vocab));
  sampler s;
  s.vocab_ = vocab;
  s.ends_.assign(params.stop_token_ids.begin(), params.stop_token_ids.end());
  s.ends_.insert(s.ends_.end(), eos_ids.begin(), eos_ids.end());
  std::sort(s.ends_.begin(), s.ends_.end());
  s.ends_.erase(std::unique(s.ends_.begin(), s.ends_.end()), s.ends_.end());
  if (!s.ends_.empty()
      && (s.ends_.front() < 0 || static_cast<std::size_t>(s.ends_.back()) >= vocab))
    return fail(ec::bad_argument, "eos id {} or {} lies outside [0, {})", s.ends_.front(),
                s.ends_.back(), vocab);
  if (params.allowed_token_ids)
    s.allowed_ = *params.allowed_token_ids;
  std::sort(s.allowed_.begin(), s.allowed_.end());
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  s.penalised_ = params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0
                 || params.presence_penalty != 0.0;
  s.params_ = std::move(params);
  return s;
}

result<token_choice> sampler::pick(const sample_row& row, sample_scratch& scratch) const {
  return row_picker{*this, row, scratch}.run();
}

} // namespace di::engine
