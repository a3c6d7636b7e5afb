// SPDX-License-Identifier: Apache-2.0
// Ten thousand made-up rows: picks equal those of an independent twin
// (tests/support/make_sampling_golden.py), and the bits of all logprobs equal the stored ones, so
// that builds for different machines can be held against each other.
#include "engine/sampling/philox.hpp"
#include "engine/sampling/sampler.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

namespace di::engine {
namespace {

using json = nlohmann::json;

// Stored by this code itself (x86-64, 2026-11-29): any build for any machine must repeat it.
constexpr const char* logprob_bits = "d3323f6672cc740f";

std::vector<std::uint32_t> words(std::uint32_t row, std::uint32_t stream, std::size_t count) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t quad = 0; out.size() < count; ++quad)
    for (const std::uint32_t w : philox4x32({quad, row, 0x100 + stream, 0}, {0x5EED, 0}))
      out.push_back(w);
  out.resize(count);
  return out;
}

struct made_row {
  std::vector<float> logits;
  sampling_params params;
  token_history history;
  std::uint32_t position = 0, choice = 0;
};

template <std::size_t N>
double one_of(const double (&values)[N], std::uint32_t word) {
  return values[word % N];
}

made_row make_row(std::uint32_t row) {
  const auto p = words(row, 0, 16);
  const std::uint32_t vocab = 8 + p[0] % 700;
  made_row out;
  for (const std::uint32_t word : words(row, 1, vocab)) {
    if ((word & 0x3F) == 0)
      out.logits.push_back(-std::numeric_limits<float>::infinity());
    else if (p[2] % 3 == 0)
      out.logits.push_back(static_cast<float>(static_cast<int>(word >> 28) - 8));
    else
      out.logits.push_back(std::ldexp(static_cast<float>(static_cast<int>(word >> 16) - 32768),
                                      -static_cast<int>(10 + p[1] % 4)));
  }
  const auto spike = p[3] % vocab;
  out.logits[spike] = 3.0F;
  sampling_params& a = out.params;
  a.temperature = one_of({0.0, 0.3, 0.7, 1.0, 1.5}, p[4]);
  a.top_p = one_of({1.0, 1.0, 0.95, 0.9, 0.5, 0.1}, p[5]);
  a.top_k = static_cast<int>(one_of({0, 0, 1, 5, 40, 100}, p[6]));
  a.min_p = one_of({0.0, 0.0, 0.05, 0.2}, p[7]);
  a.repetition_penalty = one_of({1.0, 1.0, 1.1, 1.3}, p[8]);
  a.frequency_penalty = one_of({0.0, 0.0, 0.5, -0.25}, p[9]);
  a.presence_penalty = one_of({0.0, 0.0, 0.75}, p[10]);
  a.seed = p[11] | std::uint64_t{p[12]} << 32;
  if (p[2] % 2 != 0)
    a.logit_bias = {{static_cast<token_id>(spike), -1.5}};
  a.logprobs = 3;
  out.choice = p[13] % 4;
  out.position = p[14];
  for (std::uint32_t k = 0; k < 3; ++k)
    out.history.add_prompt(
        std::vector{static_cast<token_id>((p[15] + std::uint64_t{k} * 7) % vocab)});
  for (std::uint32_t k = 0; k < 4; ++k)
    out.history.push(static_cast<token_id>((p[15] + std::uint64_t{k} * 5) % vocab));
  return out;
}

TEST(sampler_golden, picks_what_the_independent_twin_picks_with_the_stored_logprob_bits) {
  std::ifstream in{DI_SOURCE_DIR "/tests/golden/data/sampling/choices.json"};
  const json stored = json::parse(in);
  const auto rows = stored["rows"].get<std::uint32_t>(),
             chunk = stored["chunk"].get<std::uint32_t>();
  ASSERT_EQ(rows, 10000U);
  sample_scratch scratch;
  std::uint64_t ids = 0, bits = 0xCBF29CE484222325U;
  const auto add = [](std::uint64_t& hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x100000001B3U;
  };
  for (std::uint32_t r = 0; r < rows; ++r) {
    if (r % chunk == 0)
      ids = 0xCBF29CE484222325U;
    const made_row m = make_row(r);
    const sampler s = sampler::make(m.params, m.logits.size(), {}).value();
    const auto c = s.pick(
        {.logits = m.logits, .position = m.position, .choice = m.choice, .history = &m.history},
        scratch);
    ASSERT_TRUE(c.ok()) << c.error().render();
    add(ids, static_cast<std::uint64_t>(c->id));
    add(bits, std::bit_cast<std::uint64_t>(*c->logprob));
    for (const token_logprob& t : c->top) {
      add(bits, static_cast<std::uint64_t>(t.id));
      add(bits, std::bit_cast<std::uint64_t>(t.logprob));
    }
    if (r % chunk == chunk - 1) {
      ASSERT_EQ(fmt::format("{:016x}", ids), stored["ids_fnv"][r / chunk].get<std::string>())
          << "rows " << r + 1 - chunk << " to " << r;
    }
  }
  EXPECT_EQ(fmt::format("{:016x}", bits), logprob_bits);
}

} // namespace
} // namespace di::engine
