// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes as a plain array: any machine, no intrinsics. See kernels/cpu/vec.hpp.
#pragma once

namespace di::kernels::portable {

struct i32x16 {
  std::int32_t v[16];

  static DI_KERNEL_INLINE i32x16 set(std::int32_t x) {
    i32x16 r;
    for (int i = 0; i < 16; ++i)
      r.v[i] = x;
    return r;
  }
};

template <class F>
DI_KERNEL_INLINE i32x16 each(i32x16 a, i32x16 b, F f) {
  i32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = static_cast<std::int32_t>(
        f(static_cast<std::uint32_t>(a.v[i]), static_cast<std::uint32_t>(b.v[i])));
  return r;
}

DI_KERNEL_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return each(a, b, [](std::uint32_t x, std::uint32_t y) { return x + y; });
}

DI_KERNEL_INLINE i32x16 operator-(i32x16 a, i32x16 b) {
  return each(a, b, [](std::uint32_t x, std::uint32_t y) { return x - y; });
}

DI_KERNEL_INLINE i32x16 operator&(i32x16 a, i32x16 b) {
  return each(a, b, [](std::uint32_t x, std::uint32_t y) { return x & y; });
}

DI_KERNEL_INLINE i32x16 operator|(i32x16 a, i32x16 b) {
  return each(a, b, [](std::uint32_t x, std::uint32_t y) { return x | y; });
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_left(i32x16 a) {
  return each(a, a, [](std::uint32_t x, std::uint32_t) { return x << N; });
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_right(i32x16 a) {
  i32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = a.v[i] >> N;
  return r;
}

template <int N>
DI_KERNEL_INLINE i32x16 shift_right_logical(i32x16 a) {
  return each(a, a, [](std::uint32_t x, std::uint32_t) { return x >> N; });
}

struct f32x16 {
  float v[16];

  using integer = i32x16;

  static DI_KERNEL_INLINE f32x16 set(float x) {
    f32x16 r;
    for (int i = 0; i < 16; ++i)
      r.v[i] = x;
    return r;
  }

  static DI_KERNEL_INLINE f32x16 zero() { return set(0.0F); }

  static DI_KERNEL_INLINE f32x16 load(const float* p) {
    f32x16 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }

  DI_KERNEL_INLINE void store(float* p) const { std::memcpy(p, v, sizeof v); }
};

template <class F>
DI_KERNEL_INLINE f32x16 each(f32x16 a, f32x16 b, F f) {
  f32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = f(a.v[i], b.v[i]);
  return r;
}

DI_KERNEL_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return each(a, b, [](float x, float y) { return x + y; });
}

DI_KERNEL_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return each(a, b, [](float x, float y) { return x - y; });
}

DI_KERNEL_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return each(a, b, [](float x, float y) { return x * y; });
}

DI_KERNEL_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return each(a, b, [](float x, float y) { return x / y; });
}

DI_KERNEL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  f32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return r;
}

DI_KERNEL_INLINE f32x16 square_root(f32x16 a) {
  return each(a, a, [](float x, float) { return __builtin_sqrtf(x); });
}

DI_KERNEL_INLINE f32x16 vmax(f32x16 a, f32x16 b) {
  return each(a, b, [](float x, float y) { return x > y ? x : y; });
}

DI_KERNEL_INLINE f32x16 vmin(f32x16 a, f32x16 b) {
  return each(a, b, [](float x, float y) { return x < y ? x : y; });
}

DI_KERNEL_INLINE i32x16 bits(f32x16 a) {
  i32x16 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}

DI_KERNEL_INLINE f32x16 from_bits(i32x16 a) {
  f32x16 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}

DI_KERNEL_INLINE f32x16 select_gt(f32x16 a, f32x16 b, f32x16 t, f32x16 f) {
  f32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = a.v[i] > b.v[i] ? t.v[i] : f.v[i];
  return r;
}

/// where a is NaN t, else f
DI_KERNEL_INLINE i32x16 select_nan(f32x16 a, i32x16 t, i32x16 f) {
  i32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = a.v[i] != a.v[i] ? t.v[i] : f.v[i];
  return r;
}

