// SPDX-License-Identifier: Apache-2.0
// Compact prefill is full prefill where nothing is cut, cuts only what the floors say, and does not
// depend on chunks or batch mates; forks of a sequence do not disturb each other.
#include "tests/support/prefix_modes.hpp"

#include <array>
#include <utility>

namespace di::engine {
namespace {

using di::testing::ask;
using di::testing::expect_same;
using di::testing::host;
using di::testing::outcome;
using di::testing::prefix_modes;
using di::testing::token_list;
using proto::prefill_mode;
using proto::prefix_mode;

class compact_and_forks : public prefix_modes {};

TEST_P(compact_and_forks, compact_prefill_of_a_prompt_that_is_kept_whole_is_full_prefill) {
  const auto keep = static_cast<std::size_t>(rules.default_keep());
  for (const std::size_t length : {std::size_t{1}, keep - 1, keep}) {
    const ask full{text(1, length), text(2, 3)};
    ask compact = full;
    compact.prefill = prefill_mode::compact;
    expect_same(cold(full), cold(compact), std::to_string(length) + " tokens");
  }
  const ask full{text(1, keep + 1), text(2, 3)};
  ask compact = full;
  compact.prefill = prefill_mode::compact;
  EXPECT_NE(cold(full).state, cold(compact).state) << "one row more must be cut";
}

/// The oracle of the specification: every value that later rows read is then made with its whole
/// window. (spec of the model, 4.4)
TEST_P(compact_and_forks, compact_prefill_with_a_halo_over_the_layers_behind_is_full_prefill) {
  const std::int64_t behind = rules.layers - rules.encoder_layers;
  ask full{text(3, tiny ? 200 : 420), text(4, 5)};
  const outcome expected = cold(full);
  full.prefill = prefill_mode::compact;
  full.keep = rules.window + behind * (rules.window - 1);
  ASSERT_LT(full.keep, static_cast<std::int64_t>(full.prompt.size()));
  expect_same(expected, cold(full), "window + layers behind * (window - 1) rows");
  full.keep = rules.window + (behind - 1) * (rules.window - 1);
  expect_same(expected, cold(full), "the least number of rows");
  full.output.clear();
  full.keep = rules.window;
  ask whole = full;
  whole.prefill = prefill_mode::full;
  EXPECT_NE(cold(whole).state, cold(full).state) << "without the halo it must show";
}

TEST_P(compact_and_forks, compact_prefill_does_not_depend_on_chunks) {
  ask a{text(5, tiny ? 150 : 300), text(6, 4)};
  a.prefill = prefill_mode::compact;
  const outcome expected = cold(a);
  for (const auto& chunks : std::vector<std::vector<std::size_t>>{{1}, {7}, {64}, {3, 50, 1}}) {
    if (!tiny && chunks.front() == 1)
      continue;
    host h{*model, 0};
    a.chunks = chunks;
    expect_same(expected, h.serve(a), "chunks from " + std::to_string(chunks.front()));
  }
}

TEST_P(compact_and_forks, compact_prefill_computes_only_kept_rows_behind_the_split) {
  ask a{text(7, 200), {}};
  a.prefill = prefill_mode::compact;
  a.chunks = {70};
  host h{*model, 0};
  h.serve(a);
  for (std::int64_t layer = 0; layer < rules.layers; ++layer) {
    const bool kept = layer + 1 >= rules.encoder_layers; // the last source routes kept rows only
    EXPECT_EQ(h.steps.rows(layer), kept ? std::min<std::int64_t>(200, rules.default_keep()) : 200)
        << "layer " << layer;
  }
}

/// Rows of other sequences in the step of a cut are not touched by it.
TEST_P(compact_and_forks, cuts_do_not_show_in_batch_mates) {
  ask compact{text(8, 180), {}, prefill_mode::compact};
  ask full{text(9, 120), {}};
  const outcome expected_compact = cold(compact);
  const outcome expected_full = cold(full);
  host h{*model, 0};
  const auto first = h.rank.sequence();
  const auto second = h.rank.sequence();
  ASSERT_TRUE(h.cache.start(*first, compact.prompt, compact.request()).ok());
  ASSERT_TRUE(h.cache.start(*second, full.prompt, full.request()).ok());
  std::vector<step_segment> segments;
  for (const auto& [a, b] :
       std::vector<std::pair<std::size_t, std::size_t>>{{50, 30}, {30, 1}, {60, 50}, {40, 39}}) {
    segments.clear();
    const auto add = [&](sequence_state& s, const token_list& prompt, std::size_t rows) {
      const auto at = static_cast<std::size_t>(s.length());
      segments.push_back({&s, static_cast<std::uint32_t>(at), std::span{prompt}.subspan(at, rows),
                          at + rows == prompt.size() ? logits_wanted::last : logits_wanted::none});
    };
    add(*second, full.prompt, b);
    add(*first, compact.prompt, a);
    ASSERT_TRUE(h.loop.run(segments).ok());
  }
  const auto row = [&](std::size_t segment) {
    const auto logits = h.rank.steps->logits(segment);
    return std::vector<float>{logits.begin(), logits.end()};
  };
  expect_same(expected_full, {row(0), second->hash()}, "full");
  expect_same(expected_compact, {row(1), first->hash()}, "compact");
}

TEST_P(compact_and_forks, rows_below_the_decoder_floor_have_no_logits) {
  ask a{text(10, 200), {}, prefill_mode::compact};
  host h{*model, 0};
  const auto sequence = h.rank.sequence();
  ASSERT_TRUE(h.cache.start(*sequence, a.prompt, a.request()).ok());
  step_segment segment{sequence.get(), 0, std::span{a.prompt}.first(10), logits_wanted::last};
  const auto refused = h.loop.run({&segment, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ec::bad_argument);
  EXPECT_EQ(sequence->length(), 0);
}

/// n > 1: one prefill, then choices that go their own ways.
TEST_P(compact_and_forks, forks_are_sequences_of_their_own) {
  for (const std::size_t length : {std::size_t{100}, std::size_t{128}, std::size_t{131}}) {
    const std::string what = std::to_string(length) + " tokens";
    ask a{text(14, length), text(15, 40)};
    ask b{a.prompt, text(16, 40)};
    const outcome expected_a = cold(a);
    const outcome expected_b = cold(b);
    host h{*model, 0};
    const auto first = h.rank.sequence();
    auto session = h.cache.start(*first, a.prompt, a.request());
    std::vector<float> shared;
    h.go_on(a, *first, *session, a.prompt.size(), shared);
    const auto second = first->fork();
    EXPECT_EQ(second->hash(), first->hash());
    outcome found_a{shared, 0}, found_b{shared, 0};
    for (std::size_t i = 0; i < a.output.size(); ++i)
      for (auto* side : {&found_a, &found_b}) {
        sequence_state& s = side == &found_a ? *first : *second;
        const token_list& output = side == &found_a ? a.output : b.output;
        // A wrong draft behind the token is taken back at once, also across a page border.
        const std::array<token_id, 2> rows{output[i], 7};
        h.step(s, rows, logits_wanted::all);
        const auto logits = h.rank.steps->logits(0);
        side->logits.insert(side->logits.end(), logits.begin(),
                            logits.begin() + static_cast<std::ptrdiff_t>(logits.size() / 2));
        ASSERT_TRUE(s.truncate(static_cast<std::int64_t>(length + i + 1)).ok());
        std::vector<page_id> held{first->pages().begin(), first->pages().end()};
        held.insert(held.end(), second->pages().begin(), second->pages().end());
        ASSERT_TRUE(h.cache.index().check(held).ok());
      }
    found_a.state = first->hash();
    found_b.state = second->hash();
    expect_same(expected_a, found_a, what + ", first");
    expect_same(expected_b, found_b, what + ", second");
  }
}

/// Taking rows back into a page that a fork shares gives the writer a page of its own.
TEST_P(compact_and_forks, truncation_after_a_fork_does_not_write_into_shared_pages) {
  const token_list prompt = text(17, 130);
  host h{*model, 0};
  const auto first = h.rank.sequence();
  h.step(*first, prompt, logits_wanted::none);
  const auto second = first->fork();
  const std::uint64_t before = second->hash();
  ASSERT_TRUE(first->truncate(126).ok());
  EXPECT_EQ(first->pages_wanted(129), 2) << "a copy of the shared page and a new one";
  h.step(*first, std::array<token_id, 3>{1, 2, 3}, logits_wanted::none);
  EXPECT_NE(first->pages()[0], second->pages()[0]);
  EXPECT_EQ(second->hash(), before);
  ask other{{prompt.begin(), prompt.begin() + 126}, {1, 2, 3}};
  EXPECT_EQ(cold(other).state, first->hash());
}

INSTANTIATE_TEST_SUITE_P(models, compact_and_forks, ::testing::Values("tiny", "demo"),
                         [](const auto& model) { return std::string{model.param}; });

} // namespace
} // namespace di::engine
