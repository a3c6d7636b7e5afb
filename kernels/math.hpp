// SPDX-License-Identifier: Apache-2.0
// Own exp, log, log1p, sigmoid, softplus (fp32) and sin, cos (of an fp32 angle, inside binary64):
// fixed polynomials of fused multiply-adds, so that every build gives the same bits.
//
// The fp32 functions are templates over a vector type V (scalar_f32 below, or 16 lanes in
// kernels/cpu): V has `set`, the four operators, and, found by argument lookup, fma, square_root,
// vmax(a, b) = a > b ? a : b, vmin(a, b) = a < b ? a : b, select_gt(a, b, t, f), bits, from_bits,
// to_float; its integers (V::integer) have +, -, shift_left, shift_right (arithmetic).
// Everything is forced inline, for the reason given in kernels/inline.hpp.
#pragma once

#include "kernels/inline.hpp"

#include <bit>
#include <cstdint>

namespace di::kernels {

struct scalar_i32 {
  std::int32_t v;

  static DI_KERNEL_INLINE scalar_i32 set(std::int32_t x) { return {x}; }

  friend DI_KERNEL_INLINE scalar_i32 operator+(scalar_i32 a, scalar_i32 b) {
    return {static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v)
                                      + static_cast<std::uint32_t>(b.v))};
  }

  friend DI_KERNEL_INLINE scalar_i32 operator-(scalar_i32 a, scalar_i32 b) {
    return {static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v)
                                      - static_cast<std::uint32_t>(b.v))};
  }
};

template <int N>
DI_KERNEL_INLINE scalar_i32 shift_left(scalar_i32 a) {
  return {static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v) << N)};
}

template <int N>
DI_KERNEL_INLINE scalar_i32 shift_right(scalar_i32 a) {
  return {a.v >> N};
}

/// One float with the face of a vector.
struct scalar_f32 {
  float v;

  using integer = scalar_i32;

  static DI_KERNEL_INLINE scalar_f32 set(float x) { return {x}; }

  friend DI_KERNEL_INLINE scalar_f32 operator+(scalar_f32 a, scalar_f32 b) { return {a.v + b.v}; }
  friend DI_KERNEL_INLINE scalar_f32 operator-(scalar_f32 a, scalar_f32 b) { return {a.v - b.v}; }
  friend DI_KERNEL_INLINE scalar_f32 operator*(scalar_f32 a, scalar_f32 b) { return {a.v * b.v}; }
  friend DI_KERNEL_INLINE scalar_f32 operator/(scalar_f32 a, scalar_f32 b) { return {a.v / b.v}; }
};

DI_KERNEL_INLINE scalar_f32 fma(scalar_f32 a, scalar_f32 b, scalar_f32 c) {
  return {__builtin_fmaf(a.v, b.v, c.v)};
}

DI_KERNEL_INLINE scalar_f32 square_root(scalar_f32 a) {
  return {__builtin_sqrtf(a.v)};
}

DI_KERNEL_INLINE scalar_f32 vmax(scalar_f32 a, scalar_f32 b) {
  return {a.v > b.v ? a.v : b.v};
}

DI_KERNEL_INLINE scalar_f32 vmin(scalar_f32 a, scalar_f32 b) {
  return {a.v < b.v ? a.v : b.v};
}

DI_KERNEL_INLINE scalar_f32 select_gt(scalar_f32 a, scalar_f32 b, scalar_f32 t, scalar_f32 f) {
  return {a.v > b.v ? t.v : f.v};
}

DI_KERNEL_INLINE scalar_i32 bits(scalar_f32 a) {
  return {std::bit_cast<std::int32_t>(a.v)};
}

DI_KERNEL_INLINE scalar_f32 from_bits(scalar_i32 a) {
  return {std::bit_cast<float>(a.v)};
}

DI_KERNEL_INLINE scalar_f32 to_float(scalar_i32 a) {
  return {static_cast<float>(a.v)};
}

