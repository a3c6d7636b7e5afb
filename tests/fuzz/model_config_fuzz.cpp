// SPDX-License-Identifier: Apache-2.0
// config.json: whatever is accepted must give consistent helpers and a tensor table.
#include "engine/model/spec.hpp"
#include "engine/model/tensor_table.hpp"
#include "tests/support/fuzz_driver.hpp"

namespace {

std::uint64_t run(std::span<const std::byte> input) {
  const std::string_view text{reinterpret_cast<const char*>(input.data()), input.size()};
  const auto spec = di::engine::parse_model_spec(text, "f");
  if (!spec.ok())
    return di::testing::fuzz_signature(spec.error().what.substr(0, 160));
  std::uint64_t signature = 1;
  for (std::int64_t l = 0; l < spec->all_layers(); ++l) {
    DI_CHECK_EQ(spec->kv_source_of(l).has_value(), spec->ratio(l) > 0);
    DI_CHECK_EQ(spec->index_source_of(l).has_value(), spec->ratio(l) > 0);
    DI_CHECK(spec->experts_per_token(l) <= spec->experts(l));
    signature = signature * 31 + static_cast<std::uint64_t>(spec->kind(l));
  }
  const auto experts = spec->num_hidden_layers * spec->n_routed_experts
                       + spec->draft_layers() * spec->dspark_n_routed_experts;
  if (experts > 1000)
    return signature;
  for (const auto& t : di::engine::expected_tensors(*spec))
    DI_CHECK(t.shape.count() > 0);
  return signature;
}

} // namespace

DI_FUZZ_MAIN("model_config", run)
