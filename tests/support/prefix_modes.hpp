// SPDX-License-Identifier: Apache-2.0
// Test-only: whole requests in every prefill and prefix mode through a cache with a history, and
// the cold run that they are compared with.
#pragma once

#include "engine/model/prefix_cache.hpp"
#include "tests/support/counting_runner.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace di::testing {

using engine::logits_wanted;
using engine::page_tokens;
using engine::step_segment;
using proto::prefill_mode;
using proto::prefix_mode;
using token_list = std::vector<token_id>;

/// What a request yields: logits of the last prompt row and of every output row, and the state.
struct outcome {
  std::vector<float> logits;
  std::uint64_t state = 0;
};

struct ask {
  token_list prompt = {}, output = {};
  prefill_mode prefill = prefill_mode::full;
  prefix_mode prefix = prefix_mode::off;
  std::int64_t keep = 0;
  std::vector<std::size_t> chunks = {100000};
  std::string salt = {};
  std::optional<std::int64_t> recorded = {};

  engine::prefill_request request() const {
    return {static_cast<std::int64_t>(prompt.size()), prefill, keep, prefix};
  }
};

/// A rank's model, pool and cache.
struct host {
  host(const engine::loaded_model& model, std::size_t snapshot_bytes, std::uint32_t pages = 64)
      : rank{model, 1, kernels::best_cpu_ops(), pages},
        cache{*rank.pool,
              engine::make_prefill_rules(model.spec()),
              {"contract", page_tokens, snapshot_bytes}},
        steps{*rank.steps},
        loop{steps, *rank.experts} {}

  void step(engine::sequence_state& sequence, std::span<const token_id> tokens,
            logits_wanted wanted) {
    step_segment segment{&sequence, static_cast<std::uint32_t>(sequence.length()), tokens, wanted};
    room(sequence.pages_wanted(sequence.length() + static_cast<std::int64_t>(tokens.size())));
    if (const auto done = loop.run({&segment, 1}); !done.ok())
      throw std::runtime_error(done.error().render());
  }
  void room(std::int64_t pages) {
    if (const auto made = cache.index().make_room(static_cast<std::uint32_t>(pages)); !made.ok())
      throw std::runtime_error(made.error().render());
  }
  void conserved(const engine::sequence_state& sequence) {
    if (const auto fine = cache.index().check(sequence.pages()); !fine.ok())
      throw std::runtime_error(fine.error().render());
  }

  /// Runs tokens [sequence.length(), end of text) of a request; logits from the last prompt row on.
  void go_on(const ask& a, engine::sequence_state& sequence, engine::prefix_session& with,
             std::size_t end, std::vector<float>& logits) {
    token_list text = a.prompt;
    text.insert(text.end(), a.output.begin(), a.output.end());
    for (std::size_t k = 0; static_cast<std::size_t>(sequence.length()) < end; ++k) {
      const auto at = static_cast<std::size_t>(sequence.length());
      std::size_t to = at + 1; // output rows one by one
      if (at < a.prompt.size())
        to = std::min(
            {at + a.chunks[k % a.chunks.size()], a.prompt.size(),
             static_cast<std::size_t>(cache.chunk_end(with, static_cast<std::int64_t>(at)))});
      const bool wanted = to >= a.prompt.size();
      step(sequence, std::span{text}.subspan(at, to - at),
           wanted ? logits_wanted::last : logits_wanted::none);
      if (wanted)
        logits.insert(logits.end(), rank.steps->logits(0).begin(), rank.steps->logits(0).end());
      if (const auto done = cache.advanced(with, sequence, sequence.length()); !done.ok())
        throw std::runtime_error(done.error().render());
      conserved(sequence);
    }
  }

  outcome serve(const ask& a) {
    const auto sequence = rank.sequence();
    auto started = cache.start(*sequence, a.prompt, a.request(), a.salt, a.recorded);
    if (!started.ok())
      throw std::runtime_error(started.error().render());
    session = *started;
    outcome out;
    go_on(a, *sequence, session, a.prompt.size() + a.output.size(), out.logits);
    out.state = sequence->hash();
    return out;
  }

  test_engine rank;
  engine::prefix_cache cache;
  counting_runner steps;
  engine::local_expert_loop loop;
  engine::prefix_session session; ///< of the last request served
};

/// The same request on a machine of its own that knows nothing, in one chunk.
inline outcome cold_run(const engine::loaded_model& model, ask a) {
  host fresh{model, 0};
  a.prefix = prefix_mode::off;
  a.chunks = {100000};
  return fresh.serve(a);
}

/// A bounded request by hand: pages of a cold run below H, then rows from H - window on that see
/// nothing below, one by one.
inline outcome bounded_by_hand(const engine::loaded_model& model, const ask& a, std::int64_t hit) {
  host h{model, 0};
  const auto exact = h.rank.sequence();
  const auto below = std::span{a.prompt}.first(static_cast<std::size_t>(hit));
  h.step(*exact, below, logits_wanted::none);
  const std::int64_t floor = hit - h.cache.rules().window;
  const auto decoder = decoder_floor(h.cache.rules(), a.request());
  const auto sequence = h.rank.sequence();
  const engine::sequence_floors floors{floor, decoder == 0 ? 0 : std::max(decoder, floor), hit,
                                       false};
  if (const auto done = sequence->adopt(below, exact->pages(), floors, floor); !done.ok())
    throw std::runtime_error(done.error().render());
  outcome out;
  token_list text = a.prompt;
  text.insert(text.end(), a.output.begin(), a.output.end());
  for (auto at = static_cast<std::size_t>(floor); at < text.size(); ++at) {
    const bool wanted = at + 1 >= a.prompt.size();
    h.step(*sequence, std::span{text}.subspan(at, 1),
           wanted ? logits_wanted::last : logits_wanted::none);
    if (wanted)
      out.logits.insert(out.logits.end(), h.rank.steps->logits(0).begin(),
                        h.rank.steps->logits(0).end());
  }
  out.state = sequence->hash();
  return out;
}

inline void expect_same(const outcome& expected, const outcome& found, const std::string& what) {
  ASSERT_EQ(expected.logits.size(), found.logits.size()) << what;
  EXPECT_EQ(0, std::memcmp(expected.logits.data(), found.logits.data(),
                           expected.logits.size() * sizeof(float)))
      << what << ": logits differ";
  EXPECT_EQ(expected.state, found.state) << what << ": state differs";
}

class prefix_modes : public ::testing::TestWithParam<const char*> {
protected:
  prefix_modes()
      : tiny{std::string{GetParam()} == "tiny"},
        model{load_model(tiny ? preset_checkpoint("tiny") : demo_checkpoint())},
        rules{engine::make_prefill_rules(model->spec())} {}

  token_list text(std::uint32_t seed, std::size_t count) const {
    std::mt19937 random{seed};
    token_list tokens(count);
    for (token_id& t : tokens)
      t = static_cast<token_id>(random() % static_cast<std::uint32_t>(model->spec().vocab_size));
    return tokens;
  }

  outcome cold(const ask& a) const { return cold_run(*model, a); }

  bool tiny;
  std::unique_ptr<engine::loaded_model> model;
  engine::prefill_rules rules;
  static constexpr std::size_t some_snapshots = std::size_t{64} << 20;
};

} // namespace di::testing
