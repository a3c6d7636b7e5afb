// SPDX-License-Identifier: Apache-2.0
// Bundles runners with their streams.
#include "engine/model/runners.hpp"

#include "engine/model/expert_runner.hpp"
#include "engine/model/forward.hpp"

namespace di::engine {

rank_runners own_rank_runners(std::shared_ptr<const loaded_model> model, unsigned threads) {
  struct bundle { // destroyed from the bottom up
    std::shared_ptr<const loaded_model> model;
    std::unique_ptr<kernels::stream> stream;
    std::unique_ptr<forward> steps;
    std::unique_ptr<draft_runner> drafts;
  };
  auto all = std::make_shared<bundle>();
  all->model = std::move(model);
  all->stream = kernels::make_cpu_stream(threads);
  all->steps = make_forward(*all->model, kernels::best_cpu_ops(), *all->stream);
  all->drafts = make_draft_runner(*all->model, kernels::best_cpu_ops(), *all->stream);
  rank_runners runners;
  runners.steps = {all, all->steps.get()};
  if (all->drafts)
    runners.drafts = {all, all->drafts.get()};
  return runners;
}

std::shared_ptr<expert_runner> own_expert_runner(std::shared_ptr<const loaded_model> model,
                                                 unsigned threads) {
  struct bundle { // destroyed from the bottom up
    std::shared_ptr<const loaded_model> model;
    std::unique_ptr<kernels::stream> stream;
    std::unique_ptr<expert_runner> runner;
  };
  auto all = std::make_shared<bundle>();
  all->model = std::move(model);
  all->stream = kernels::make_cpu_stream(threads);
  all->runner = make_expert_runner(*all->model, kernels::best_cpu_ops(), *all->stream);
  return {all, all->runner.get()};
}

} // namespace di::engine
