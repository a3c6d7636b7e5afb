// SPDX-License-Identifier: Apache-2.0
// The whole public face of the compute library: plain structs of pointers, shapes and strides, a
// stream, a status.
//
// Three implementations stand behind it: `ref` (scalar, obviously right), `cpu` (portable, AVX2,
// AVX-512; threads) and `cuda`. All CPU implementations give the same bits
// (doc/adr/0002-bit-contract.md):
// - an output row depends on its input row and the weights only; threads split rows or output
// columns, never a sum;
// - a dot product over K has 16 fp32 lanes. Element k goes to lane k mod 16 (f32, bf16, fp8
// weights), in ascending k;
//   for fp4 weights and index keys, stored two to a byte, to lane (k / 2) mod 16, in each group of
//   32 the 16 even elements first, then the 16 odd ones. Every step is one fused multiply-add of
//   the dequantised operands (block scales are powers of two, so where the scale is applied does
//   not change the bits). At the end lanes are added as (i, i+8), (i, i+4), (i, i+2), (i, i+1). K
//   is padded with zero products to whole groups;
// - exp, log, sin, cos are our own (kernels/math.hpp); division and square root are correctly
// rounded.
//
// Ownership: nothing here allocates for the caller or keeps a pointer after return, but `stream`,
// which owns scratch. Threads: a stream is used by one thread at a time; different streams are
// independent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace di::kernels {

enum class status : std::uint8_t {
  ok,
  bad_shape,   ///< a width is no multiple of what the format needs, or a size is negative
  unsupported, ///< this implementation does not have the operation
};

/// Where operations run: on the CPU a pool of threads that sleep between operations, and their
/// scratch memory.
class stream {
public:
  virtual ~stream() = default;
  virtual unsigned threads() const noexcept = 0;
};

/// @param threads  threads that compute, the caller counted in; at least 1
std::unique_ptr<stream> make_cpu_stream(unsigned threads);

/// How a weight matrix is stored. All are [out, in], row-major.
enum class weight_kind : std::uint8_t {
  f32,        ///< float
  bf16,       ///< 2 bytes
  fp8_tile32, ///< e4m3 codes; scale e8m0 [ceil(out/32), ceil(in/32)], one per 32x32 tile
  fp4_row32,  ///< e2m1, two codes a byte, low nibble = even input; scale e8m0 [out, in/32]
  fp8_row32,  ///< e4m3 codes; scale e8m0 [out, in/32], one per row per 32 inputs (Engram tables)
};

struct weight {
  weight_kind kind = weight_kind::f32;
  const void* data = nullptr;
  const std::uint8_t* scale = nullptr; ///< e8m0 bytes; null for f32 and bf16
  std::int64_t out = 0;
  std::int64_t in = 0; ///< multiple of 32 for fp8 and fp4
};

enum class input_kind : std::uint8_t {
  f32,  ///< float rows, used as they are
  bf16, ///< bf16 rows, used as they are
  fp8,  ///< e4m3 codes with e8m0 scale per 32 inputs (activation quantisation, act_quant)
};

// Declared after the enumerators of the same name, which would shadow it.
using bf16 = std::uint16_t; ///< bits of a bfloat16

/// y[m, n] = sum_k x[m, k] * w[n, k]; several independent jobs run as one parallel region.
struct linear_job {
  weight w;
  input_kind x_kind = input_kind::bf16;
  const void* x = nullptr;               ///< [rows, in] of x_kind
  const std::uint8_t* x_scale = nullptr; ///< [rows, in/32] when fp8
  std::int64_t x_stride = 0;             ///< elements between rows of x
  std::int64_t x_scale_stride = 0;       ///< bytes between rows of x_scale
  std::int64_t rows = 0;
  void* y = nullptr;         ///< [rows, out], bf16 or f32
  bool y_f32 = false;        ///< true: y is float; false: y is bf16, rounded once to nearest even
  std::int64_t y_stride = 0; ///< elements between rows of y
};

/// cos/sin table source: frequencies of one rope kind.
struct rope_table {
  const float* freq = nullptr; ///< [rope_dim / 2]
  std::int64_t rope_dim = 0;   ///< the LAST rope_dim of each head are rotated, adjacent pairs
};

