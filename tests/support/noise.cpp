// SPDX-License-Identifier: Apache-2.0
// Seeded random inputs of the kernel tests and benches.
#include "tests/support/noise.hpp"

#include <bit>
#include <cmath>

namespace di::kernels {

std::uint64_t noise::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

std::int64_t noise::below(std::int64_t n) {
  return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
}

float noise::normal(float size) {
  double sum = 0;
  for (int i = 0; i < 6; ++i)
    sum += static_cast<double>(next() >> 11) * 0x1p-53 - 0.5;
  return size * static_cast<float>(sum * std::sqrt(2.0));
}

namespace {

bf16 truncated(float v) {
  return static_cast<bf16>(std::bit_cast<std::uint32_t>(v) >> 16);
}

template <class T, class F>
std::vector<T> make(std::int64_t n, F f) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (T& x : v)
    x = static_cast<T>(f());
  return v;
}

} // namespace

std::vector<bf16> noise::wide_bf16(std::int64_t n) {
  return make<bf16>(n, [&] {
    const std::uint64_t kind = next() % 16;
    if (kind == 0)
      return static_cast<bf16>(next() & 0x8000U);
    if (kind == 1)
      return static_cast<bf16>(next() & 0x807fU); // subnormal
    return truncated(std::ldexp(normal(), static_cast<int>(next() % 40) - 24));
  });
}

std::vector<bf16> noise::normal_bf16(std::int64_t n, float size) {
  return make<bf16>(n, [&] { return truncated(normal(size)); });
}

std::vector<float> noise::normal_f32(std::int64_t n, float size) {
  return make<float>(n, [&] { return normal(size); });
}

std::vector<std::uint8_t> noise::bytes(std::int64_t n) {
  return make<std::uint8_t>(n, [&] { return next() & 0xffU; });
}

std::vector<std::uint8_t> noise::e4m3(std::int64_t n) {
  return make<std::uint8_t>(n, [&] {
    const std::uint64_t b = next() & 0xffU;
    return (b & 0x7fU) == 0x7fU ? b ^ 1U : b;
  });
}

std::vector<std::uint8_t> noise::e8m0(std::int64_t n, int low, int high) {
  return make<std::uint8_t>(n, [&] { return low + static_cast<int>(below(high - low + 1)); });
}

} // namespace di::kernels
