// SPDX-License-Identifier: Apache-2.0
// One draft pass: blocks of rows through the draft layers with a stop at each MoE, then the head.
#include "engine/model/draft_runner.hpp"

#include "engine/model/attention_site.hpp"
#include "engine/model/draft_head.hpp"
#include "engine/model/moe_site.hpp"
#include "engine/model/residual_streams.hpp"
#include "engine/model/step_context.hpp"

#include <array>
#include <cstring>

namespace di::engine {

namespace {

class cpu_draft_runner final : public draft_runner {
public:
  cpu_draft_runner(const loaded_model& model, const kernels::op_table& ops, kernels::stream& stream)
      : step_{model, ops, stream}, spec_{model.spec()} {}

  std::int64_t block() const noexcept override { return spec_.dspark_block_size; }
  void attach_probe(step_probe* probe) override { step_.probe = probe; }
  result<void> feed(std::span<const draft_feed> rows) override;
  result<step_state> start(std::span<const draft_segment> segments) override;
  const expert_demand& demand() const override { return moe_.demand(); }
  result<void> work_while_waiting() override { return moe_.run_shared(step_); }
  result<step_state> resume() override;
  result<void> draw(const draft_picker& pick) override;
  std::span<const token_id> drafts(std::size_t segment) const override {
    return head_.drafts(segment);
  }
  std::span<const float> confidences(std::size_t segment) const override {
    return head_.confidences(segment);
  }

private:
  enum class phase : std::uint8_t { idle, needs_experts, done };

  std::int64_t rows_of(const draft_feed& f) const noexcept {
    return static_cast<std::int64_t>(f.taps.size()) / spec_.taps_width();
  }
  result<void> check(std::span<const draft_feed> rows, std::size_t i) const;
  void gather(std::span<const draft_feed> rows);
  result<void> write_rings();
  result<void> admit(std::span<const draft_segment> segments) const;
  void lay_out(std::span<const draft_segment> segments);
  result<step_state> run_to_experts();
  result<step_state> finish();

  step_context step_;
  const model_spec& spec_;
  phase phase_ = phase::idle;

  // --- feeding
  struct fed_rows {
    sequence_state* sequence = nullptr;
    std::int64_t first_position = 0, rows = 0;
  };
  std::vector<draft_feed> good_; ///< scratch of feed()
  std::vector<fed_rows> fed_;
  std::int64_t fed_count_ = 0;
  buffer<std::int32_t> fed_positions_; ///< [rows fed]
  buffer<bf16> taps_;                  ///< [rows fed, targets * hidden]
  buffer<bf16> main_raw_, main_x_;     ///< [rows fed, hidden]
  buffer<bf16> kv_raw_;                ///< [draft layers, rows fed, head_dim]
  buffer<bf16> kv_;                    ///< [rows fed, head_dim]
  buffer<std::byte*> ring_at_;         ///< [rows fed]
  quantised_rows tap_codes_, main_codes_;
  std::vector<kernels::linear_job> jobs_;

