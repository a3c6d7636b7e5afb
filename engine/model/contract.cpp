// SPDX-License-Identifier: Apache-2.0
// What goes into a contract id.
#include "engine/model/contract.hpp"

#include "engine/model/checkpoint.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>

namespace di::engine {

namespace {

/// FNV-1a over the bits of the rope tables. They are the one input of a step that is computed with
/// library functions (log, pow), which may differ between hosts in a last bit.
/// @source http://www.isthe.com/chongo/tech/comp/fnv/
std::uint64_t rope_mark(const model_spec& spec) {
  std::uint64_t mark = 0xcbf29ce484222325U;
  for (std::int64_t layer = 0; layer < spec.all_layers(); ++layer)
    for (const float f : rope_frequencies(spec.rope(layer)))
      mark = (mark ^ std::bit_cast<std::uint32_t>(f)) * 0x100000001b3U;
  return mark;
}

} // namespace

std::string contract_id(const loaded_model& model) {
  return fmt::format("kernels-1/cpu/{}/rope-{:016x}", model.files().hash(),
                     rope_mark(model.spec()));
}

} // namespace di::engine
