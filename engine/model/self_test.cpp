// SPDX-License-Identifier: Apache-2.0
// One sequence, three steps, one digest.
#include "engine/model/self_test.hpp"

#include "engine/model/expert_runner.hpp"
#include "engine/model/kv_layout.hpp"
#include "engine/model/runners.hpp"
#include "engine/model/sequence_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace di::engine {

result<std::string> self_test(std::shared_ptr<const loaded_model> model, unsigned threads) {
  constexpr std::uint32_t chunk_rows = 6, single_rows = 2;
  const auto vocab = static_cast<std::int64_t>(model->spec().vocab_size);
  const kv_layout layout = make_kv_layout(model->spec());
  DI_TRY(const auto pool, page_pool::create(std::max<std::size_t>(1, layout.page_bytes), 1));
  const rank_runners runners = own_rank_runners(model, threads);
  const auto experts = own_expert_runner(model, threads);
  local_expert_loop loop{*runners.steps, *experts};
  sequence_state sequence{layout, *pool};
  std::vector<token_id> tokens; // far apart, so that they ask different experts
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
