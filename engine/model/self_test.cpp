// SPDX-License-Identifier: Apache-2.0
// One sequence, three steps, one digest.
#include "engine/model/self_test.hpp"

#include "engine/model/expert_pages.hpp"
#include "engine/model/expert_runner.hpp"
#include "engine/model/kv_layout.hpp"
#include "engine/model/runners.hpp"
#include "engine/model/sequence_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

namespace di::engine {

namespace {

constexpr std::uint32_t experts_asked = 2; // of each layer

/// Has a few experts of each layer answer for all, and lets go of them in the end: a rank will hold
/// others, and the whole of a layer is far more than one rank should read.
class few_experts final : public expert_runner {
public:
  few_experts(const std::shared_ptr<const loaded_model>& model, unsigned threads)
      : all_{own_expert_runner(model, threads)}, loader_{own_expert_loader(model)} {}
  few_experts(const few_experts&) = delete;
  few_experts& operator=(const few_experts&) = delete;
  ~few_experts() override {
    for (const auto& [layer, expert] : asked_)
      loader_->release(layer, expert);
  }

  result<void> run(std::span<expert_job> jobs) override {
    for (expert_job& job : jobs) {
      job.expert.v %= experts_asked;
      asked_.insert({job.layer, job.expert});
    }
    return all_->run(jobs);
  }

private:
  std::shared_ptr<expert_runner> all_;
  std::shared_ptr<expert_loader> loader_;
  std::set<std::pair<layer_id, expert_id>> asked_;
};

} // namespace

result<std::string> self_test(std::shared_ptr<const loaded_model> model, unsigned threads) {
  constexpr std::uint32_t chunk_rows = 6, single_rows = 2;
  const auto vocab = static_cast<std::int64_t>(model->spec().vocab_size);
  const kv_layout layout = make_kv_layout(model->spec());
  DI_TRY(const auto pool, page_pool::create(std::max<std::size_t>(1, layout.page_bytes), 1));
  const rank_runners runners = own_rank_runners(model, threads);
  few_experts experts{model, threads};
  local_expert_loop loop{*runners.steps, experts};
  sequence_state sequence{layout, *pool};
  std::vector<token_id> tokens;
  for (std::int64_t i = 0; i < chunk_rows + single_rows; ++i)
    tokens.push_back(static_cast<token_id>((i * 7919 + 13) % vocab));
  std::uint64_t digest = 0xcbf29ce484222325U; // FNV-1a over the bits
  for (std::uint32_t at = 0; at < tokens.size();) {
    const std::uint32_t rows = at == 0 ? chunk_rows : 1;
    const step_segment segment{&sequence, at, std::span{tokens}.subspan(at, rows),
                               logits_wanted::all};
    DI_TRY_VOID(loop.run({&segment, 1}));
    for (const float f : runners.steps->logits(0))
      digest = (digest ^ std::bit_cast<std::uint32_t>(f)) * 0x100000001b3U;
    at += rows;
  }
  return fmt::format("{:016x}", digest);
}

} // namespace di::engine
