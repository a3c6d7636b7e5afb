// SPDX-License-Identifier: Apache-2.0
// A safetensors file of golden vectors, mapped; and the comparison of tensors with stated
// tolerances.
#pragma once

#include "engine/model/safetensors.hpp"
#include "engine/model/tensor.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace di::engine {

/// One file of stored tensors. Views live as long as it does.
class golden_vectors {
public:
  /// @errors ec::not_found, ec::io_error, and every defect of the header
  static result<golden_vectors> open(const std::string& path);

  const tensor_view* find(std::string_view name) const;
  /// The elements, if the tensor exists and T has the width of its type; else empty.
  template <class T>
  std::span<const T> elements(std::string_view name) const {
    const tensor_view* view = find(name);
    if (view == nullptr || element_bytes(view->type) != static_cast<std::int64_t>(sizeof(T)))
      return {};
    return {view->as<T>(), static_cast<std::size_t>(view->shape.count())};
  }
  const std::map<std::string, tensor_view, std::less<>>& tensors() const noexcept {
    return tensors_;
  }
  const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
  mapped_file file_;
  std::map<std::string, tensor_view, std::less<>> tensors_;
};

/// What may differ.
struct tolerance {
  double elements_share = 0; ///< [0, 1] of the elements
  double rms_share = 0;      ///< each differing element by at most this share of the tensor's rms
  double relative = 0;       ///< fp32 results: |difference| <= relative * |expected| + tiny
};

/// Outcome of one comparison.
struct comparison {
  std::int64_t elements = 0, different = 0;
  std::int64_t first_bad = -1;    ///< flat index of the first element that breaks the tolerance
  double expected = 0, found = 0; ///< there
  double largest = 0;             ///< largest difference
  double rms = 0;                 ///< of the expected tensor
  double share = 0;               ///< of the tolerance that was used; above 1: broken

  bool ok() const noexcept { return share <= 1; }
  /// "12 of 10240 differ, largest 0.03 (0.1 rms), 30 % of the tolerance; first bad [17, 5]: ..."
  std::string text(std::int64_t width) const;
};

comparison compare_bf16(std::span<const std::uint16_t> expected,
                        std::span<const std::uint16_t> found, const tolerance& allowed);
comparison compare_f32(std::span<const float> expected, std::span<const float> found,
                       const tolerance& allowed);
/// Integers must be equal.
comparison compare_i32(std::span<const std::int32_t> expected, std::span<const std::int32_t> found);

} // namespace di::engine