namespace math {

/// e^x, within 1 ulp where the result is normal; 0 below -104, inf above 88.72; NaN stays NaN.
/// x = n ln 2 + r, |r| <= ln(2)/2, Taylor of degree 7 in r, then two steps of scaling by 2^n.
template <class V>
DI_KERNEL_INLINE V exp(V x) {
  using I = typename V::integer;
  x = vmin(V::set(89.0F), x);
  x = vmax(V::set(-104.0F), x);
  const V magic = V::set(12582912.0F); // 1.5 * 2^23: adding it rounds to an integer
  const V t = fma(x, V::set(1.44269504F), magic);
  const V n = t - magic;
  V r = fma(n, V::set(-0x1.62e4p-1F), x);
  r = fma(n, V::set(-0x1.7f7d1cp-20F), r);
  V p = V::set(1.98412698e-4F);
  p = fma(p, r, V::set(1.38888889e-3F));
  p = fma(p, r, V::set(8.33333333e-3F));
  p = fma(p, r, V::set(4.16666667e-2F));
  p = fma(p, r, V::set(1.66666667e-1F));
  p = fma(p, r, V::set(0.5F));
  p = fma(p, r, V::set(1.0F));
  p = fma(p, r, V::set(1.0F));
  const I k = bits(t) - I::set(0x4b400000);
  const I half = shift_right<1>(k);
  const I bias = I::set(127);
  return (p * from_bits(shift_left<23>(half + bias)))
         * from_bits(shift_left<23>((k - half) + bias));
}

/// Natural logarithm of a positive, normal, finite x.
/// x = m 2^e, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m-1)/(m+1)) as an odd series.
template <class V>
DI_KERNEL_INLINE V log(V x) {
  using I = typename V::integer;
  const I i = bits(x);
  const I e = shift_right<23>(i - I::set(0x3f3504f3));
  const V m = from_bits(i - shift_left<23>(e));
  const V f = m - V::set(1.0F);
  const V s = f / (V::set(2.0F) + f);
  const V z = s * s;
  V p = V::set(0.222222222F);
  p = fma(p, z, V::set(0.285714286F));
  p = fma(p, z, V::set(0.4F));
  p = fma(p, z, V::set(0.666666667F));
  // log m = 2s + s^3 (2/3 + ...)
  const V small = fma(s * z, p, s + s);
  const V ef = to_float(e);
  return fma(ef, V::set(0x1.62e4p-1F), fma(ef, V::set(0x1.7f7d1cp-20F), small));
}

/// log(1 + u) for u >= 0, finite; keeps the relative precision of small u.
template <class V>
DI_KERNEL_INLINE V log1p(V u) {
  const V one = V::set(1.0F);
  const V w = one + u;
  const V d = w - one;
  // Where 1 + u rounds to 1 the answer is u itself; the other arm must not divide 0 by 0.
  const V safe = select_gt(d, V::set(0.0F), d, one);
  return select_gt(d, V::set(0.0F), log(w) * (u / safe), u);
}

/// 1 / (1 + e^-x)
template <class V>
DI_KERNEL_INLINE V sigmoid(V x) {
  return V::set(1.0F) / (V::set(1.0F) + exp(V::set(0.0F) - x));
}

/// x * sigmoid(x) with one division
template <class V>
DI_KERNEL_INLINE V silu(V x) {
  return x / (V::set(1.0F) + exp(V::set(0.0F) - x));
}

/// log(1 + e^x); above 20 x itself (spec/model.md 2.8)
template <class V>
DI_KERNEL_INLINE V softplus(V x) {
  return select_gt(x, V::set(20.0F), x, log1p(exp(vmin(V::set(20.0F), x))));
}

struct sin_cos_f32 {
  float sin, cos;
};

/// Sine and cosine of an fp32 angle of at most 2^31, computed in binary64 and rounded once.
/// NaN for anything larger. x = n pi/2 + r, |r| <= pi/4, Taylor up to r^15 and r^16.
DI_KERNEL_INLINE sin_cos_f32 sin_cos(float angle) {
  const double x = static_cast<double>(angle);
  if (!(x <= 2147483648.0 && x >= -2147483648.0))
    return {__builtin_nanf(""), __builtin_nanf("")};
  const double magic = 6755399441055744.0; // 1.5 * 2^52
  const double n = (x * 0x1.45f306dc9c883p-1 + magic) - magic;
  double r = __builtin_fma(n, -0x1.921fb54442d18p+0, x);
  r = __builtin_fma(n, -0x1.1a62633145c07p-54, r);
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;
  s = __builtin_fma(s, z, 1.0 / 6227020800.0);
  s = __builtin_fma(s, z, -1.0 / 39916800.0);
  s = __builtin_fma(s, z, 1.0 / 362880.0);
  s = __builtin_fma(s, z, -1.0 / 5040.0);
  s = __builtin_fma(s, z, 1.0 / 120.0);
  s = __builtin_fma(s, z, -1.0 / 6.0);
  s = __builtin_fma(s * z, r, r);
  double c = 1.0 / 20922789888000.0;
  c = __builtin_fma(c, z, -1.0 / 87178291200.0);
  c = __builtin_fma(c, z, 1.0 / 479001600.0);
  c = __builtin_fma(c, z, -1.0 / 3628800.0);
  c = __builtin_fma(c, z, 1.0 / 40320.0);
  c = __builtin_fma(c, z, -1.0 / 720.0);
  c = __builtin_fma(c, z, 1.0 / 24.0);
  c = __builtin_fma(c, z, -0.5);
  c = __builtin_fma(c, z, 1.0);
  const auto quadrant = static_cast<unsigned>(static_cast<std::int64_t>(n)) & 3U;
  const double sine = (quadrant & 1U) != 0 ? c : s;
  const double cosine = (quadrant & 1U) != 0 ? s : c;
  return {static_cast<float>((quadrant & 2U) != 0 ? -sine : sine),
          static_cast<float>(((quadrant + 1U) & 2U) != 0 ? -cosine : cosine)};
}

} // namespace math
} // namespace di::kernels