/// One packed KV row kind. Codes first, then scales, contiguous.
enum class row_format : std::uint8_t {
  fp8_32, ///< e4m3 codes [dim], e8m0 scales [dim/32]: window rows
  fp4_16, ///< e2m1 codes [dim/2], e4m3 scales [dim/16]: main KV entries
  fp4_32, ///< e2m1 codes [dim/2], e8m0 scales [dim/32]: index keys
  plain,  ///< bf16 [dim] as they are; for tests and unquantised caches
};

/// Bytes of one packed row.
constexpr std::int64_t row_bytes(row_format f, std::int64_t dim) {
  switch (f) {
  case row_format::fp8_32:
    return dim + dim / 32;
  case row_format::fp4_16:
    return dim / 2 + dim / 16;
  case row_format::fp4_32:
    return dim / 2 + dim / 32;
  case row_format::plain:
    return 2 * dim;
  }
  return 0;
}

/// Sparse attention over packed rows with a sink; key == value, one latent for all heads
/// (spec 2.4). Rows are read in list order in blocks of 64: p = exp(s - running max) rounded to
/// bf16 for the value sum, the denominator from the unrounded p, the sink added at the end. A null
/// row pointer is a masked slot; it keeps its place.
struct attention_args {
  const bf16* q = nullptr; ///< [rows, heads, dim]
  std::int64_t rows = 0, heads = 0, dim = 0;
  const std::byte* const* kv = nullptr; ///< [rows, kv_stride] pointers to packed rows or null
  std::int64_t kv_stride = 0;
  const std::int32_t* window_count =
      nullptr; ///< [rows] leading list entries, in window_format (masked ones counted)
  const std::int32_t* total_count =
      nullptr; ///< [rows] all list entries; those after window_count in entry_format
  const float* sink = nullptr;                   ///< [heads] logits, not scaled
  float scale = 0;                               ///< dim^-0.5
  bf16* out = nullptr;                           ///< [rows, heads, dim], before the inverse rope
  row_format window_format = row_format::fp8_32; ///< of the entries before window_count
  row_format entry_format = row_format::fp4_16;  ///< of those after
};

/// Index scores of queries against packed index keys (spec 2.6, rounding points of section 8.3).
struct index_score_args {
  const bf16* q = nullptr; ///< [rows, heads, dim], quantised to fp4/32 values
  const bf16* weights =
      nullptr; ///< [rows, heads], already times dim^-0.5 heads^-0.5, each product rounded to bf16
  std::int64_t rows = 0, heads = 0, dim = 0;
  const std::byte* const* key_pages = nullptr; ///< pages of packed fp4_32 rows of ONE sequence
  std::int64_t page_entries = 0;               ///< entries per page
  const std::int32_t* visible = nullptr;       ///< [rows] entries visible to the row
  float* scores = nullptr;                     ///< [rows, score_stride]; -inf at and above visible
  std::int64_t score_stride = 0;
};

/// The operations of one implementation. Every function returns bad_shape before touching memory it
/// should not.
struct op_table {
  const char* name = "";

  status (*linear)(stream&, std::span<const linear_job>) = nullptr;

  /// y = bf16(w * (x * 1/sqrt(mean(x^2) + eps))), fp32 inside. x, y bf16 [rows, dim] with strides
  /// in elements.
  status (*rms_norm)(stream&, const bf16* x, std::int64_t x_stride, const bf16* w, float eps,
                     std::int64_t rows, std::int64_t dim, bf16* y, std::int64_t y_stride) = nullptr;

  /// Activation quantisation (spec 2.1): codes [rows, dim], scales [rows, dim/32]. Also the codes
  /// of window rows.
  status (*act_quant)(stream&, const bf16* x, std::int64_t x_stride, std::int64_t rows,
                      std::int64_t dim, std::uint8_t* codes, std::int64_t codes_stride,
                      std::uint8_t* scales, std::int64_t scales_stride) = nullptr;

  /// Quantises rows into packed rows at out[r].
  status (*pack_rows)(stream&, row_format, const bf16* x, std::int64_t x_stride, std::int64_t rows,
                      std::int64_t dim, std::byte* const* out) = nullptr;
  /// Dequantises packed rows to bf16 [rows, dim] (exact).
  status (*unpack_rows)(stream&, row_format, const std::byte* const* in, std::int64_t rows,
                        std::int64_t dim, bf16* y) = nullptr;

