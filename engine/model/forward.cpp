// SPDX-License-Identifier: Apache-2.0
// One step: rows in, layer after layer with a stop at each MoE, logits out.
#include "engine/model/forward.hpp"

#include "engine/model/attention_site.hpp"
#include "engine/model/engram_site.hpp"
#include "engine/model/moe_site.hpp"
#include "engine/model/residual_streams.hpp"
#include "engine/model/row_cut.hpp"
#include "engine/model/step_context.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace di::engine {

namespace {

class cpu_forward final : public forward {
public:
  cpu_forward(const loaded_model& model, const kernels::op_table& ops, kernels::stream& stream)
      : step_{model, ops, stream}, spec_{model.spec()} {}

  result<step_state> start(std::span<const step_segment> segments) override;
  const expert_demand& demand() const override { return moe_.demand(); }
  result<void> work_while_waiting() override { return moe_.run_shared(step_); }
  result<step_state> resume() override;
  std::span<const float> logits(std::size_t segment) const override;
  void attach_probe(step_probe* probe) override { step_.probe = probe; }
  std::span<const bf16> taps(std::size_t segment) const override;
  void want_taps(bool wanted) override { want_taps_ = wanted; }

private:
  result<void> admit(std::span<const step_segment> segments) const;
  result<void> admit_floors(std::size_t i, const step_segment& s) const;
  void lay_out(std::span<const step_segment> segments);
  void embed();
  void tap(std::int64_t layer);
  result<void> cut();
  result<step_state> run_to_experts();
  result<step_state> finish();
  result<void> make_logits();

  step_context step_;
  const model_spec& spec_;
  attention_site attention_;
  engram_site engram_;
  moe_site moe_;
  row_cut cut_;
  std::int64_t layer_ = 0;
  bool open_ = false; ///< a demand is out

  residual_streams streams_;
  std::vector<token_id> tokens_; ///< [rows]
  buffer<bf16> normed_, y_;      ///< [rows, hidden]
  buffer<bf16> taps_;            ///< [rows, targets, hidden]
  std::span<const bf16> taps_view_;
  bool want_taps_ = false;
  std::int64_t last_tap_ = -1;             ///< layer; taps follow the rows up to there
  std::vector<segment_rows> tap_segments_; ///< rows that the taps are of

  struct logit_rows {
    std::int64_t first = 0, rows = 0; ///< within logits_
  };
  std::vector<logit_rows> wanted_; ///< [segments]
  buffer<bf16> head_in_;           ///< [rows wanted, hidden]
  buffer<float> logits_;           ///< [rows wanted, vocab]
};

/// Rows that have no windows, or no logits although they are wanted.
result<void> cpu_forward::admit_floors(std::size_t i, const step_segment& s) const {
  if (s.first_position < s.sequence->floors().encoder)
    return fail(ec::bad_argument, "segment {} starts at position {}, below its floor {}", i,
                s.first_position, s.sequence->floors().encoder);
  const auto end = static_cast<std::int64_t>(s.first_position + s.tokens.size());
  const std::int64_t first = s.logits == logits_wanted::all    ? s.first_position
                             : s.logits == logits_wanted::last ? end - 1
                                                               : end;
  const std::int64_t floor = s.sequence->row_floor(spec_.num_hidden_layers - 1);
  if (first < end && first < floor)
    return fail(ec::bad_argument,
                "segment {} wants logits at position {}, rows below {} do not reach the head", i,
                first, floor);
  return {};
}

result<void> cpu_forward::admit(std::span<const step_segment> segments) const {
  if (segments.empty())
    return fail(ec::bad_argument, "a step needs at least one row");
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const step_segment& s = segments[i];
    if (s.sequence == nullptr || s.tokens.empty())
      return fail(ec::bad_argument, "segment {} of the step has no sequence or no rows", i);
    if (s.first_position != s.sequence->length())
      return fail(ec::bad_argument, "segment {} starts at position {}, its sequence is at {}", i,
                  s.first_position, s.sequence->length());
    for (std::size_t j = 0; j < i; ++j)
      if (segments[j].sequence == s.sequence)
        return fail(ec::bad_argument, "segments {} and {} are of the same sequence", j, i);
    const auto end = static_cast<std::int64_t>(s.first_position + s.tokens.size());
    if (end > spec_.max_position_embeddings)
      return fail(ec::context_exceeded, "{} positions do not fit the context of {}", end,
                  spec_.max_position_embeddings);
    DI_TRY_VOID(admit_floors(i, s));
    for (const token_id token : s.tokens)
      if (token < 0 || token >= spec_.vocab_size)
        return fail(ec::bad_argument, "token id {} is outside the vocabulary of {}", token,
                    spec_.vocab_size);
  }
  for (const step_segment& s : segments)
    DI_TRY_VOID(s.sequence->reserve(static_cast<std::int64_t>(s.first_position + s.tokens.size())));
  return {};
}

