// SPDX-License-Identifier: Apache-2.0
#include "engine/model/synthetic_values.hpp"

#include "messaging/base/check.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace di::engine {
namespace {

constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15ULL;
const double z_unit = 1.0 / std::sqrt(1431655765.0); ///< 1 / deviation of a sum of four uniform u16
constexpr double embed_std = 0.12;
constexpr double engram_row_std = 0.15;

using named_number = std::pair<std::string_view, double>;

constexpr std::array<named_number, 6> norm_means{{{"attn_norm", 0.025},
                                                  {"ffn_norm", 0.2},
                                                  {"q_norm", 0.97},
                                                  {"kv_norm", 0.4},
                                                  {"compressor.norm", 0.35},
                                                  {"k_norm", 0.5}}};
constexpr std::array<named_number, 12> gains{{{"attn.wq_a", 1.6},
                                              {"attn.wq_b", 2.5},
                                              {"attn.wkv", 1.8},
                                              {"attn.wo_a", 1.6},
                                              {"attn.wo_b", 0.08},
                                              {"compressor.wkv", 1.8},
                                              {"compressor.wgate", 60.0},
                                              {"indexer.weights_proj", 40.0},
                                              {"gate", 6.0},
                                              {"w1", 1.5},
                                              {"w3", 1.5},
                                              {"w2", 0.2}}};
constexpr std::array<std::uint64_t, 4> successor_multiply{7919, 104729, 1299709, 15485863};
constexpr std::array<std::uint64_t, 4> successor_add{17, 291, 4099, 65537};
constexpr std::array<double, 4> head_alpha{1.25, 0.95, 0.7, 0.5};
constexpr std::array<double, 4> markov_alpha{1.0, 0.5, 0.25, 0.125};

/// Whole trailing components count: "w1" fits "ffn.experts.0.w1".
template <std::size_t N>
double by_suffix(const std::array<named_number, N>& table, std::string_view owner) {
  for (const auto& [key, number] : table)
    if (owner == key
        || (owner.size() > key.size() && owner.ends_with(key)
            && owner[owner.size() - key.size() - 1] == '.'))
      return number;
  return 1.0;
}

std::uint64_t mix64(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

double normal(std::uint64_t stream, std::uint64_t i) noexcept {
  const std::uint64_t u = synthetic_draw(stream, i);
  const auto sum = static_cast<std::int64_t>((u & 0xFFFF) + ((u >> 16) & 0xFFFF)
                                             + ((u >> 32) & 0xFFFF) + (u >> 48));
  return static_cast<double>(sum - 131070) * z_unit;
}

double normal(std::uint64_t stream, std::int64_t i) noexcept {
  return normal(stream, static_cast<std::uint64_t>(i));
}

/// floor(log2(x)) of a positive normal number.
int exponent(double x) noexcept {
  return static_cast<int>((std::bit_cast<std::uint64_t>(x) >> 52) & 0x7FF) - 1023;
}

/// One rounding to nearest even. x is 0 or of a magnitude in [2^-126, 2^127).
std::uint16_t to_bf16(double x) noexcept {
  std::uint64_t b = std::bit_cast<std::uint64_t>(x);
  b += 0x00000FFFFFFFFFFFULL + ((b >> 45) & 1);
  b &= 0xFFFFE00000000000ULL;
  const auto f = static_cast<float>(std::bit_cast<double>(b));
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
}

/// One rounding to nearest even, magnitude at most 448, the sign of zero kept.
std::uint8_t to_e4m3(double x) noexcept {
  const double a = std::fabs(x);
  unsigned code = 0;
  if (a < 0.015625) { // below the normal range: multiples of 2^-9; 8 is the first normal code
    code = static_cast<unsigned>(std::nearbyint(a * 512.0));
  } else {
    std::uint64_t r = std::bit_cast<std::uint64_t>(a);
    r += 0x0000FFFFFFFFFFFFULL + ((r >> 49) & 1);
    r &= 0xFFFE000000000000ULL;
    const double kept = std::bit_cast<double>(r) < 448.0 ? std::bit_cast<double>(r) : 448.0;
    r = std::bit_cast<std::uint64_t>(kept);
    const int e = static_cast<int>(r >> 52) - 1023;
    code = static_cast<unsigned>((e + 7) << 3) | static_cast<unsigned>((r >> 49) & 7);
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80U : 0U));
}

std::string_view owner_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(0, dot);
}