  // --- the pass
  attention_site attention_;
  moe_site moe_;
  residual_streams streams_;
  draft_head head_;
  std::int64_t layer_ = 0;       ///< from num_hidden_layers
  std::vector<token_id> tokens_; ///< [rows] next, then noise, per segment
  std::vector<token_id> next_;   ///< [segments]
  buffer<bf16> normed_, y_;      ///< [rows, hidden]
};

/// Whether feed i makes sense.
result<void> cpu_draft_runner::check(std::span<const draft_feed> rows, std::size_t i) const {
  const draft_feed& f = rows[i];
  if (f.sequence == nullptr || f.taps.size() % static_cast<std::size_t>(spec_.taps_width()) != 0)
    return fail(ec::bad_argument, "draft feed {}: {} values are no rows of {}", i, f.taps.size(),
                spec_.taps_width());
  for (std::size_t j = 0; j < i; ++j)
    if (rows[j].sequence == f.sequence)
      return fail(ec::bad_argument, "draft feeds {} and {} are of the same sequence", j, i);
  const std::int64_t end = f.first_position + rows_of(f);
  if (f.first_position < f.sequence->draft_end() || end > f.sequence->length())
    return fail(ec::bad_argument,
                "draft feed {}: rows [{}, {}) do not follow {} and end at or before {}", i,
                f.first_position, end, f.sequence->draft_end(), f.sequence->length());
  return {};
}

/// Packs the rows of all feeds; of a long chunk only what a ring holds.
void cpu_draft_runner::gather(std::span<const draft_feed> rows) {
  fed_.clear();
  fed_count_ = 0;
  for (const draft_feed& f : rows) {
    const std::int64_t kept = std::min(rows_of(f), f.sequence->layout().ring_rows);
    fed_.push_back({f.sequence, f.first_position + rows_of(f) - kept, kept});
    fed_count_ += kept;
  }
  bf16* taps = taps_.ensure(fed_count_ * spec_.taps_width());
  std::int32_t* positions = fed_positions_.ensure(fed_count_);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t count = fed_[i].rows * spec_.taps_width();
    if (count > 0)
      std::memcpy(taps, rows[i].taps.data() + rows[i].taps.size() - static_cast<std::size_t>(count),
                  static_cast<std::size_t>(count) * sizeof(bf16));
    taps += count;
    for (std::int64_t r = 0; r < fed_[i].rows; ++r)
      *positions++ = static_cast<std::int32_t>(fed_[i].first_position + r);
  }
}

/// main_x of the gathered rows, then one window row per draft layer.
result<void> cpu_draft_runner::write_rings() {
  const draft_weights& w = *step_.model.drafts();
  const std::int64_t rows = fed_count_;
  const std::int64_t dim = spec_.head_dim;
  DI_TRY_VOID(
      quantise(step_, taps_.data(), spec_.taps_width(), rows, spec_.taps_width(), tap_codes_));
  const std::array project{
      linear(w.main_proj, tap_codes_, main_raw_.ensure(rows * spec_.hidden_size))};
  DI_TRY_VOID(run_linears(step_, project));
  bf16* main_x = main_x_.ensure(rows * spec_.hidden_size);
  DI_TRY_VOID(normalise(step_, main_raw_.data(), w.main_norm, rows, spec_.hidden_size, main_x));
  step_.visit(
      {spec_.all_layers(), "main_x", probe_type::bfloat16, main_x, rows, spec_.hidden_size});
  DI_TRY_VOID(quantise(step_, main_x, spec_.hidden_size, rows, spec_.hidden_size, main_codes_));
  const auto first = static_cast<std::size_t>(spec_.num_hidden_layers);
  const auto layers = step_.model.layers().subspan(first);
  bf16* raw = kv_raw_.ensure(spec_.draft_layers() * rows * dim);
  jobs_.clear();
  for (std::size_t m = 0; m < layers.size(); ++m)
    jobs_.push_back(linear(layers[m].attention.wkv, main_codes_,
                           raw + static_cast<std::int64_t>(m) * rows * dim));
  DI_TRY_VOID(run_linears(step_, jobs_));
  bf16* kv = kv_.ensure(rows * dim);
  std::byte** at = ring_at_.ensure(rows);
  for (std::size_t m = 0; m < layers.size(); ++m) {
    const auto layer = static_cast<std::int64_t>(m);
    DI_TRY_VOID(
        normalise(step_, raw + layer * rows * dim, layers[m].attention.kv_norm, rows, dim, kv));
    DI_TRY_VOID(check_op(step_.ops.rope(step_.stream, kv, rows, 1, dim, fed_positions_.data(),
                                        step_.model.rope(spec_.num_hidden_layers + layer), false),
                         "rope"));
    std::int64_t row = 0;
    for (const fed_rows& f : fed_)
      for (std::int64_t r = 0; r < f.rows; ++r)
        at[row++] = f.sequence->draft_row(layer, f.first_position + r);
    DI_TRY_VOID(check_op(
        step_.ops.pack_rows(step_.stream, kernels::row_format::fp8_32, kv, dim, rows, dim, at),
        "pack_rows"));
  }
  return {};
}

result<void> cpu_draft_runner::feed(std::span<const draft_feed> rows) {
  result<void> all;
  good_.clear();
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (auto fine = check(rows, i); fine)
      good_.push_back(rows[i]);
    else if (all)
      all = std::move(fine);
  gather(good_);
  if (fed_count_ == 0)
    return all;
  DI_TRY_VOID(write_rings());
  for (const fed_rows& f : fed_)
    if (f.rows > 0)
      f.sequence->draft_fed(f.first_position, f.first_position + f.rows);
  return all;
}

result<void> cpu_draft_runner::admit(std::span<const draft_segment> segments) const {
  if (segments.empty())
    return fail(ec::bad_argument, "a draft pass needs at least one sequence");
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const draft_segment& s = segments[i];
    if (s.sequence == nullptr || s.sequence->length() == 0
        || s.sequence->draft_end() != s.sequence->length())
      return fail(ec::bad_argument, "draft segment {}: rings are fed up to {}, the sequence has {}",
                  i, s.sequence == nullptr ? 0 : s.sequence->draft_end(),
                  s.sequence == nullptr ? 0 : s.sequence->length());
    if (s.next < 0 || s.next >= spec_.vocab_size)
      return fail(ec::bad_argument, "token id {} is outside the vocabulary of {}", s.next,
                  spec_.vocab_size);
  }
  return {};
}

