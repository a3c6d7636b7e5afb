// SPDX-License-Identifier: Apache-2.0
// Values for every kind of message field from a seed: the same on every machine, for golden bytes
// and for random round trips.
#pragma once

#include "messaging/wire/enum_names.hpp"
#include "messaging/wire/fields.hpp"

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace di::test {

class sampler {
public:
  /// Containers get up to `elements_max` elements.
  explicit sampler(std::uint64_t seed, std::size_t elements_max = 3)
      : state_{seed}, elements_max_{elements_max} {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }

  template <class T>
  void fill(T& v) {
    if constexpr (std::is_same_v<T, shared_bytes>) {
      std::string bytes(8 * below(elements_max_ + 1), '\0');
      for (char& c : bytes)
        c = static_cast<char>(bits());
      v = shared_bytes::adopt(std::move(bytes));
    } else if constexpr (std::is_same_v<T, bool>) {
      v = bits() % 2 != 0;
    } else if constexpr (std::is_enum_v<T>) {
      do
        v = static_cast<T>(below(wire::enum_values));
      while (wire::enum_name(v).empty());
    } else if constexpr (std::is_same_v<T, float>) {
      v = std::bit_cast<float>(static_cast<std::uint32_t>(bits())); // NaNs too
    } else if constexpr (std::is_same_v<T, double>) {
      v = std::bit_cast<double>(bits());
    } else if constexpr (std::is_integral_v<T>) {
      v = static_cast<T>(bits() >> below(64)); // all sizes, so all widths on the wire
    } else if constexpr (std::is_same_v<T, std::string>) {
      v.assign(below(elements_max_ * 4 + 1), ' ');
      for (char& c : v)
        c = static_cast<char>(bits());
    } else if constexpr (wire::is_strong_id<T> || std::is_same_v<T, wire_id>) {
      fill(v.v);
    } else if constexpr (std::is_same_v<T, duration>) {
      v = duration{static_cast<std::int64_t>(bits() >> below(64))};
    } else if constexpr (wire::is_optional<T>) {
      v.reset();
      if (bits() % 2 != 0)
        fill(v.emplace());
    } else if constexpr (wire::is_string_map<T>) {
      v.clear();
      for (std::size_t n = below(elements_max_ + 1); n > 0; --n) {
        std::string key;
        fill(key);
        fill(v[key]);
      }
    } else if constexpr (wire::is_vector<T>) {
      v.clear();
      for (std::size_t n = below(elements_max_ + 1); n > 0; --n) {
        typename T::value_type one{};
        fill(one);
        v.push_back(std::move(one));
      }
    } else if constexpr (wire::is_std_array<T>) {
      for (auto& one : v)
        fill(one);
    } else {
      visit_fields(v, [this](auto&... f) { (fill(f), ...); });
    }
  }

private:
  std::uint64_t state_;
  std::size_t elements_max_;
};

template <class M>
M sample_message(sampler& from) {
  M m{};
  from.fill(m);
  return m;
}

/// A seed for the one golden sample of a message.
constexpr std::uint64_t seed_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name)
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

} // namespace di::test
