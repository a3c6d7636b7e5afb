// SPDX-License-Identifier: Apache-2.0
// Routed experts: gather rows by expert, w1 and w3, SwiGLU with the routing weight, w2, scatter.
#include "engine/model/expert_runner.hpp"

#include "engine/model/step_context.hpp"

#include <cstring>

namespace di::engine {

namespace {

class cpu_expert_runner final : public expert_runner {
public:
  cpu_expert_runner(const loaded_model& model, const kernels::op_table& ops,
                    kernels::stream& stream)
      : step_{model, ops, stream} {}

  result<void> run(std::span<expert_job> jobs) override;

private:
  result<std::int64_t> count_rows(std::span<const expert_job> jobs) const;
  void gather(std::span<const expert_job> jobs, std::int64_t rows);
  result<void> compute(std::span<const expert_job> jobs, std::int64_t rows);
  void scatter(std::span<const expert_job> jobs) const;
  const expert_weights& weights(const expert_job& job) const {
    return step_.model.layers()[job.layer.v].moe.experts[job.expert.v];
  }

  step_context step_; ///< only its model, operations and stream are used
  std::vector<kernels::linear_job> linears_;
  quantised_rows input_, activated_;
  buffer<float> row_weights_;    ///< [rows]
  buffer<bf16> gate_, up_, act_; ///< [rows, inner]
  buffer<bf16> out_;             ///< [rows, hidden]
};

/// Checks the door: layer, expert and lengths come from other ranks.
result<std::int64_t> cpu_expert_runner::count_rows(std::span<const expert_job> jobs) const {
  std::int64_t rows = 0;
  for (const expert_job& job : jobs) {
    if (job.layer.v >= step_.model.layers().size())
      return fail(ec::bad_argument, "expert call for layer {}, the model has {}", job.layer.v,
                  step_.model.layers().size());
    const std::size_t experts = step_.model.layers()[job.layer.v].moe.experts.size();
    if (job.expert.v >= experts)
      return fail(ec::bad_argument, "expert call for expert {} of layer {}, which has {}",
                  job.expert.v, job.layer.v, experts);
    const std::size_t n = job.codes.size();
    if (job.scales.size() != n || job.weights.size() != n || job.out.size() != n)
      return fail(ec::bad_argument, "expert job of {} rows has {} scales, {} weights and {} places",
                  n, job.scales.size(), job.weights.size(), job.out.size());
    rows += static_cast<std::int64_t>(n);
  }
  return rows;
}

void cpu_expert_runner::gather(std::span<const expert_job> jobs, std::int64_t rows) {
  const std::int64_t hidden = step_.spec.hidden_size;
  input_.rows = rows;
  input_.width = hidden;
  std::uint8_t* codes = input_.codes.ensure(rows * hidden);
  std::uint8_t* scales = input_.scales.ensure(rows * (hidden / 32));
  float* row_weights = row_weights_.ensure(rows);
  for (const expert_job& job : jobs)
    for (std::size_t r = 0; r < job.codes.size(); ++r) {
      std::memcpy(codes, job.codes[r], static_cast<std::size_t>(hidden));
      std::memcpy(scales, job.scales[r], static_cast<std::size_t>(hidden / 32));
      *row_weights++ = job.weights[r];
      codes += hidden;
      scales += hidden / 32;
    }
}

result<void> cpu_expert_runner::compute(std::span<const expert_job> jobs, std::int64_t rows) {
  const std::int64_t hidden = step_.spec.hidden_size;
  const std::int64_t inner = step_.spec.moe_intermediate_size;
  bf16* gate = gate_.ensure(rows * inner);
  bf16* up = up_.ensure(rows * inner);
  bf16* act = act_.ensure(rows * inner);
  bf16* out = out_.ensure(rows * hidden);
  // A job of linear() covers all rows; here each expert takes its own slice of them.
  const auto add = [this](const kernels::weight& w, const quantised_rows& x, bf16* y,
                          std::int64_t first, std::int64_t count) {
    kernels::linear_job job = linear(w, x, y + first * w.out);
    job.x = x.codes.data() + first * x.width;
    job.x_scale = x.scales.data() + first * (x.width / 32);
    job.rows = count;
    linears_.push_back(job);
  };
  linears_.clear();
  std::int64_t first = 0;
  for (const expert_job& job : jobs) {
    const auto count = static_cast<std::int64_t>(job.codes.size());
    if (count == 0)
      continue;
    add(weights(job).w1, input_, gate, first, count);
    add(weights(job).w3, input_, up, first, count);
    first += count;
  }
  DI_TRY_VOID(run_linears(step_, linears_));
  DI_TRY_VOID(
      check_op(step_.ops.swiglu(step_.stream, gate, up, row_weights_.data(),
                                static_cast<float>(step_.spec.swiglu_limit), rows, inner, act),
               "swiglu"));
  DI_TRY_VOID(quantise(step_, act, inner, rows, inner, activated_));
  linears_.clear();
  first = 0;
  for (const expert_job& job : jobs) {
    const auto count = static_cast<std::int64_t>(job.codes.size());
    if (count == 0)
      continue;
    add(weights(job).w2, activated_, out, first, count);
    first += count;
  }
  return run_linears(step_, linears_);
}

void cpu_expert_runner::scatter(std::span<const expert_job> jobs) const {
  const std::int64_t hidden = step_.spec.hidden_size;
  const bf16* from = out_.data();
  for (const expert_job& job : jobs)
    for (bf16* to : job.out) {
      std::memcpy(to, from, static_cast<std::size_t>(hidden) * sizeof(bf16));
      from += hidden;
    }
}

result<void> cpu_expert_runner::run(std::span<expert_job> jobs) {
  DI_TRY(const std::int64_t rows, count_rows(jobs));
  if (rows == 0)
    return {};
  gather(jobs, rows);
  DI_TRY_VOID(compute(jobs, rows));
  scatter(jobs);
  return {};
}

} // namespace

std::unique_ptr<expert_runner> make_expert_runner(const loaded_model& model,
                                                  const kernels::op_table& ops,
                                                  kernels::stream& stream) {
  return std::make_unique<cpu_expert_runner>(model, ops, stream);
}

std::size_t group_by_expert(const expert_demand& demand, std::vector<expert_job>& jobs) {
  // Job of each expert, by a counting pass: ids are small and dense.
  std::int32_t highest = -1;
  for (const std::int32_t expert : demand.experts)
    highest = std::max(highest, expert);
  std::vector<std::int32_t> job_of(static_cast<std::size_t>(highest + 1), -1);
  for (const std::int32_t expert : demand.experts)
    job_of[static_cast<std::size_t>(expert)] = 0;
  std::size_t count = 0;
  for (std::size_t expert = 0; expert < job_of.size(); ++expert) {
    if (job_of[expert] < 0)
      continue;
    job_of[expert] = static_cast<std::int32_t>(count);
    if (jobs.size() == count)
      jobs.emplace_back();
    expert_job& job = jobs[count++];
    job.layer = demand.layer;
    job.expert = expert_id{static_cast<std::uint32_t>(expert)};
    job.codes.clear();
    job.scales.clear();
    job.weights.clear();
    job.out.clear();
  }
  for (std::size_t slot = 0; slot < demand.experts.size(); ++slot) {
    const std::size_t row = slot / demand.experts_per_token;
    expert_job& job =
        jobs[static_cast<std::size_t>(job_of[static_cast<std::size_t>(demand.experts[slot])])];
    job.codes.push_back(demand.codes.data() + row * demand.hidden);
    job.scales.push_back(demand.scales.data() + row * (demand.hidden / 32));
    job.weights.push_back(demand.weights[slot]);
    job.out.push_back(demand.answers.data() + slot * demand.hidden);
  }
  return count;
}

result<void> local_expert_loop::answer(const expert_demand& demand) {
  const std::size_t count = group_by_expert(demand, jobs_);
  return experts_.run(std::span{jobs_}.first(count));
}

result<void> local_expert_loop::run(std::span<const step_segment> segments) {
  DI_TRY(step_state state, steps_.start(segments));
  while (state == step_state::needs_experts) {
    DI_TRY_VOID(answer(steps_.demand()));
    DI_TRY(state, steps_.resume());
  }
  return {};
}

} // namespace di::engine