void cpu_forward::lay_out(std::span<const step_segment> segments) {
  step_.segments.clear();
  wanted_.clear();
  step_.rows = 0;
  std::int64_t wanted = 0;
  for (const step_segment& s : segments) {
    segment_rows segment;
    segment.sequence = s.sequence;
    segment.first_row = step_.rows;
    segment.rows = static_cast<std::int64_t>(s.tokens.size());
    segment.first_position = segment.start_position = s.first_position;
    segment.tokens = s.tokens;
    segment.logits = s.logits;
    step_.rows += segment.rows;
    step_.segments.push_back(segment);
    const std::int64_t rows = s.logits == logits_wanted::none  ? 0
                              : s.logits == logits_wanted::all ? segment.rows
                                                               : 1;
    wanted_.push_back({wanted, rows});
    wanted += rows;
  }
  std::int32_t* positions = step_.positions.ensure(step_.rows);
  for (const segment_rows& segment : step_.segments)
    for (std::int64_t r = 0; r < segment.rows; ++r)
      positions[segment.first_row + r] = static_cast<std::int32_t>(segment.first_position + r);
}

void cpu_forward::embed() {
  tokens_.clear();
  for (const segment_rows& segment : step_.segments)
    tokens_.insert(tokens_.end(), segment.tokens.begin(), segment.tokens.end());
  streams_.embed(step_, tokens_);
  normed_.ensure(step_.rows * spec_.hidden_size);
  y_.ensure(step_.rows * spec_.hidden_size);
}

/// Mean over the streams, for the draft layers of a later step.
void cpu_forward::tap(std::int64_t layer) {
  const auto index = spec_.tap_index(layer);
  if (!want_taps_ || !index)
    return;
  if (layer == last_tap_)
    tap_segments_ = step_.segments;
  const std::int64_t hidden = spec_.hidden_size;
  const std::int64_t streams = spec_.hc_mult;
  const auto targets = static_cast<std::int64_t>(spec_.dspark_target_layer_ids.size());
  bf16* taps = taps_.ensure(step_.rows * targets * hidden);
  taps_view_ = {taps, static_cast<std::size_t>(step_.rows * targets * hidden)};
  for (std::int64_t row = 0; row < step_.rows; ++row) {
    const bf16* x = streams_.data() + row * streams * hidden;
    bf16* out = taps + (row * targets + static_cast<std::int64_t>(*index)) * hidden;
    for (std::int64_t d = 0; d < hidden; ++d) {
      float sum = 0;
      for (std::int64_t s = 0; s < streams; ++s)
        sum += std::bit_cast<float>(static_cast<std::uint32_t>(x[s * hidden + d]) << 16);
      const auto bits = std::bit_cast<std::uint32_t>(sum / static_cast<float>(streams));
      out[d] = static_cast<bf16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
    }
  }
}

/// Rows that no layer from here on needs leave the step once they have written what others read.
result<void> cpu_forward::cut() {
  if (!cut_.find(step_, layer_))
    return {};
  const attention_weights& w = step_.model.layers()[static_cast<std::size_t>(layer_)].attention;
  const std::int64_t hidden = spec_.hidden_size;
  DI_TRY_VOID(streams_.collapse(step_));
  DI_TRY_VOID(normalise(step_, streams_.input(), w.norm, step_.rows, hidden, normed_.data()));
  if (const bf16* leaving = cut_.publish(step_, normed_.data()); leaving != nullptr)
    DI_TRY_VOID(attention_.publish(step_, layer_, leaving));
  cut_.keep(step_);
  const auto streams = static_cast<std::size_t>(spec_.hc_mult);
  const auto width = static_cast<std::size_t>(hidden) * sizeof(bf16);
  cut_.compact(streams_.data(), streams * width);
  cut_.compact(streams_.weights(), streams * sizeof(float));
  attention_.compact(cut_, spec_);
  if (!taps_view_.empty() && layer_ < last_tap_)
    cut_.compact(taps_.data(), static_cast<std::size_t>(spec_.taps_width()) * sizeof(bf16));
  return {};
}

