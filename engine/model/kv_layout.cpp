// SPDX-License-Identifier: Apache-2.0
// Computes the layout of cached state from the model's configuration.
#include "engine/model/kv_layout.hpp"

#include "kernels/kernels.hpp"
#include "messaging/base/check.hpp"

#include <algorithm>

namespace di::engine {

namespace {

std::size_t packed_bytes(kernels::row_format format, std::int64_t dim) {
  return static_cast<std::size_t>(kernels::row_bytes(format, dim));
}

} // namespace

kv_layout make_kv_layout(const model_spec& spec, std::int64_t verify_rows) {
  kv_layout layout;
  layout.layers = spec.num_hidden_layers;
  layout.draft_layers = spec.draft_layers();
  layout.window = spec.sliding_window;
  layout.verify_rows = std::max<std::int64_t>(verify_rows, 1);
  if (spec.draft_layers() > 0) // a rejected block must be undoable
    layout.verify_rows = std::max(layout.verify_rows, spec.dspark_block_size);
  layout.ring_rows = layout.window + layout.verify_rows;
  layout.head_dim = spec.head_dim;
  layout.window_row_bytes = packed_bytes(kernels::row_format::fp8_32, spec.head_dim);
  // A tail is read back at most verify_rows positions later; spec 4.2 wants 8 positions at least.
  layout.tail_pairs = std::max<std::int64_t>(layout.verify_rows + 2, 8) / 2 + 1;
  for (const std::int64_t layer : spec.kv_source_layer_ids) {
    kv_source_layout source;
    source.layer = layer;
    source.ratio = spec.ratio(layer);
    source.page_entries = page_tokens / source.ratio;
    source.main_row_bytes = packed_bytes(kernels::row_format::fp4_16, spec.head_dim);
    source.index_row_bytes = packed_bytes(kernels::row_format::fp4_32, spec.index_head_dim);
    const auto entries = static_cast<std::size_t>(source.page_entries);
    source.main_offset = layout.page_bytes;
    source.index_offset = source.main_offset + entries * source.main_row_bytes;
    layout.page_bytes = source.index_offset + entries * source.index_row_bytes;
    layout.sources.push_back(source);
  }
  return layout;
}

double kv_layout::bytes_per_token() const noexcept {
  return static_cast<double>(page_bytes) / static_cast<double>(page_tokens);
}

std::size_t kv_layout::private_bytes() const noexcept {
  std::size_t tails = 0;
  for (const kv_source_layout& source : sources)
    if (source.ratio == 2)
      tails += static_cast<std::size_t>(tail_pairs * 2 * head_dim) * sizeof(float);
  return static_cast<std::size_t>((layers + draft_layers) * ring_rows) * window_row_bytes + tails;
}

std::size_t kv_layout::source_index(std::int64_t layer) const {
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i].layer == layer)
      return i;
  DI_UNREACHABLE();
}

} // namespace di::engine