DI_KERNEL_INLINE i32x16 select_gt(f32x16 a, f32x16 b, i32x16 t, i32x16 f) {
  i32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = a.v[i] > b.v[i] ? t.v[i] : f.v[i];
  return r;
}

DI_KERNEL_INLINE f32x16 to_float(i32x16 a) {
  f32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = static_cast<float>(a.v[i]);
  return r;
}

DI_KERNEL_INLINE f32x16 load_bf16(const std::uint16_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = bf16_to_f32(p[i]);
  return r;
}

/// bf16 bits in the upper half of each lane
DI_KERNEL_INLINE i32x16 bf16_high_bits(f32x16 a) {
  i32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(f32_to_bf16(a.v[i])) << 16);
  return r;
}

DI_KERNEL_INLINE void store_bf16(std::uint16_t* p, f32x16 a) {
  for (int i = 0; i < 16; ++i)
    p[i] = f32_to_bf16(a.v[i]);
}

DI_KERNEL_INLINE i32x16 load_words(const void* p) {
  i32x16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}

DI_KERNEL_INLINE void store_words(void* p, i32x16 a) {
  std::memcpy(p, a.v, sizeof a.v);
}

/// 16 bytes, zero-extended
DI_KERNEL_INLINE i32x16 load_bytes(const std::uint8_t* p) {
  i32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = p[i];
  return r;
}

DI_KERNEL_INLINE void store_bytes(std::uint8_t* p, i32x16 a) {
  for (int i = 0; i < 16; ++i)
    p[i] = static_cast<std::uint8_t>(a.v[i]);
}

DI_KERNEL_INLINE f32x16 e4m3_256th(const std::uint8_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; ++i)
    r.v[i] = e4m3_weight_to_f32(p[i]) * 0x1p-8F;
  return r;
}

struct e2m1_table {
  float scale;

  explicit DI_KERNEL_INLINE e2m1_table(std::uint8_t s) : scale(e8m0_to_f32(s)) {}
};

DI_KERNEL_INLINE void e2m1_split(const std::uint8_t* p, const e2m1_table& t, f32x16& even,
                                 f32x16& odd) {
  for (int i = 0; i < 16; ++i) {
    even.v[i] = e2m1_to_f32(p[i] & 15U) * t.scale;
    odd.v[i] = e2m1_to_f32(static_cast<std::uint8_t>(p[i] >> 4)) * t.scale;
  }
}

/// Lane i of x holds element 2i, of y element 2i+1 of 32; back to element order.
DI_KERNEL_INLINE void interleave(f32x16& x, f32x16& y) {
  f32x16 a, b;
  for (int i = 0; i < 8; ++i) {
    a.v[2 * i] = x.v[i];
    a.v[2 * i + 1] = y.v[i];
    b.v[2 * i] = x.v[8 + i];
    b.v[2 * i + 1] = y.v[8 + i];
  }
  x = a;
  y = b;
}

/// The inverse of interleave.
DI_KERNEL_INLINE void split_pairs(f32x16& x, f32x16& y) {
  f32x16 a, b;
  for (int i = 0; i < 8; ++i) {
    a.v[i] = x.v[2 * i];
    b.v[i] = x.v[2 * i + 1];
    a.v[8 + i] = y.v[2 * i];
    b.v[8 + i] = y.v[2 * i + 1];
  }
  x = a;
  y = b;
}

DI_KERNEL_INLINE float tree_sum(f32x16 a) {
  for (int step = 8; step >= 1; step /= 2)
    for (int i = 0; i < step; ++i)
      a.v[i] = a.v[i] + a.v[i + step];
  return a.v[0];
}

DI_KERNEL_INLINE void tree_sum4(f32x16 a, f32x16 b, f32x16 c, f32x16 d, float* out) {
  out[0] = tree_sum(a);
  out[1] = tree_sum(b);
  out[2] = tree_sum(c);
  out[3] = tree_sum(d);
}

DI_KERNEL_INLINE float max_of(f32x16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i)
    m = a.v[i] > m ? a.v[i] : m;
  return m;
}

} // namespace di::kernels::portable