  /// Rotates the last rope_dim of every head of x [rows, heads, dim] in place; inverse = conjugate.
  status (*rope)(stream&, bf16* x, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                 const std::int32_t* positions, rope_table, bool inverse) = nullptr;

  status (*attention)(stream&, const attention_args&) = nullptr;
  status (*index_scores)(stream&, const index_score_args&) = nullptr;

  /// mHC coefficients of x = flatten(X) [rows, streams*dim]: pre, post [rows, streams], comb [rows,
  /// streams, streams] (row j, column i).
  status (*hc_mix)(stream&, const bf16* x, std::int64_t rows, std::int64_t streams,
                   std::int64_t dim, const float* fn, const float* scale, const float* base,
                   int sinkhorn_iters, float hc_eps, float norm_eps, float* pre, float* post,
                   float* comb) = nullptr;
  /// u = bf16(sum_s pre[s] X[s])
  status (*hc_collapse)(stream&, const bf16* x, const float* pre, std::int64_t rows,
                        std::int64_t streams, std::int64_t dim, bf16* u) = nullptr;
  /// X[i] = bf16(post[i] y + sum_j comb[j, i] X[j]), in place. Each product is rounded to fp32, the
  /// streams are added ascending, post[i] y comes last, no fused steps: the reference's order, so
  /// that the next site's coefficients agree to 1e-5.
  status (*hc_update)(stream&, bf16* x, const bf16* y, const float* post, const float* comb,
                      std::int64_t rows, std::int64_t streams, std::int64_t dim) = nullptr;

  /// score = sqrt(softplus(logit / gate_temp)); ids = top k of score + bias in rank order, ties to
  /// the lower id; weights = score / (sum + 1e-20) * route_scale. ids, weights [rows, k].
  status (*route)(stream&, const float* logits, const float* bias, std::int64_t rows,
                  std::int64_t experts, std::int64_t k, float gate_temp, float route_scale,
                  std::int32_t* ids, float* weights) = nullptr;

  /// a = bf16(w * silu(min(g, limit)) * clamp(u, +-limit)); g, u, a bf16 [rows, dim]; w [rows] or
  /// null = 1.
  status (*swiglu)(stream&, const bf16* g, const bf16* u, const float* w, float limit,
                   std::int64_t rows, std::int64_t dim, bf16* a) = nullptr;

  /// y = bf16(sum_k parts[row, k] in order of k, fp32, then + shared[row]); parts bf16 [rows, k,
  /// dim].
  status (*combine)(stream&, const bf16* parts, const bf16* shared, std::int64_t rows,
                    std::int64_t k, std::int64_t dim, bf16* y) = nullptr;

  /// Ratio-2 pooling: latent = bf16(sum_r softmax_r(g)[c] * a_r[c]); a, g fp32 [pairs, 2, dim],
  /// latent [pairs, dim] before the norm.
  status (*pool_pairs)(stream&, const float* a, const float* g, std::int64_t pairs,
                       std::int64_t dim, bf16* latent) = nullptr;

  /// Engram gate (spec 2.7): X_s += gate_s * value, in place; kv bf16 [rows, (streams+1)*dim] = key
  /// per stream, then value. live[row] == 0 leaves the row as it is (null: all live).
  status (*engram_gate)(stream&, bf16* x, const bf16* kv, const bf16* q_weight,
                        const bf16* k_weight, const std::uint8_t* live, std::int64_t rows,
                        std::int64_t streams, std::int64_t dim, float eps) = nullptr;

  /// The k best of scores[0, n), ascending, -1 padded; ties to the lower index; -inf is never
  /// picked. allowed: byte mask [n] or null. Returns through `selected` [k].
  status (*top_k)(stream&, const float* scores, std::int64_t n, const std::uint8_t* allowed,
                  std::int64_t k, std::int32_t* selected) = nullptr;
};

const op_table& ref_ops();

enum class isa : std::uint8_t { portable, avx2, avx512 };

/// True if this machine can run that build.
bool isa_available(isa);
/// @pre isa_available(level)
const op_table& cpu_ops(isa level);
/// The fastest available; DI_ISA=portable|avx2|avx512 in the environment overrides.
const op_table& best_cpu_ops();

} // namespace di::kernels
