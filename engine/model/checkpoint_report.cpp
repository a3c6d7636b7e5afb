// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint_report.hpp"

#include "engine/model/kv_layout.hpp"
#include "engine/model/tensor_table.hpp"
#include "engine/moe/placement.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace di::engine {
namespace {

/// Appends formatted lines.
class report {
public:
  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    text_ += fmt::format(text, std::forward<Args>(args)...);
    text_ += '\n';
  }
  std::string take() { return std::move(text_); }

private:
  std::string text_;
};

std::string layer_text(const model_spec& s, std::int64_t l) {
  std::string text{to_string(s.kind(l))};
  if (s.ratio(l) > 0)
    text += fmt::format(", ratio {}", s.ratio(l));
  if (s.kind(l) == layer_kind::reuse || s.kind(l) == layer_kind::reindex)
    text += fmt::format(", KV of {}", *s.kv_source_of(l));
  if (s.kind(l) == layer_kind::reuse)
    text += fmt::format(", selection of {}", *s.index_source_of(l));
  if (s.is_candidate_source(l))
    text += ", candidate source";
  if (s.uses_candidates(l))
    text += ", among candidates";
  if (s.engram_index(l))
    text += ", Engram";
  if (s.tap_index(l))
    text += ", tap";
  if (s.is_draft(l))
    text = fmt::format("draft (window), {} experts top {}", s.experts(l), s.experts_per_token(l));
  return text;
}

void layers(report& out, const model_spec& s) {
  out.line("layers");
  for (std::int64_t first = 0; first < s.all_layers();) {
    const auto text = layer_text(s, first);
    std::int64_t next = first + 1;
    while (next < s.all_layers() && layer_text(s, next) == text)
      ++next;
    out.line("  {:<9} {}",
             next - first > 1 ? fmt::format("{}-{}", first, next - 1) : std::to_string(first),
             text);
    first = next;
  }
}

void types(report& out, const checkpoint& c) {
  std::map<dtype, std::pair<std::size_t, std::uint64_t>> sums;
  for (const auto& t : c.tensors()) {
    auto& [count, bytes] = sums[t.view.type];
    ++count;
    bytes += t.view.bytes;
  }
  out.line("stored types");
  for (const auto& [type, sum] : sums)
    out.line("  {:<9} {:>8} tensors {:>14}", to_string(type), sum.first, shown_bytes(sum.second));
}

void memory(report& out, const model_spec& s, const report_options& o) {
  const auto m = memory_of_rank(s, o.ep, o.redundant);
  out.line("memory per rank at {} ranks, {} redundant experts per layer", o.ep, o.redundant);
  out.line("  dense     {:>14}   shared by the ranks of a host", shown_bytes(m.dense));
  out.line("  experts   {:>14}   {} slots per layer{}", shown_bytes(m.experts), m.slots,
           s.draft_layers() > 0 ? fmt::format(", {} per draft layer", m.draft_slots) : "");
  if (m.engram > 0)
    out.line("  Engram    {:>14}   shared by the ranks of a host, few rows a token",
             shown_bytes(m.engram));
  if (m.vision > 0)
    out.line("  vision    {:>14}   shared by the ranks of a host", shown_bytes(m.vision));
  out.line("  weights   {:>14}", shown_bytes(m.weights()));
  const auto context =
      o.context > 0 ? o.context : static_cast<std::uint64_t>(s.max_position_embeddings);
  out.line("KV per token {:.1f} bytes, per sequence {} more; a context of {} takes {}",
           m.kv_per_token, shown_bytes(m.kv_per_sequence), context,
           shown_bytes(static_cast<std::uint64_t>(m.kv_per_token * static_cast<double>(context))
                       + m.kv_per_sequence));
}

/// Elements of a tensor that are not finite.
struct bad_values {
  std::uint64_t count = 0;
  std::uint64_t first = 0;

  template <class T, class Test>
  void scan(const tensor_view& t, Test bad) {
    const T* p = t.as<T>();
    const std::uint64_t n = t.bytes / sizeof(T);
    for (std::uint64_t i = 0; i < n; ++i)
      if (bad(p[i])) [[unlikely]] {
        first = count == 0 ? i : first;
        ++count;
      }
  }
};

bad_values scan(const tensor_view& t) {
  bad_values v;
  switch (t.type) {
  case dtype::f8_e4m3:
    v.scan<std::uint8_t>(t, [](std::uint8_t b) { return (b & 0x7F) == 0x7F; });
    break;
  case dtype::f8_e8m0:
    v.scan<std::uint8_t>(t, [](std::uint8_t b) { return b == 0xFF; });
    break;
  case dtype::bfloat16:
    v.scan<std::uint16_t>(t, [](std::uint16_t b) { return (b & 0x7F80) == 0x7F80; });
    break;
  case dtype::f32:
    v.scan<std::uint32_t>(t, [](std::uint32_t b) { return (b & 0x7F800000U) == 0x7F800000U; });
    break;
  case dtype::i8:
  case dtype::u8:
  case dtype::i32:
    break; // every code is a number
  }
  return v;
}

} // namespace

