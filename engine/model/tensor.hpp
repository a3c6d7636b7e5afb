// SPDX-License-Identifier: Apache-2.0
// Element types, shapes and non-owning views of stored tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace di::engine {

/// Stored element types, in the spelling of safetensors "F8_E4M3", "F8_E8M0", "I8", ...
enum class dtype : std::uint8_t {
  f8_e4m3,
  f8_e8m0, ///< block scale: 2^(byte - 127)
  i8,      ///< expert weights: two FP4 codes, low nibble first
  u8,
  bfloat16,
  f32,
  i32,
};

std::string_view to_string(dtype type) noexcept;
std::optional<dtype> parse_dtype(std::string_view name) noexcept;
std::int64_t element_bytes(dtype type) noexcept;

/// Up to four extents. A value that came from a file fulfils count() < 2^62.
class tensor_shape {
public:
  static constexpr std::size_t rank_max = 4;

  tensor_shape() = default;
  tensor_shape(std::initializer_list<std::int64_t> extents); ///< @pre at most rank_max

  std::size_t rank() const noexcept { return rank_; }
  std::int64_t operator[](std::size_t i) const noexcept { return extent_[i]; }
  std::span<const std::int64_t> extents() const noexcept { return {extent_.data(), rank_}; }
  std::int64_t count() const noexcept; ///< [elements]; 1 for rank 0
  void push(std::int64_t extent);      ///< @pre rank() < rank_max
  friend bool operator==(const tensor_shape&, const tensor_shape&) = default;

private:
  std::array<std::int64_t, rank_max> extent_{};
  std::uint8_t rank_ = 0;
};

std::string to_string(const tensor_shape& shape); ///< "[96, 256]"

/// Where a tensor's bytes are. Does not own them: the file that it was read from must live on.
/// Data are aligned to the element size.
struct tensor_view {
  dtype type = dtype::u8;
  tensor_shape shape;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;

  /// The data as elements of T; T has the width of the stored type.
  template <class T>
  const T* as() const noexcept {
    return reinterpret_cast<const T*>(data);
  }
};

} // namespace di::engine
