// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json.
#include "engine/model/checkpoint.hpp"
#include "tests/support/fuzz_driver.hpp"

namespace {

std::uint64_t run(std::span<const std::byte> input) {
  const std::string_view text{reinterpret_cast<const char*>(input.data()), input.size()};
  const auto index = di::engine::parse_checkpoint_index(text, "f");
  if (!index.ok())
    return di::testing::fuzz_signature(index.error().what.substr(0, 80));
  for (const auto& [tensor, file] : index->shard_of) {
    DI_CHECK(!file.empty() && file.find('/') == std::string::npos && file[0] != '.');
    (void)di::engine::canonical_tensor_name(tensor);
  }
  return index->total_size.has_value() ? 1 : 2;
}

} // namespace

DI_FUZZ_MAIN("checkpoint_index", run)