void cpu_draft_runner::lay_out(std::span<const draft_segment> segments) {
  step_.segments.clear();
  step_.rows = 0;
  tokens_.clear();
  next_.clear();
  std::int32_t* positions =
      step_.positions.ensure(static_cast<std::int64_t>(segments.size()) * block());
  for (const draft_segment& s : segments) {
    segment_rows segment;
    segment.sequence = s.sequence;
    segment.first_row = step_.rows;
    segment.rows = block();
    segment.first_position = s.sequence->length();
    step_.rows += segment.rows;
    step_.segments.push_back(segment);
    next_.push_back(s.next);
    for (std::int64_t r = 0; r < block(); ++r) {
      tokens_.push_back(r == 0 ? s.next : static_cast<token_id>(spec_.dspark_noise_token_id));
      *positions++ = static_cast<std::int32_t>(segment.first_position + r);
    }
  }
}

result<step_state> cpu_draft_runner::start(std::span<const draft_segment> segments) {
  phase_ = phase::idle;
  DI_TRY_VOID(admit(segments));
  lay_out(segments);
  streams_.embed(step_, tokens_);
  normed_.ensure(step_.rows * spec_.hidden_size);
  y_.ensure(step_.rows * spec_.hidden_size);
  layer_ = spec_.num_hidden_layers;
  return run_to_experts();
}

result<step_state> cpu_draft_runner::run_to_experts() {
  const layer_weights& w = step_.model.layers()[static_cast<std::size_t>(layer_)];
  step_.visit(layer_, "X_in", streams_.data(), spec_.stream_width());
  DI_TRY_VOID(streams_.enter(step_, layer_, w.attention_mix, w.attention.norm,
                             residual_streams::attention_names, normed_.data()));
  DI_TRY_VOID(attention_.run_blocks(step_, layer_, normed_.data(), y_.data()));
  DI_TRY_VOID(streams_.update(step_, y_.data()));
  DI_TRY_VOID(streams_.enter(step_, layer_, w.ffn_mix, w.moe.norm, residual_streams::ffn_names,
                             normed_.data()));
  DI_TRY_VOID(moe_.ask(step_, layer_, normed_.data()));
  phase_ = phase::needs_experts;
  return step_state::needs_experts;
}

result<step_state> cpu_draft_runner::resume() {
  if (phase_ != phase::needs_experts)
    return fail(ec::bad_argument, "no draft pass waits for expert rows");
  phase_ = phase::idle;
  DI_TRY_VOID(moe_.combine(step_, y_.data()));
  DI_TRY_VOID(streams_.leave(step_, layer_, y_.data()));
  ++layer_;
  return layer_ < spec_.all_layers() ? run_to_experts() : finish();
}

result<step_state> cpu_draft_runner::finish() {
  DI_TRY_VOID(streams_.collapse(step_));
  step_.visit(layer_, "draft_hidden", streams_.input(), spec_.hidden_size);
  DI_TRY_VOID(head_.begin(step_, streams_.input(), block()));
  phase_ = phase::done;
  return step_state::done;
}

result<void> cpu_draft_runner::draw(const draft_picker& pick) {
  if (phase_ != phase::done)
    return fail(ec::bad_argument, "no draft pass is done");
  return head_.draw(step_, next_, pick);
}

} // namespace

std::unique_ptr<draft_runner> make_draft_runner(const loaded_model& model,
                                                const kernels::op_table& ops,
                                                kernels::stream& stream) {
  if (model.drafts() == nullptr)
    return nullptr;
  return std::make_unique<cpu_draft_runner>(model, ops, stream);
}

} // namespace di::engine
