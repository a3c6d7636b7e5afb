// SPDX-License-Identifier: Apache-2.0
// Golden operations (tests/golden/data/ops.*), level 1 of the stated tolerances, on every
// implementation that this machine can run.
#include "kernels/kernels.hpp"
#include "tests/support/golden_file.hpp"
#include "tests/support/kernel_tables.hpp"

#include <gtest/gtest.h>

namespace di::kernels {
namespace {

using testing::equal;
using testing::golden_file;
using testing::near_bf16;
using testing::near_f32;
using words = std::vector<bf16>;
using bytes = std::vector<std::uint8_t>;
using floats = std::vector<float>;

std::size_t product(std::int64_t a, std::int64_t b = 1, std::int64_t c = 1) {
  return static_cast<std::size_t>(a * b * c);
}

class ops_golden : public ::testing::TestWithParam<const op_table*> {
protected:
  const op_table& ops = *GetParam();
  std::unique_ptr<stream> s = make_cpu_stream(2);
  static const golden_file& file() {
    static const golden_file f(DI_SOURCE_DIR "/tests/golden/data/ops.safetensors");
    return f;
  }

  /// y = W act_quant(x), bf16.
  words quantised_linear(const std::string& w, const std::string& scale, weight_kind kind,
                         const words& x, std::int64_t rows) {
    const bytes codes = file().get<std::uint8_t>(w), scales = file().get<std::uint8_t>(scale);
    const std::int64_t out = file().dim(w, 0), in = std::ssize(x) / rows;
    bytes qx(product(rows, in)), sx(product(rows, in / 32));
    EXPECT_EQ(ops.act_quant(*s, x.data(), in, rows, in, qx.data(), in, sx.data(), in / 32),
              status::ok);
    words y(product(rows, out));
    const linear_job job{.w = {kind, codes.data(), scales.data(), out, in},
                         .x_kind = input_kind::fp8,
                         .x = qx.data(),
                         .x_scale = sx.data(),
                         .x_stride = in,
                         .x_scale_stride = in / 32,
                         .rows = rows,
                         .y = y.data(),
                         .y_stride = out};
    EXPECT_EQ(ops.linear(*s, {&job, 1}), status::ok);
    return y;
  }

  floats float_linear(const words& w, const words& x, std::int64_t rows, std::int64_t out) {
    const std::int64_t in = std::ssize(x) / rows;
    floats y(product(rows, out));
    const linear_job job{.w = {weight_kind::bf16, w.data(), nullptr, out, in},
                         .x = x.data(),
                         .x_stride = in,
                         .rows = rows,
                         .y = y.data(),
                         .y_f32 = true,
                         .y_stride = out};
    EXPECT_EQ(ops.linear(*s, {&job, 1}), status::ok);
    return y;
  }