double inverse_root(std::int64_t inputs) {
  return 1.0 / std::sqrt(static_cast<double>(inputs));
}

} // namespace

std::uint64_t synthetic_stream(std::uint64_t seed, std::string_view name) noexcept {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (const char c : name)
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return mix64(seed ^ h);
}

std::uint64_t synthetic_draw(std::uint64_t stream, std::uint64_t i) noexcept {
  return mix64(stream + (i + 1) * golden_gamma);
}

synthetic_values::synthetic_values(std::uint64_t seed, const expected_tensor& tensor,
                                   const model_spec& spec)
    : type_{tensor.type}, stream_{synthetic_stream(seed, tensor.name)} {
  const auto& shape = tensor.shape;
  cols_ = shape.rank() > 0 ? shape[shape.rank() - 1] : 1;
  rows_ = shape.count() / cols_;
  choose(tensor, spec, seed);
}

void synthetic_values::choose(const expected_tensor& tensor, const model_spec& spec,
                              std::uint64_t seed) {
  const std::string_view name = tensor.name;
  const std::string_view owner = owner_of(name);
  const auto normal_of = [this](double mean, double std) { mean_ = mean, std_ = std; };
  const auto successor_of = [&](std::string_view other, const std::array<double, 4>& alpha) {
    rule_ = rule::successor;
    other_ = synthetic_stream(seed, other);
    std_ = inverse_root(cols_);
    const double c = 16.0 / std::sqrt(static_cast<double>(cols_));
    for (std::size_t k = 0; k < 4; ++k)
      alpha_[k] = c * alpha[k];
  };
  if (name.ends_with("norm.weight") || name.ends_with("norm1.weight")
      || name.ends_with("norm2.weight")) {
    rule_ = rule::norm;
    mean_ = by_suffix(norm_means, owner);
  } else if (name.ends_with("engram.q_weight") || name.ends_with("engram.k_weight")) {
    rule_ = rule::norm;
    mean_ = 1.0;
  } else if (name == "embed.weight") {
    rule_ = rule::embed;
    std_ = embed_std;
    noise_row_ = spec.draft_layers() > 0 ? spec.dspark_noise_token_id : -1;
    other_ = synthetic_stream(seed, "embed.weight.noise");
  } else if (name == "head.weight") {
    successor_of("embed.weight", head_alpha);
  } else if (name.ends_with("markov_head.embed.weight")) {
    normal_of(0.0, 1.0);
  } else if (name.ends_with("markov_head.head.weight")) {
    successor_of(std::string{owner_of(owner)} + ".embed.weight", markov_alpha);
  } else if (name.ends_with("attn_sink") || name.ends_with("_base")) {
    normal_of(0.0, 0.5);
  } else if (tensor.type == dtype::f32 && name.ends_with("_scale")) {
    normal_of(0.5, 0.1);
  } else if (name.ends_with("_fn") || name.ends_with("confidence_head.proj.weight")) {
    normal_of(0.0, inverse_root(cols_));
  } else if (name.ends_with("gate.bias") || name.ends_with("gate.bias_vl")) {
    normal_of(0.0, 0.05);
  } else if (name.starts_with("image_")) {
    normal_of(0.0, embed_std);
  } else if (tensor.role == tensor_role::vision) {
    if (name.ends_with(".bias"))
      normal_of(0.0, 0.02);
    else // one division each: 0.25 / sqrt(K), not 0.25 * (1 / sqrt(K))
      normal_of(0.0, (owner == "aligner.w2" ? 0.25 : 1.0) / std::sqrt(static_cast<double>(cols_)));
  } else {
    projection(owner, tensor, seed);
  }
}

