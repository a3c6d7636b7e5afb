// SPDX-License-Identifier: Apache-2.0
#include "engine/model/tensor.hpp"

#include "messaging/base/check.hpp"

namespace di::engine {
namespace {

struct dtype_row {
  dtype type;
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<dtype_row, 7> dtypes{{{dtype::f8_e4m3, "F8_E4M3", 1},
                                           {dtype::f8_e8m0, "F8_E8M0", 1},
                                           {dtype::i8, "I8", 1},
                                           {dtype::u8, "U8", 1},
                                           {dtype::bfloat16, "BF16", 2},
                                           {dtype::f32, "F32", 4},
                                           {dtype::i32, "I32", 4}}};

} // namespace

std::string_view to_string(dtype type) noexcept {
  return dtypes[static_cast<std::size_t>(type)].name;
}

std::optional<dtype> parse_dtype(std::string_view name) noexcept {
  for (const auto& row : dtypes)
    if (row.name == name)
      return row.type;
  return std::nullopt;
}

std::int64_t element_bytes(dtype type) noexcept {
  return dtypes[static_cast<std::size_t>(type)].bytes;
}

tensor_shape::tensor_shape(std::initializer_list<std::int64_t> extents) {
  for (const auto e : extents)
    push(e);
}

std::int64_t tensor_shape::count() const noexcept {
  std::int64_t n = 1;
  for (const auto e : extents())
    n *= e;
  return n;
}

void tensor_shape::push(std::int64_t extent) {
  DI_CHECK(rank_ < rank_max);
  extent_[rank_++] = extent;
}

std::string to_string(const tensor_shape& shape) {
  std::string text = "[";
  for (const auto e : shape.extents())
    text += (text.size() > 1 ? ", " : "") + std::to_string(e);
  return text + "]";
}

} // namespace di::engine