  words expert(const std::string& name, weight_kind kind, float limit, bool routed) {
    const words x = file().get<bf16>(name + ".x");
    const std::int64_t rows = file().dim(name + ".x", 0);
    const words g = quantised_linear(name + ".w1", name + ".w1_scale", kind, x, rows);
    const words u = quantised_linear(name + ".w3", name + ".w3_scale", kind, x, rows);
    const floats w = routed ? file().get<float>(name + ".route") : floats(product(rows), 1.0F);
    words a(g.size());
    EXPECT_EQ(ops.swiglu(*s, g.data(), u.data(), routed ? w.data() : nullptr, limit, rows,
                         std::ssize(g) / rows, a.data()),
              status::ok);
    return quantised_linear(name + ".w2", name + ".w2_scale", kind, a, rows);
  }
};

TEST_P(ops_golden, rms_norm_is_exact_to_one_ulp) {
  for (const std::string name : {"rmsnorm_a", "rmsnorm_b"}) {
    const words x = file().get<bf16>(name + ".x"), w = file().get<bf16>(name + ".w");
    const std::int64_t rows = file().dim(name + ".x", 0), dim = std::ssize(w);
    words y(x.size());
    ASSERT_EQ(ops.rms_norm(*s, x.data(), dim, w.data(), 1e-20F, rows, dim, y.data(), dim),
              status::ok);
    EXPECT_TRUE(near_bf16(file().at(name + ".y"), y, 1));
  }
}

TEST_P(ops_golden, activation_codes_and_scales_are_exact) {
  const words x = file().get<bf16>("act_quant.x");
  const std::int64_t rows = file().dim("act_quant.x", 0), dim = file().dim("act_quant.x", 1);
  bytes codes(x.size()), scales(x.size() / 32);
  ASSERT_EQ(ops.act_quant(*s, x.data(), dim, rows, dim, codes.data(), dim, scales.data(), dim / 32),
            status::ok);
  EXPECT_TRUE(equal(file().at("act_quant.codes"), codes));
  EXPECT_TRUE(equal(file().at("act_quant.scales"), scales));
}

TEST_P(ops_golden, packed_rows_are_exact_both_ways) {
  const std::pair<std::string, row_format> cases[] = {{"act_quant", row_format::fp8_32},
                                                      {"fp4_32_e8m0", row_format::fp4_32},
                                                      {"fp4_16_e4m3", row_format::fp4_16}};
  for (const auto& [name, format] : cases) {
    const words x = file().get<bf16>(name + ".x");
    const bytes codes = file().get<std::uint8_t>(name + ".codes");
    const bytes scales = file().get<std::uint8_t>(name + ".scales");
    const std::int64_t rows = file().dim(name + ".x", 0), dim = file().dim(name + ".x", 1);
    const auto size = product(row_bytes(format, dim));
    std::vector<std::byte> packed(size * product(rows));
    std::vector<std::byte*> to;
    for (std::size_t r = 0; r < product(rows); ++r)
      to.push_back(packed.data() + r * size);
    ASSERT_EQ(ops.pack_rows(*s, format, x.data(), dim, rows, dim, to.data()), status::ok);
    bytes have_codes, have_scales;
    const std::size_t code_bytes = codes.size() / product(rows);
    for (std::size_t i = 0; i < packed.size(); ++i)
      (i % size < code_bytes ? have_codes : have_scales)
          .push_back(static_cast<std::uint8_t>(packed[i]));
    EXPECT_TRUE(equal(file().at(name + ".codes"), have_codes));
    EXPECT_TRUE(equal(file().at(name + ".scales"), have_scales));
    words y(x.size());
    const std::vector<const std::byte*> from(to.begin(), to.end());
    ASSERT_EQ(ops.unpack_rows(*s, format, from.data(), rows, dim, y.data()), status::ok);
    EXPECT_TRUE(near_bf16(file().at(name + ".y"), y, 0));
  }
}

TEST_P(ops_golden, rope_is_exact_to_one_ulp_up_to_a_million_positions) {
  for (const std::string name :
       {"rope_window", "rope_compress", "rope_real_window", "rope_real_compress"}) {
    const words x = file().get<bf16>(name + ".x");
    const floats freq = file().get<float>(name + ".freqs");
    const auto positions = file().get<std::int32_t>(name + ".positions");
    const std::int64_t heads = file().dim(name + ".x", 1), dim = file().dim(name + ".x", 2);
    for (const bool inverse : {false, true}) {
      words y = x;
      ASSERT_EQ(ops.rope(*s, y.data(), std::ssize(positions), heads, dim, positions.data(),
                         {freq.data(), 2 * std::ssize(freq)}, inverse),
                status::ok);
      EXPECT_TRUE(near_bf16(file().at(name + (inverse ? ".y_inv" : ".y")), y, 1));
    }
  }
}

TEST_P(ops_golden, stream_mixing_agrees_to_1e_5) {
  const words x = file().get<bf16>("mhc.X");
  const floats scale = file().get<float>("mhc.scale"), base = file().get<float>("mhc.base");
  const std::int64_t rows = file().dim("mhc.X", 0), streams = file().dim("mhc.X", 1),
                     dim = file().dim("mhc.X", 2);
  for (const std::string suffix : {"", "_big"}) {
    floats fn = file().get<float>("mhc.fn");
    for (float& f : fn)
      f *= suffix.empty() ? 1.0F : 40.0F; // the big case has 40 times the mixes
    floats pre(product(rows, streams)), post(pre.size()), comb(product(rows, streams, streams));
    ASSERT_EQ(ops.hc_mix(*s, x.data(), rows, streams, dim, fn.data(), scale.data(), base.data(), 20,
                         1e-6F, 1e-20F, pre.data(), post.data(), comb.data()),
              status::ok);
    EXPECT_TRUE(near_f32(file().at("mhc.pre" + suffix), pre, 1e-5));
    EXPECT_TRUE(near_f32(file().at("mhc.post" + suffix), post, 1e-5));
    EXPECT_TRUE(near_f32(file().at("mhc.comb" + suffix), comb, 1e-5));
  }
}

TEST_P(ops_golden, streams_collapse_and_update_to_one_ulp) {
  words x = file().get<bf16>("mhc.X");
  const words y = file().get<bf16>("mhc.y");
  const floats pre = file().get<float>("mhc.pre_mix"), post = file().get<float>("mhc.post"),
               comb = file().get<float>("mhc.comb");
  const std::int64_t rows = file().dim("mhc.X", 0), streams = file().dim("mhc.X", 1),
                     dim = file().dim("mhc.X", 2);
  words u(y.size());
  ASSERT_EQ(ops.hc_collapse(*s, x.data(), pre.data(), rows, streams, dim, u.data()), status::ok);
  EXPECT_TRUE(near_bf16(file().at("mhc.u"), u, 1));
  ASSERT_EQ(ops.hc_update(*s, x.data(), y.data(), post.data(), comb.data(), rows, streams, dim),
            status::ok);
  EXPECT_TRUE(near_bf16(file().at("mhc.X_out"), x, 1));
}

TEST_P(ops_golden, quantised_linears_agree_to_one_ulp) {
  const std::pair<std::string, weight_kind> cases[] = {
      {"linear_fp8", weight_kind::fp8_tile32},
      {"linear_fp8_large", weight_kind::fp8_tile32},
      {"linear_fp4", weight_kind::fp4_row32},
      {"linear_fp4_large", weight_kind::fp4_row32}};
  for (const auto& [name, kind] : cases) {
    const words x = file().get<bf16>(name + ".x");
    const words y =
        quantised_linear(name + ".w", name + ".scale", kind, x, file().dim(name + ".x", 0));
    EXPECT_TRUE(near_bf16(file().at(name + ".y"), y, 1));
    const auto exact = file().get<double>(name + ".y_f64");
    EXPECT_TRUE(testing::verdict(
        testing::compare(file().at(name + ".y_f64"), std::ssize(y), [&](std::size_t i) {
          // One bf16 ulp of the exact sum is at most 2^-7 of it.
          return std::abs(static_cast<double>(testing::bf16_value(y[i])) - exact[i])
                 / (std::abs(exact[i]) * 0x1p-7 + 1e-30);
        })));
  }
}

TEST_P(ops_golden, experts_agree_to_one_ulp) {
  EXPECT_TRUE(near_bf16(file().at("expert_fp4.y"),
                        expert("expert_fp4", weight_kind::fp4_row32, 10.0F, true), 1));
  EXPECT_TRUE(near_bf16(file().at("expert_fp4_clamped.y"),
                        expert("expert_fp4_clamped", weight_kind::fp4_row32, 1.0F, true), 1));
  EXPECT_TRUE(near_bf16(file().at("expert_fp8_shared.y"),
                        expert("expert_fp8_shared", weight_kind::fp8_tile32, 10.0F, false), 1));
}

TEST_P(ops_golden, router_picks_exactly_and_weighs_to_1e_5) {
  const words x = file().get<bf16>("router.x"), w = file().get<bf16>("router.weight");
  const floats bias = file().get<float>("router.bias");
  const std::int64_t rows = file().dim("router.x", 0), experts = std::ssize(bias),
                     k = file().dim("router.ids", 1);
  const floats logits = float_linear(w, x, rows, experts);
  EXPECT_TRUE(near_f32(file().at("router.logits"), logits, 1e-5));
  std::vector<std::int32_t> ids(product(rows, k));
  floats weights(ids.size());
  ASSERT_EQ(ops.route(*s, logits.data(), bias.data(), rows, experts, k, 1.0F, 1.5F, ids.data(),
                      weights.data()),
            status::ok);
  EXPECT_TRUE(equal(file().at("router.ids"), ids));
  EXPECT_TRUE(near_f32(file().at("router.weights"), weights, 1e-5));
}

TEST_P(ops_golden, attention_agrees_to_one_ulp) {
  for (const std::string name : {"attention", "attention_blocks"}) {
    const words q = file().get<bf16>(name + ".q"), kv = file().get<bf16>(name + ".kv");
    const auto list = file().get<std::int32_t>(name + ".rows");
    const floats sink = file().get<float>(name + ".sink");
    const std::int64_t rows = file().dim(name + ".q", 0), heads = file().dim(name + ".q", 1),
                       dim = file().dim(name + ".q", 2), slots = file().dim(name + ".rows", 1);
    std::vector<const std::byte*> pointers;
    for (const std::int32_t i : list)
      pointers.push_back(i < 0 ? nullptr
                               : reinterpret_cast<const std::byte*>(kv.data() + product(i, dim)));
    const std::vector<std::int32_t> count(product(rows), static_cast<std::int32_t>(slots));
    words out(q.size());
    attention_args a;
    a.q = q.data();
    a.rows = rows;
    a.heads = heads;
    a.dim = dim;
    a.kv = pointers.data();
    a.kv_stride = slots;
    a.window_count = count.data();
    a.total_count = count.data();
    a.sink = sink.data();
    a.scale = 1.0F / std::sqrt(static_cast<float>(dim));
    a.out = out.data();
    a.window_format = row_format::plain;
    ASSERT_EQ(ops.attention(*s, a), status::ok);
    EXPECT_TRUE(near_bf16(file().at(name + ".o"), out, 1));
  }
}

TEST_P(ops_golden, index_scores_and_selections_are_exact) {
  for (const int ratio : {1, 2}) {
    const std::string name = "indexer_ratio" + std::to_string(ratio);
    const words q = file().get<bf16>(name + ".q"), k = file().get<bf16>(name + ".k"),
                w = file().get<bf16>(name + ".weights");
    const std::int64_t rows = file().dim(name + ".q", 0), heads = file().dim(name + ".q", 1),
                       dim = file().dim(name + ".q", 2), entries = file().dim(name + ".k", 0);
    const std::int64_t size = row_bytes(row_format::fp4_32, dim), page = 8;
    std::vector<std::byte> packed(product(entries + page, size));
    std::vector<std::byte*> to;
    std::vector<const std::byte*> pages;
    for (std::int64_t e = 0; e < entries; ++e) {
      to.push_back(packed.data() + e * size);
      if (e % page == 0)
        pages.push_back(to.back());
    }
    ASSERT_EQ(ops.pack_rows(*s, row_format::fp4_32, k.data(), dim, entries, dim, to.data()),
              status::ok);
    std::vector<std::int32_t> visible;
    for (std::int64_t p = 0; p < rows; ++p)
      visible.push_back(static_cast<std::int32_t>((p + 1) / ratio));
    floats scores(product(rows, entries));
    const index_score_args a{q.data(),     w.data(), rows,           heads,         dim,
                             pages.data(), page,     visible.data(), scores.data(), entries};
    ASSERT_EQ(ops.index_scores(*s, a), status::ok);
    words rounded;
    for (const float f : scores)
      rounded.push_back(static_cast<bf16>(std::bit_cast<std::uint32_t>(f) >> 16));
    EXPECT_TRUE(near_bf16(file().at(name + ".score_bf16"), rounded, 0));
    const auto allowed = file().get<std::uint8_t>(name + ".candidates");
    const std::int64_t top = file().dim(name + ".sel", 1);
    std::vector<std::int32_t> sel(product(rows, top)), within(sel.size());
    for (std::int64_t p = 0; p < rows; ++p) {
      const float* row = scores.data() + p * entries;
      ASSERT_EQ(ops.top_k(*s, row, entries, nullptr, top, sel.data() + p * top), status::ok);
      ASSERT_EQ(
          ops.top_k(*s, row, entries, allowed.data() + p * entries, top, within.data() + p * top),
          status::ok);
    }
    EXPECT_TRUE(equal(file().at(name + ".sel"), sel));
    EXPECT_TRUE(equal(file().at(name + ".sel_in_candidates"), within));
  }
}

TEST_P(ops_golden, compressor_latents_agree_to_one_ulp) {
  for (const int ratio : {1, 2}) {
    const std::string name = "compressor_ratio" + std::to_string(ratio);
    const words x = file().get<bf16>(name + ".x"), wkv = file().get<bf16>(name + ".wkv"),
                norm = file().get<bf16>(name + ".norm");
    const std::int64_t rows = file().dim(name + ".x", 0), dim = std::ssize(norm),
                       groups = rows / ratio;
    words latent(product(groups, dim));
    const floats a = float_linear(wkv, x, rows, dim);
    if (ratio == 2) {
      const floats g = float_linear(file().get<bf16>(name + ".wgate"), x, rows, dim);
      ASSERT_EQ(ops.pool_pairs(*s, a.data(), g.data(), groups, dim, latent.data()), status::ok);
    } else {
      const linear_job job{.w = {weight_kind::bf16, wkv.data(), nullptr, dim, std::ssize(x) / rows},
                           .x = x.data(),
                           .x_stride = std::ssize(x) / rows,
                           .rows = rows,
                           .y = latent.data(),
                           .y_stride = dim};
      ASSERT_EQ(ops.linear(*s, {&job, 1}), status::ok);
    }
    words y(latent.size());
    ASSERT_EQ(ops.rms_norm(*s, latent.data(), dim, norm.data(), 1e-20F, groups, dim, y.data(), dim),
              status::ok);
    EXPECT_TRUE(near_bf16(file().at(name + ".latent_prefill9"), y, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(every_implementation, ops_golden, ::testing::ValuesIn(all_tables()),
                         [](const auto& p) { return std::string(p.param->name); });

} // namespace
} // namespace di::kernels