void synthetic_values::projection(std::string_view owner, const expected_tensor& tensor,
                                  std::uint64_t seed) {
  const bool table = tensor.role == tensor_role::engram_table;
  const bool expert = tensor.role == tensor_role::routed_expert;
  const bool scale = tensor.type == dtype::f8_e8m0;
  // Widths of quantised inputs are multiples of 32, so a scale's shape tells its weight's inputs.
  const std::int64_t inputs = scale ? cols_ * 32 : expert ? cols_ * 2 : cols_;
  std_ = table ? engram_row_std : by_suffix(gains, owner) / std::sqrt(static_cast<double>(inputs));
  if (tensor.type == dtype::bfloat16)
    return;
  if (expert) {
    rule_ = scale ? rule::fp4_scale : rule::fp4;
    exponent_ = exponent((std_ / 3.2) * 1.4142135623730951) - 1;
    return;
  }
  exponent_ = exponent(std_) - 6;
  rule_ = scale ? rule::fp8_scale : table ? rule::fp8_row : rule::fp8_tile;
  std_ = std::ldexp(std_, -exponent_); // exact; in [64, 128)
  other_ = synthetic_stream(seed, std::string{owner} + ".scale");
}

double synthetic_values::value(std::int64_t i) const noexcept {
  const double z = normal(stream_, i);
  return rule_ == rule::norm ? mean_ * (1.0 + 0.1 * z) : mean_ + std_ * z;
}

double synthetic_values::embedding(std::int64_t i) const noexcept {
  const std::int64_t row = i / cols_;
  return std_ * (row == noise_row_ ? normal(other_, i - row * cols_) : normal(stream_, i));
}

double synthetic_values::successor(std::int64_t i) const noexcept {
  const auto row = static_cast<std::uint64_t>(i / cols_);
  const auto cols = static_cast<std::uint64_t>(cols_);
  const std::uint64_t col = static_cast<std::uint64_t>(i) - row * cols;
  double acc = normal(stream_, i);
  for (std::size_t k = 0; k < 4; ++k) {
    const std::uint64_t p =
        (row * successor_multiply[k] + successor_add[k]) % static_cast<std::uint64_t>(rows_);
    acc = acc + alpha_[k] * normal(other_, p * cols + col);
  }
  return std_ * acc;
}

std::uint8_t synthetic_values::fp8(std::int64_t i) const noexcept {
  const std::int64_t row = i / cols_;
  const std::int64_t col = i - row * cols_;
  const std::int64_t scale_row = rule_ == rule::fp8_tile ? row / 32 : row;
  const std::int64_t scale = scale_row * ((cols_ + 31) / 32) + col / 32;
  const std::uint64_t j = synthetic_draw(other_, static_cast<std::uint64_t>(scale)) % 3;
  constexpr std::array<double, 3> shrink{1.0, 0.5, 0.25};
  return to_e4m3((std_ * normal(stream_, i)) * shrink[j]);
}

void synthetic_values::fill(std::int64_t first, std::int64_t count, std::byte* out) const {
  const auto each = [&](auto function) {
    for (std::int64_t i = first; i < first + count; ++i) {
      const auto element = function(i);
      std::memcpy(out, &element, sizeof element);
      out += sizeof element;
    }
  };
  const auto byte_of_draw = [this](std::int64_t i) {
    const auto u = static_cast<std::uint64_t>(i);
    return static_cast<std::uint8_t>(synthetic_draw(stream_, u >> 3) >> (8 * (u & 7)));
  };
  const auto scale_byte = [this](std::int64_t i) {
    const std::uint64_t j = synthetic_draw(stream_, static_cast<std::uint64_t>(i)) % 3;
    return static_cast<std::uint8_t>(exponent_ + static_cast<int>(j) + 127);
  };
  switch (rule_) {
  case rule::normal:
  case rule::norm:
    if (type_ == dtype::f32)
      each([this](std::int64_t i) { return static_cast<float>(value(i)); });
    else
      each([this](std::int64_t i) { return to_bf16(value(i)); });
    break;
  case rule::embed:
    each([this](std::int64_t i) { return to_bf16(embedding(i)); });
    break;
  case rule::successor:
    each([this](std::int64_t i) { return to_bf16(successor(i)); });
    break;
  case rule::fp8_tile:
  case rule::fp8_row:
    each([this](std::int64_t i) { return fp8(i); });
    break;
  case rule::fp4:
    each(byte_of_draw);
    break;
  case rule::fp8_scale:
  case rule::fp4_scale:
    each(scale_byte);
    break;
  }
}

} // namespace di::engine
