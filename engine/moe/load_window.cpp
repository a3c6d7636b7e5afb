// SPDX-License-Identifier: Apache-2.0
// Counting, packing and unpacking of expert loads.
#include "engine/moe/load_window.hpp"

#include <algorithm>

namespace di::engine {

namespace {

void pack_one(std::uint32_t n, std::string& out) {
  while (n >= 0x80) {
    out.push_back(static_cast<char>(0x80 | (n & 0x7f)));
    n >>= 7;
  }
  out.push_back(static_cast<char>(n));
}

result<std::uint32_t> unpack_one(std::string_view& text) {
  std::uint64_t n = 0;
  for (unsigned shift = 0; shift < 35 && !text.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(text.front());
    text.remove_prefix(1);
    n |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) {
      if (n > 0xffff'ffffU)
        break;
      return static_cast<std::uint32_t>(n);
    }
  }
  return fail(ec::bad_format, "a packed count is cut off or past 32 bits");
}

} // namespace

void pack_counts(std::span<const std::uint32_t> counts, std::string& out) {
  for (std::size_t i = 0; i < counts.size();) {
    std::size_t zeros = i;
    while (zeros < counts.size() && counts[zeros] == 0)
      ++zeros;
    pack_one(zeros > i ? 0 : counts[i], out);
    if (zeros > i)
      pack_one(static_cast<std::uint32_t>(zeros - i), out);
    i = std::max(zeros, i + 1);
  }
}

result<void> unpack_counts(std::string_view& text, std::span<std::uint32_t> counts) {
  for (std::size_t i = 0; i < counts.size();) {
    DI_TRY(const std::uint32_t n, unpack_one(text));
    if (n > 0) {
      counts[i++] = n;
      continue;
    }
    DI_TRY(const std::uint32_t zeros, unpack_one(text));
    if (zeros == 0 || zeros > counts.size() - i)
      return fail(ec::bad_format, "a run of {} zeros where {} counts are left", zeros,
                  counts.size() - i);
    std::fill_n(counts.begin() + static_cast<std::ptrdiff_t>(i), zeros, 0U);
    i += zeros;
  }
  return {};
}

load_window::load_window(load_window_options options) : options_{options} {
  options_.bins = std::clamp(options_.bins, 1U, std::max(options_.steps, 1U));
}

void load_window::add(layer_id layer, std::uint32_t experts, std::span<const std::int32_t> routed) {
  if (options_.steps == 0)
    return;
  if (layers_.size() <= layer.v)
    layers_.resize(layer.v + 1);
  layer_rows& l = layers_[layer.v];
  if (l.experts != experts) {
    l.experts = experts;
    l.rows.assign(std::size_t{options_.bins} * experts, 0);
  }
  const std::uint64_t bin = std::uint64_t{step_} * options_.bins / options_.steps;
  std::uint32_t* rows = l.rows.data() + bin * experts;
  for (const std::int32_t expert : routed)
    ++rows[expert];
}

std::optional<proto::expert_load> load_window::end_step() {
  if (options_.steps == 0 || ++step_ < options_.steps)
    return std::nullopt;
  proto::expert_load full = pack();
  step_ = 0;
  full.window = ++window_;
  for (layer_rows& l : layers_)
    std::fill(l.rows.begin(), l.rows.end(), 0U);
  return full;
}

proto::expert_load load_window::pack() const {
  proto::expert_load m;
  m.steps = options_.steps;
  m.bins = options_.bins;
  for (std::size_t first = 0; first < layers_.size();) {
    std::size_t end = first + 1;
    const std::uint32_t experts = layers_[first].experts;
    while (end < layers_.size() && layers_[end].experts == experts)
      ++end;
    if (experts > 0) {
      m.groups.push_back(
          {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first), experts});
      for (std::size_t bin = 0; bin < options_.bins; ++bin)
        for (std::size_t layer = first; layer < end; ++layer)
          pack_counts(std::span{layers_[layer].rows}.subspan(bin * experts, experts), m.rows);
    }
    first = end;
  }
  return m;
}

} // namespace di::engine
