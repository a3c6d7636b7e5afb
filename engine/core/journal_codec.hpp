// SPDX-License-Identifier: Apache-2.0
// Structs with a DI_FIELDS line <-> bytes of the journal: numbers in base 128, low groups first
// (signed ones zigzag), doubles as their eight bytes, little endian, strings and lists behind their
// count, structs behind the number of their fields. Included by journal_log.cpp only.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/sampling.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace di::engine::codec {

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_id = false;
template <class Tag, class Int>
inline constexpr bool is_id<strong_id<Tag, Int>> = true;

constexpr std::uint64_t last_value(proto::finish_reason) {
  return static_cast<std::uint64_t>(proto::finish_reason::cancelled);
}
constexpr std::uint64_t last_value(proto::prefill_mode) {
  return static_cast<std::uint64_t>(proto::prefill_mode::compact);
}
constexpr std::uint64_t last_value(proto::prefix_mode) {
  return static_cast<std::uint64_t>(proto::prefix_mode::bounded);
}
constexpr std::uint64_t last_value(ec) {
  return static_cast<std::uint64_t>(ec::internal);
}

template <class S>
constexpr std::size_t field_count(const S& s) {
  return visit_fields(s, [](const auto&... f) { return sizeof...(f); });
}

class encoder {
public:
  explicit encoder(std::vector<std::byte>& out) : out_{out} {}

  void number(std::uint64_t v) {
    for (; v >= 0x80; v >>= 7)
      out_.push_back(static_cast<std::byte>((v & 0x7f) | 0x80));
    out_.push_back(static_cast<std::byte>(v));
  }

  template <class T>
  void put(const T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      number(v ? 1 : 0);
    } else if constexpr (std::is_enum_v<T>) {
      number(static_cast<std::uint64_t>(v));
    } else if constexpr (std::is_same_v<T, double>) {
      const auto bits = std::bit_cast<std::uint64_t>(v);
      for (unsigned i = 0; i < 64; i += 8)
        out_.push_back(static_cast<std::byte>(bits >> i));
    } else if constexpr (std::is_signed_v<T>) {
      const auto wide = static_cast<std::int64_t>(v);
      number((static_cast<std::uint64_t>(wide) << 1U) ^ static_cast<std::uint64_t>(wide >> 63));
    } else if constexpr (std::is_unsigned_v<T>) {
      number(v);
    } else if constexpr (is_id<T>) {
      put(v.v);
    } else if constexpr (std::is_same_v<T, std::string>) {
      number(v.size());
      const auto* bytes = reinterpret_cast<const std::byte*>(v.data());
      out_.insert(out_.end(), bytes, bytes + v.size());
    } else if constexpr (is_vector<T>) {
      number(v.size());
      for (const auto& one : v)
        put(one);
    } else {
      number(field_count(v));
      visit_fields(v, [this](const auto&... f) { (put(f), ...); });
    }
  }

private:
  std::vector<std::byte>& out_;
};

/// Never reads past its bytes and never trusts a count: an element takes at least one byte.
class decoder {
public:
  explicit decoder(std::span<const std::byte> in) : in_{in} {}

  template <class T>
  result<void> get(T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      DI_TRY(const std::uint64_t n, number(1));
      v = n == 1;
    } else if constexpr (std::is_enum_v<T>) {
      DI_TRY(const std::uint64_t n, number(last_value(T{})));
      v = static_cast<T>(n);
    } else if constexpr (std::is_same_v<T, double>) {
      DI_TRY_VOID(need(8));
      std::uint64_t bits = 0;
      for (unsigned i = 0; i < 8; ++i)
        bits |= static_cast<std::uint64_t>(in_[at_ + i]) << (8 * i);
      at_ += 8;
      v = std::bit_cast<double>(bits);
    } else if constexpr (std::is_signed_v<T>) {
      DI_TRY(const std::uint64_t n, number(std::numeric_limits<std::uint64_t>::max()));
      const auto wide = static_cast<std::int64_t>((n >> 1U) ^ (~(n & 1U) + 1));
      if (wide < std::numeric_limits<T>::min() || wide > std::numeric_limits<T>::max())
        return fail(ec::corrupt, "byte {}: {} is out of range", at_, wide);
      v = static_cast<T>(wide);
    } else if constexpr (std::is_unsigned_v<T>) {
      DI_TRY(const std::uint64_t n, number(std::numeric_limits<T>::max()));
      v = static_cast<T>(n);
    } else if constexpr (is_id<T>) {
      return get(v.v);
    } else if constexpr (std::is_same_v<T, std::string>) {
      DI_TRY(const std::uint64_t size, number(in_.size() - at_));
      DI_TRY_VOID(need(size));
      v.assign(reinterpret_cast<const char*>(in_.data() + at_), size);
      at_ += size;
    } else if constexpr (is_vector<T>) {
      return get_vector(v);
    } else {
      return get_fields(v);
    }
    return {};
  }

  result<void> finish() const {
    if (at_ != in_.size())
      return fail(ec::corrupt, "{} bytes are left over", in_.size() - at_);
    return {};
  }

private:
  result<void> need(std::uint64_t bytes) const {
    if (in_.size() - at_ < bytes)
      return fail(ec::corrupt, "byte {}: {} bytes are missing", at_, bytes - (in_.size() - at_));
    return {};
  }

  result<std::uint64_t> number(std::uint64_t largest) {
    std::uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
      DI_TRY_VOID(need(1));
      const auto group = static_cast<std::uint64_t>(in_[at_++]);
      if (shift == 63 && group > 1)
        return fail(ec::corrupt, "byte {}: a number has more than 64 bits", at_ - 1);
      v |= (group & 0x7f) << shift;
      if (group < 0x80)
        break;
    }
    if (v > largest)
      return fail(ec::corrupt, "byte {}: {} is above {}", at_, v, largest);
    return v;
  }

  template <class T>
  result<void> get_vector(T& v) {
    DI_TRY(const std::uint64_t count, number(in_.size() - at_));
    v.clear();
    v.reserve(std::min<std::uint64_t>(count, 4096)); // an element may be much larger than its bytes
    for (std::uint64_t i = 0; i < count; ++i) {
      typename T::value_type one{};
      DI_TRY_VOID(get(one));
      v.push_back(std::move(one));
    }
    return {};
  }

  template <class S>
  result<void> get_fields(S& s) {
    DI_TRY(std::uint64_t present, number(field_count(s)));
    return visit_fields(s, [&](auto&... f) -> result<void> {
      result<void> outcome;
      [[maybe_unused]] const auto one = [&](auto& field) {
        if (present == 0)
          return true; // written by an earlier build
        --present;
        outcome = get(field);
        return outcome.ok();
      };
      (void)(one(f) && ...);
      return outcome;
    });
  }

  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

} // namespace di::engine::codec
