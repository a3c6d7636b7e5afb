// SPDX-License-Identifier: Apache-2.0
// Layer-level check: a probe compares each tensor with the stored one and then puts the stored one
// in its place, so that a difference shows where it is made.
#include "engine/model/expert_runner.hpp"
#include "engine/model/forward.hpp"
#include "engine/model/sequence_state.hpp"
#include "engine/model/verify.hpp"

#include <algorithm>
#include <cstring>

namespace di::engine {

namespace {

class layer_feeder final : public step_probe {
public:
  layer_feeder(const model_spec& spec, const golden_vectors& captures, std::string prefix,
               verify_report& report, const verify_limits& limits)
      : spec_{spec},
        captures_{captures},
        prefix_{std::move(prefix)},
        report_{report},
        limits_{limits} {}

  void visit(const probe_tensor& tensor) override {
    const std::string name =
        tensor.layer < spec_.num_hidden_layers
            ? fmt::format("{}L{}.{}", prefix_, tensor.layer,
                          tensor.name == "candidate_blocks" ? "candidates" : tensor.name)
            : fmt::format("{}{}", prefix_, tensor.name);
    const tensor_view* stored = captures_.find(name);
    if (stored == nullptr)
      return;
    if (tensor.name == "candidate_blocks")
      return compare_candidates(name, *stored, tensor);
    const bool cached = tensor.name == "main_kv" || tensor.name == "index_k";
    const std::int64_t rows = stored->shape.rank() == 0 ? 0 : stored->shape[0];
    const std::int64_t width_bytes = tensor.type == probe_type::bfloat16 ? 2 : 4;
    if (stored->shape.count() != tensor.rows * tensor.width
        || element_bytes(stored->type) != width_bytes) {
      // A step that completes no entry has none to show; the capture then repeats an older one.
      if (!cached || rows == tensor.rows)
        report_.add_failure(fmt::format("{}: {}: {} elements stored, {} x {} computed",
                                        captures_.path(), name, stored->shape.count(), tensor.rows,
                                        tensor.width));
      return;
    }
    // A capture that was cut to some operations holds their inputs, but not what those follow from.
    const bool input = tensor.name == "attn_in" || tensor.name == "ffn_in";
    if (input && captures_.find(fmt::format("{}L{}.X_in", prefix_, tensor.layer)) == nullptr) {
      std::memcpy(tensor.data, stored->data, stored->bytes);
      return;
    }
    compare(name, *stored, tensor);
  }

private:
  void compare(const std::string& name, const tensor_view& stored, const probe_tensor& tensor) {
    const auto count = static_cast<std::size_t>(tensor.rows * tensor.width);
    comparison c;
    switch (tensor.type) {
    case probe_type::bfloat16: {
      const bool exact =
          tensor.name == "main_kv" || tensor.name == "index_k" || tensor.name == "window_kv";
      c = compare_bf16({stored.as<std::uint16_t>(), count},
                       {static_cast<const std::uint16_t*>(tensor.data), count},
                       exact ? tolerance{} : limits_.activations);
      break;
    }
    case probe_type::float32:
      c = compare_f32({stored.as<float>(), count}, {static_cast<const float*>(tensor.data), count},
                      limits_.coefficients);
      break;
    case probe_type::int32:
      c = compare_i32({stored.as<std::int32_t>(), count},
                      {static_cast<const std::int32_t*>(tensor.data), count});
      break;
    }
    note(name, c, tensor.width);
    if (tensor.type != probe_type::int32)
      std::memcpy(tensor.data, stored.data, stored.bytes);
  }

  /// Blocks against a byte mask of entries; only entries that the row sees count.
  void compare_candidates(const std::string& name, const tensor_view& stored,
                          const probe_tensor& tensor) {
    if (stored.shape.rank() != 2 || stored.shape[0] != tensor.rows
        || element_bytes(stored.type) != 1)
      return report_.add_failure(
          fmt::format("{}: {}: no byte mask of {} rows", captures_.path(), name, tensor.rows));
    const std::int64_t entries = stored.shape[1];
    const std::int64_t first = entries - tensor.rows; // ratio 1: an entry per position
    std::vector<std::int32_t> expected, found;
    for (std::int64_t row = 0; row < tensor.rows; ++row) {
      const auto* blocks = static_cast<const std::int32_t*>(tensor.data) + row * tensor.width;
      const auto* mask = stored.as<std::uint8_t>() + row * entries;
      for (std::int64_t e = 0; e < entries; ++e) {
        const bool visible = e < (first + row + 1) / spec_.ratio(tensor.layer);
        const auto block = static_cast<std::int32_t>(e / spec_.candidate_block_size);
        const bool kept = std::find(blocks, blocks + tensor.width, block) != blocks + tensor.width;
        expected.push_back(visible && mask[e] != 0);
        found.push_back(visible && kept);
      }
    }
    note(name, compare_i32(expected, found), entries);
  }

  void note(const std::string& name, const comparison& c, std::int64_t width) {
    ++report_.tensors;
    if (c.share > report_.worst_share) {
      report_.worst_share = c.share;
      report_.worst_tensor = name;
    }
    if (!c.ok())
      report_.add_failure(fmt::format("{}: {}: {}", captures_.path(), name, c.text(width)));
  }

  const model_spec& spec_;
  const golden_vectors& captures_;
  std::string prefix_;
  verify_report& report_;
  const verify_limits& limits_;
};

} // namespace

result<void> verify_layers(const verify_subject& subject, const golden_vectors& captures,
                           std::span<const std::int32_t> tokens,
                           std::span<const std::int32_t> greedy, verify_report& report,
                           const verify_limits& limits) {
  const kv_layout layout = make_kv_layout(subject.model.spec());
  DI_TRY(const std::unique_ptr<page_pool> pool,
         page_pool::create(std::max<std::size_t>(layout.page_bytes, 1),
                           static_cast<std::uint32_t>(
                               layout.pages_for(static_cast<std::int64_t>(tokens.size()) + 8))));
  sequence_state sequence{layout, *pool};
  const auto steps = make_forward(subject.model, subject.ops, subject.stream);
  steps->want_taps(true);
  const auto experts = make_expert_runner(subject.model, subject.ops, subject.stream);
  local_expert_loop loop{*steps, *experts};
  const std::size_t before = report.tensors;
  const auto run = [&](std::span<const std::int32_t> rows, const char* prefix) -> result<void> {
    layer_feeder feeder{subject.model.spec(), captures, prefix, report, limits};
    steps->attach_probe(&feeder);
    step_segment segment;
    segment.sequence = &sequence;
    segment.first_position = static_cast<std::uint32_t>(sequence.length());
    segment.tokens = rows;
    segment.logits = logits_wanted::all;
    return loop.run({&segment, 1});
  };
  DI_TRY_VOID(run(tokens, ""));
  const char* const prefixes[] = {"dec0.", "dec1.", "dec2."};
  for (std::size_t k = 0; k < 3 && k < greedy.size(); ++k)
    DI_TRY_VOID(run(greedy.subspan(k, 1), prefixes[k]));
  report.summaries.push_back(
      fmt::format("{}: {} tensors compared", captures.path(), report.tensors - before));
  return {};
}

} // namespace di::engine