result<step_state> cpu_forward::run_to_experts() {
  const layer_weights& w = step_.model.layers()[static_cast<std::size_t>(layer_)];
  DI_TRY_VOID(engram_.run(step_, layer_, streams_.data()));
  step_.visit(layer_, "X_in", streams_.data(), spec_.stream_width());
  tap(layer_);
  DI_TRY_VOID(cut());
  if (step_.rows == 0)
    return finish();

  DI_TRY_VOID(streams_.enter(step_, layer_, w.attention_mix, w.attention.norm,
                             residual_streams::attention_names, normed_.data()));
  DI_TRY_VOID(attention_.run(step_, layer_, normed_.data(), y_.data()));
  DI_TRY_VOID(streams_.update(step_, y_.data()));
  DI_TRY_VOID(streams_.enter(step_, layer_, w.ffn_mix, w.moe.norm, residual_streams::ffn_names,
                             normed_.data()));
  DI_TRY_VOID(moe_.ask(step_, layer_, normed_.data()));
  open_ = true;
  return step_state::needs_experts;
}

result<step_state> cpu_forward::start(std::span<const step_segment> segments) {
  open_ = false;
  DI_TRY_VOID(admit(segments));
  lay_out(segments);
  embed();
  taps_view_ = {};
  tap_segments_.clear();
  last_tap_ = spec_.dspark_target_layer_ids.empty()
                  ? -1
                  : *std::max_element(spec_.dspark_target_layer_ids.begin(),
                                      spec_.dspark_target_layer_ids.end());
  attention_.begin(step_);
  for (const segment_rows& segment : step_.segments)
    segment.sequence->begin_rows(segment.rows);
  layer_ = 0;
  return run_to_experts();
}

result<step_state> cpu_forward::resume() {
  if (!open_)
    return fail(ec::bad_argument, "no step waits for expert rows");
  open_ = false;
  DI_TRY_VOID(moe_.combine(step_, y_.data()));
  DI_TRY_VOID(streams_.leave(step_, layer_, y_.data()));
  ++layer_;
  return layer_ < spec_.num_hidden_layers ? run_to_experts() : finish();
}

result<step_state> cpu_forward::finish() {
  if (step_.rows > 0)
    DI_TRY_VOID(make_logits());
  for (const segment_rows& segment : step_.segments)
    segment.sequence->commit(segment.tokens);
  return step_state::done;
}

result<void> cpu_forward::make_logits() {
  const std::int64_t hidden = spec_.hidden_size;
  DI_TRY_VOID(streams_.collapse(step_));
  step_.visit(layer_, "final_h", streams_.input(), hidden);
  if (!taps_view_.empty())
    step_.visit(layer_, "tap", taps_.data(), spec_.taps_width());
  const std::int64_t wanted = wanted_.back().first + wanted_.back().rows;
  bf16* in = head_in_.ensure(wanted * hidden);
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i].rows == 0)
      continue;
    const segment_rows& segment = step_.segments[i];
    const std::int64_t row = segment.first_row + segment.rows - wanted_[i].rows;
    std::memcpy(in + wanted_[i].first * hidden, streams_.input() + row * hidden,
                static_cast<std::size_t>(wanted_[i].rows * hidden) * sizeof(bf16));
  }
  if (wanted > 0) {
    bf16* normed = normed_.ensure(wanted * hidden);
    DI_TRY_VOID(normalise(step_, in, step_.model.norm(), wanted, hidden, normed));
    step_.visit({layer_, "final_normed", probe_type::bfloat16, normed, wanted, hidden});
    const std::array jobs{
        linear(step_.model.head(), normed, wanted, logits_.ensure(wanted * spec_.vocab_size))};
    DI_TRY_VOID(run_linears(step_, jobs));
  }
  return {};
}

std::span<const float> cpu_forward::logits(std::size_t segment) const {
  DI_CHECK(segment < wanted_.size());
  return {logits_.data() + wanted_[segment].first * spec_.vocab_size,
          static_cast<std::size_t>(wanted_[segment].rows * spec_.vocab_size)};
}

std::span<const bf16> cpu_forward::taps(std::size_t segment) const {
  DI_CHECK(segment < step_.segments.size());
  if (taps_view_.empty() || tap_segments_.empty())
    return {};
  const segment_rows& of = tap_segments_[segment];
  const std::int64_t below =
      std::clamp<std::int64_t>(of.sequence->floors().decoder - of.first_position, 0, of.rows);
  const std::int64_t width = spec_.taps_width();
  return taps_view_.subspan(static_cast<std::size_t>((of.first_row + below) * width),
                            static_cast<std::size_t>((of.rows - below) * width));
}

} // namespace

std::unique_ptr<forward> make_forward(const loaded_model& model, const kernels::op_table& ops,
                                      kernels::stream& stream) {
  return std::make_unique<cpu_forward>(model, ops, stream);
}

} // namespace di::engine