weight_sizes sizes_of(const model_spec& spec) {
  weight_sizes w;
  const auto expert = [&spec](std::int64_t bytes_of_layer, std::int64_t experts) {
    return experts > 0 ? static_cast<std::uint64_t>(bytes_of_layer / experts) : 0;
  };
  std::int64_t backbone = 0;
  std::int64_t draft = 0;
  for (const auto& t : expected_tensors(spec)) {
    const auto bytes = t.shape.count() * element_bytes(t.type);
    switch (t.role) {
    case tensor_role::dense:
      w.dense += static_cast<std::uint64_t>(bytes);
      break;
    case tensor_role::engram_table:
      w.engram += static_cast<std::uint64_t>(bytes);
      break;
    case tensor_role::vision:
      w.vision += static_cast<std::uint64_t>(bytes);
      break;
    case tensor_role::routed_expert:
      w.experts += static_cast<std::uint64_t>(bytes);
      (t.unit > spec.num_hidden_layers ? draft : backbone) += bytes;
      break;
    }
  }
  w.expert = expert(backbone, spec.num_hidden_layers * spec.n_routed_experts);
  w.draft_expert = expert(draft, spec.draft_layers() * spec.dspark_n_routed_experts);
  return w;
}

rank_memory memory_of_rank(const model_spec& spec, std::uint32_t ep, std::uint32_t redundant) {
  DI_CHECK(ep > 0);
  const auto sizes = sizes_of(spec);
  const auto kv = make_kv_layout(spec);
  rank_memory m;
  m.slots = slots_per_rank(static_cast<std::uint32_t>(spec.n_routed_experts), redundant, ep);
  if (spec.draft_layers() > 0)
    m.draft_slots =
        slots_per_rank(static_cast<std::uint32_t>(spec.dspark_n_routed_experts), redundant, ep);
  m.dense = sizes.dense;
  m.experts =
      static_cast<std::uint64_t>(spec.num_hidden_layers) * m.slots * sizes.expert
      + static_cast<std::uint64_t>(spec.draft_layers()) * m.draft_slots * sizes.draft_expert;
  m.engram = sizes.engram;
  m.vision = sizes.vision;
  m.kv_per_token = kv.bytes_per_token();
  m.kv_per_sequence = kv.private_bytes();
  return m;
}

std::string render_report(const checkpoint& source, const report_options& options) {
  const auto& s = source.spec();
  report out;
  out.line("{} layers and {} draft layers, hidden {}, {} heads x {}, vocabulary {}, context {}",
           s.num_hidden_layers, s.draft_layers(), s.hidden_size, s.num_attention_heads, s.head_dim,
           s.vocab_size, s.max_position_embeddings);
  out.line("{} routed experts top {} + {} shared, inner {}, window {}, index top-k {}",
           s.n_routed_experts, s.num_experts_per_tok, s.n_shared_experts, s.moe_intermediate_size,
           s.sliding_window, s.index_topk);
  out.line("{} tensors in {} files, {} ({} bytes)", source.tensors().size(), source.files().size(),
           shown_bytes(source.data_bytes()), source.data_bytes());
  layers(out, s);
  types(out, source);
  const auto w = sizes_of(s);
  out.line("parts");
  out.line("  dense     {:>14}", shown_bytes(w.dense));
  out.line("  experts   {:>14}   {} each", shown_bytes(w.experts), shown_bytes(w.expert));
  if (w.engram > 0)
    out.line("  Engram    {:>14}", shown_bytes(w.engram));
  if (w.vision > 0)
    out.line("  vision    {:>14}", shown_bytes(w.vision));
  memory(out, s, options);
  out.line("hash {}", source.hash());
  for (const auto& note : source.notes())
    out.line("note: {}", note);
  return out.take();
}

std::string render_tensor_list(const model_spec& spec) {
  report out;
  for (const auto& t : expected_tensors(spec))
    out.line("{} {} {}", t.name, to_string(t.type), to_string(t.shape));
  return out.take();
}

std::string shown_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 4> units{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024)
    return fmt::format("{} B", bytes);
  double v = static_cast<double>(bytes) / 1024;
  std::size_t u = 0;
  for (; v >= 1024 && u + 1 < units.size(); ++u)
    v /= 1024;
  return fmt::format("{:.2f} {}", v, units[u]);
}

void check_values(const checkpoint& source, problem_list& problems,
                  const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::uint64_t done = 0;
  for (const auto& t : source.tensors()) {
    const auto bad = scan(t.view);
    if (bad.count > 0)
      problems.add(ec::bad_format,
                   "{}: tensor {}: expected finite values, found {} that are not, "
                   "the first at element {}",
                   source.files()[t.file], t.name, bad.count, bad.first);
    done += t.view.bytes;
    if (progress)
      progress(done, source.data_bytes());
  }
}

} // namespace di::engine
