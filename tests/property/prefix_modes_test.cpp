// SPDX-License-Identifier: Apache-2.0
// Prefix modes over whole requests: an exact hit, by snapshot or by replay, gives the bits of a
// cold run; a bounded hit gives what its floors give, whoever made the pages; dropped sequences
// come back with the same bits.
#include "tests/support/prefix_modes.hpp"

#include <fmt/format.h>

namespace di::engine {
namespace {

using di::testing::ask;
using di::testing::bounded_by_hand;
using di::testing::expect_same;
using di::testing::host;
using di::testing::outcome;
using di::testing::prefix_modes;
using di::testing::token_list;
using proto::prefill_mode;
using proto::prefix_mode;

class exact_and_bounded : public prefix_modes {};

/// Seeded requests with shared beginnings through one cache; each must equal its cold run.
TEST_P(exact_and_bounded, an_exact_hit_has_the_bits_of_a_cold_run) {
  const int rounds = tiny ? 40 : 8;
  int snapshots = 0, replays = 0, hits = 0;
  for (const std::size_t bytes : {std::size_t{0}, some_snapshots}) {
    const std::uint32_t seed = bytes == 0 ? 100 : 200;
    std::mt19937 random{seed};
    host h{*model, bytes};
    const token_list base = text(seed, 700);
    for (int round = 0; round < rounds; ++round) {
      const std::string what = "seed " + std::to_string(seed) + " round " + std::to_string(round);
      ask a;
      const std::size_t shared = random() % 600;
      a.prompt.assign(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(shared));
      const token_list own = text(static_cast<std::uint32_t>(random()), 1 + random() % 100);
      a.prompt.insert(a.prompt.end(), own.begin(), own.end());
      a.output = text(static_cast<std::uint32_t>(random()), random() % 4);
      a.prefix = prefix_mode::exact;
      a.prefill = random() % 2 == 0 ? prefill_mode::full : prefill_mode::compact;
      a.chunks = {1 + random() % 50, 1 + random() % 200};
      const outcome expected = cold(a);
      const outcome found = h.serve(a);
      expect_same(expected, found,
                  fmt::format("{}: {} of {} tokens, hit {}, first row {}", what,
                              a.prefill == prefill_mode::full ? "full" : "compact", a.prompt.size(),
                              h.session.hit, h.session.first_row));
      const bool hit = h.session.hit > 0;
      hits += hit;
      const auto kind = static_cast<std::size_t>(h.session.first_row) % page_tokens;
      snapshots += hit && h.session.first_row > 0 && kind == 0 && bytes > 0;
      replays += hit && h.session.first_row > 0 && kind != 0;
    }
  }
  EXPECT_GT(hits, rounds / 2);
  EXPECT_GT(snapshots, 0);
  EXPECT_GT(replays, 0);
}

TEST_P(exact_and_bounded, a_snapshot_saves_all_rows_below_it) {
  const ask first{text(11, 400), {}, prefill_mode::full, prefix_mode::exact};
  host h{*model, some_snapshots};
  h.serve(first);
  h.steps.reset();
  h.serve(first);
  EXPECT_EQ(h.session.hit, 384);
  EXPECT_EQ(h.session.first_row, 384);
  EXPECT_EQ(h.steps.rows(0), 16);
}

TEST_P(exact_and_bounded, a_snapshot_is_left_where_two_prompts_part) {
  const token_list base = text(18, 300);
  host h{*model, some_snapshots};
  for (std::uint32_t round = 0; round < 3; ++round) {
    ask a{base, {}, prefill_mode::full, prefix_mode::exact};
    const token_list own = text(19 + round, 150);
    a.prompt.insert(a.prompt.end(), own.begin(), own.end());
    expect_same(cold(a), h.serve(a), "prompt " + std::to_string(round));
    EXPECT_EQ(h.session.hit, round == 0 ? 0 : 256);
    if (round == 2) {
      EXPECT_EQ(h.session.first_row, 256) << "the second prompt left one";
    }
  }
}

TEST_P(exact_and_bounded, an_answer_leaves_one_snapshot_at_its_last_page) {
  const ask first{text(30, 100), text(31, 300), prefill_mode::full, prefix_mode::exact};
  host h{*model, some_snapshots};
  h.serve(first);
  const auto& counts = h.cache.index().counts();
  EXPECT_EQ(counts.snapshots_kept, 3U) << "at 128, 256 and 384";
  EXPECT_EQ(counts.snapshots_dropped, 2U);
  ask second{first.prompt, {}, prefill_mode::full, prefix_mode::exact};
  second.prompt.insert(second.prompt.end(), first.output.begin(), first.output.end());
  const token_list more = text(32, 20);
  second.prompt.insert(second.prompt.end(), more.begin(), more.end());
  expect_same(cold(second), h.serve(second), "the next turn");
  EXPECT_EQ(h.session.hit, 384);
  EXPECT_EQ(h.session.first_row, 384);
}

TEST_P(exact_and_bounded, a_bounded_hit_depends_on_prompt_keep_and_hit_only) {
  std::mt19937 random{300};
  const token_list base = text(300, 700);
  host h{*model, some_snapshots};
  int cut = 0;
  for (int round = 0; round < (tiny ? 16 : 5); ++round) {
    const std::string what = "seed 300 round " + std::to_string(round);
    ask a;
    const auto shared = static_cast<std::ptrdiff_t>(200 + random() % 400);
    a.prompt.assign(base.begin(), base.begin() + shared);
    const token_list own = text(static_cast<std::uint32_t>(random()), 1 + random() % 200);
    a.prompt.insert(a.prompt.end(), own.begin(), own.end());
    a.output = text(static_cast<std::uint32_t>(random()), 3);
    a.prefix = prefix_mode::bounded;
    a.prefill = round % 2 == 0 ? prefill_mode::full : prefill_mode::compact;
    a.chunks = {1 + random() % 200};
    const outcome found = h.serve(a);
    const std::int64_t hit = h.session.bounded;
    if (hit == 0) {
      expect_same(cold(a), found, what + ", no hit");
      continue;
    }
    ++cut;
    EXPECT_LE(hit, static_cast<std::int64_t>(a.prompt.size()) - rules.bounded_tail()) << what;
    expect_same(bounded_by_hand(*model, a, hit), found, what + ", by hand");
    // Another rank, which knows nothing, makes the pages below H again.
    a.recorded = hit;
    a.chunks = {1 + random() % 300};
    host empty{*model, some_snapshots};
    expect_same(found, empty.serve(a), what + ", made again");
    EXPECT_EQ(empty.session.bounded, hit);
    // The same request again starts behind its own pages and windows.
    expect_same(found, h.serve(a), what + ", once more");
    EXPECT_GE(h.session.hit, hit) << what;
    // exact after bounded on the same prefix
    ask exact = a;
    exact.prefix = prefix_mode::exact;
    exact.recorded.reset();
    expect_same(cold(exact), h.serve(exact), what + ", exact afterwards");
  }
  EXPECT_GT(cut, 2);
}

TEST_P(exact_and_bounded, pages_behind_a_bounded_hit_never_serve_exact) {
  const token_list prompt = text(12, 640);
  host h{*model, some_snapshots};
  ask first{{prompt.begin(), prompt.begin() + 256}, {}, prefill_mode::full, prefix_mode::exact};
  h.serve(first);
  ask bounded{prompt, {}, prefill_mode::full, prefix_mode::bounded};
  h.serve(bounded);
  ASSERT_EQ(h.session.bounded, 256);
  ask exact{prompt, {}, prefill_mode::full, prefix_mode::exact};
  h.serve(exact);
  EXPECT_EQ(h.session.hit, 256);
  ask again = bounded; // now the whole prefix is known exactly, another hit, another request
  h.serve(again);
  EXPECT_GT(h.session.bounded, 256);
  again.recorded = 256; // the first one resumed: its own pages serve
  h.serve(again);
  EXPECT_EQ(h.session.bounded, 256);
  EXPECT_EQ(h.session.hit, 512);
}

TEST_P(exact_and_bounded, salts_share_nothing) {
  host h{*model, some_snapshots};
  ask a{text(13, 300), {}, prefill_mode::full, prefix_mode::exact};
  a.salt = "one";
  h.serve(a);
  h.serve(a);
  EXPECT_EQ(h.session.hit, 256);
  a.salt = "two";
  h.serve(a);
  EXPECT_EQ(h.session.hit, 0);
}

/// Drops a sequence anywhere and starts it again, as preemption does, with what it emitted.
TEST_P(exact_and_bounded, a_dropped_sequence_comes_back_with_the_same_bits) {
  std::mt19937 random{400};
  const token_list base = text(400, 500);
  for (int round = 0; round < (tiny ? 24 : 6); ++round) {
    const std::string what = "seed 400 round " + std::to_string(round);
    ask a;
    a.prompt.assign(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(150 + random() % 300));
    a.output = text(static_cast<std::uint32_t>(random()), 8);
    a.prefill = round % 2 == 0 ? prefill_mode::full : prefill_mode::compact;
    a.prefix = static_cast<prefix_mode>(round / 2 % 3);
    a.chunks = {1 + random() % 120};
    host h{*model, random() % 2 == 0 ? 0 : some_snapshots};
    const ask earlier{{base.begin(), base.begin() + 140}, {}, a.prefill, prefix_mode::exact};
    h.serve(earlier);
    const outcome expected = h.serve(a); // undisturbed
    const std::int64_t recorded = h.session.bounded;
    h.cache.index().clear();
    h.serve(earlier);

    outcome found;
    std::size_t emitted = 0;
    for (int attempts = 0; emitted < a.output.size() || attempts == 0; ++attempts) {
      if (random() % 2 == 0)
        h.cache.index().evict(static_cast<std::uint32_t>(random() % 5));
      token_list known = a.prompt;
      known.insert(known.end(), a.output.begin(),
                   a.output.begin() + static_cast<std::ptrdiff_t>(emitted));
      const auto sequence = h.rank.sequence();
      auto session = h.cache.start(*sequence, known, a.request(), {}, recorded);
      ASSERT_TRUE(session.ok()) << session.error().render();
      const std::size_t all = a.prompt.size() + a.output.size();
      const std::size_t end = attempts == 3 ? all : random() % (all + 1);
      std::vector<float> logits;
      h.go_on(a, *sequence, *session, end, logits);
      // Rows whose logits came before are recomputed and must not change.
      const auto vocab = static_cast<std::size_t>(model->spec().vocab_size);
      const std::size_t rows = logits.size() / vocab;
      if (rows == 0)
        continue;
      const std::size_t first =
          static_cast<std::size_t>(sequence->length()) + 1 - rows - a.prompt.size();
      found.logits.resize(std::max(found.logits.size(), (first + rows) * vocab));
      std::copy(logits.begin(), logits.end(),
                found.logits.begin() + static_cast<std::ptrdiff_t>(first * vocab));
      emitted = std::max(emitted, first + rows - 1);
      found.state = sequence->hash();
      if (attempts == 3)
        break;
    }
    if (found.logits.size() == expected.logits.size())
      expect_same(expected, found, what);
    else
      ADD_FAILURE() << what << ": not finished";
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const auto models_here = ::testing::Values("tiny"); // demo takes minutes there
#else
const auto models_here = ::testing::Values("tiny", "demo");
#endif
INSTANTIATE_TEST_SUITE_P(models, exact_and_bounded, models_here,
                         [](const auto& model) { return std::string{model.param}; });

} // namespace
} // namespace di::engine
