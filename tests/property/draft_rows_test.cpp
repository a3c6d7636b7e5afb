// SPDX-License-Identifier: Apache-2.0
// Draft passes and their rings: no influence of batch mates, of the pieces in which rows are fed,
// of forks; gaps, floors and snapshots; what is refused.
#include "engine/model/draft_runner.hpp"
#include "tests/support/test_models.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <random>

namespace di::engine {
namespace {

/// Drafts and confidences of sequences of different lengths, all with the same picker.
class draft_rows : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    model = di::testing::load_model(di::testing::preset_checkpoint("tiny"));
  }
  static void TearDownTestSuite() { model.reset(); }
  draft_rows() : engine{*model}, drafts{make_draft_runner(*model, engine.ops, *engine.stream)} {
    engine.steps->want_taps(true);
    std::mt19937_64 random{5};
    for (const std::size_t length : {1, 3, 16, 17, 90}) {
      sequences.push_back(engine.sequence());
      std::vector<token_id> tokens(length);
      for (token_id& t : tokens)
        t = static_cast<token_id>(random() % 1000);
      engine.run(*sequences.back(), tokens);
      const draft_feed rows{sequences.back().get(), 0, engine.steps->taps(0)};
      if (!drafts->feed({&rows, 1}).ok())
        throw std::runtime_error("feed");
      next.push_back(static_cast<token_id>(random() % 1000));
    }
  }

  struct outcome {
    std::vector<token_id> drafts;
    std::vector<std::uint32_t> confidences; ///< bits
    std::vector<float> logits;
    friend bool operator==(const outcome&, const outcome&) = default;
  };

  std::vector<outcome> pass(std::span<const std::size_t> which) {
    std::vector<draft_segment> segments;
    for (const std::size_t i : which)
      segments.push_back({sequences[i].get(), next[i]});
    auto state = drafts->start(segments);
    while (state.ok() && *state == step_state::needs_experts) {
      EXPECT_TRUE(engine.loop.answer(drafts->demand()).ok());
      state = drafts->resume();
    }
    EXPECT_TRUE(state.ok());
    std::vector<outcome> out(which.size());
    EXPECT_TRUE(
        drafts
            ->draw([&](std::size_t s, std::size_t, std::span<const float> row) -> result<token_id> {
              out[s].logits.insert(out[s].logits.end(), row.begin(), row.end());
              return static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin());
            })
            .ok());
    for (std::size_t s = 0; s < which.size(); ++s) {
      out[s].drafts.assign(drafts->drafts(s).begin(), drafts->drafts(s).end());
      for (const float c : drafts->confidences(s))
        out[s].confidences.push_back(std::bit_cast<std::uint32_t>(c));
    }
    return out;
  }

  static std::unique_ptr<loaded_model> model;
  di::testing::test_engine engine;
  std::unique_ptr<draft_runner> drafts;
  std::vector<std::unique_ptr<sequence_state>> sequences;
  std::vector<token_id> next;
};

std::unique_ptr<loaded_model> draft_rows::model;

TEST_F(draft_rows, do_not_depend_on_batch_mates) {
  std::vector<outcome> alone;
  for (std::size_t i = 0; i < sequences.size(); ++i)
    alone.push_back(pass(std::array{i}).front());
  std::mt19937_64 random{23};
  for (int round = 0; round < 20; ++round) {
    std::vector<std::size_t> which{0, 1, 2, 3, 4};
    std::shuffle(which.begin(), which.end(), random);
    which.resize(1 + random() % which.size());
    const auto together = pass(which);
    for (std::size_t s = 0; s < which.size(); ++s)
      EXPECT_EQ(together[s], alone[which[s]]) << "round " << round << " sequence " << which[s];
  }
}

TEST_F(draft_rows, change_no_sequence) {
  std::vector<std::uint64_t> before, after;
  for (const auto& s : sequences) {
    before.push_back(s->hash());
    before.push_back(s->draft_hash());
  }
  pass(std::array<std::size_t, 5>{0, 1, 2, 3, 4});
  for (const auto& s : sequences) {
    after.push_back(s->hash());
    after.push_back(s->draft_hash());
  }
  EXPECT_EQ(before, after);
}

TEST_F(draft_rows, keep_their_place_when_fed_in_pieces_of_any_size) {
  std::mt19937_64 random{41};
  for (int round = 0; round < 10; ++round) {
    const auto again = engine.sequence();
    const auto tokens = sequences[4]->tokens();
    std::size_t at = 0;
    while (at < tokens.size()) {
      const std::size_t count = std::min<std::size_t>(1 + random() % 40, tokens.size() - at);
      engine.run(*again, tokens.subspan(at, count));
      const draft_feed rows{again.get(), static_cast<std::int64_t>(at), engine.steps->taps(0)};
      ASSERT_TRUE(drafts->feed({&rows, 1}).ok());
      at += count;
    }
    EXPECT_EQ(again->draft_hash(), sequences[4]->draft_hash());
  }
}

TEST_F(draft_rows, refuse_sequences_that_are_not_fed_and_rows_that_do_not_fit) {
  const auto fresh = engine.sequence();
  engine.run(*fresh, std::array<token_id, 3>{1, 2, 3});
  const std::vector<bf16> taps{engine.steps->taps(0).begin(), engine.steps->taps(0).end()};
  const draft_segment segment{fresh.get(), 4};
  EXPECT_EQ(drafts->start({&segment, 1}).error().code, ec::bad_argument);
  const draft_feed beyond{fresh.get(), 1, taps};
  EXPECT_EQ(drafts->feed({&beyond, 1}).error().code, ec::bad_argument);
  const draft_feed broken{fresh.get(), 0, std::span{taps}.first(taps.size() - 1)};
  EXPECT_EQ(drafts->feed({&broken, 1}).error().code, ec::bad_argument);
  const draft_feed whole{fresh.get(), 0, taps};
  ASSERT_TRUE(drafts->feed({&whole, 1}).ok());
  EXPECT_EQ(drafts->feed({&whole, 1}).error().code, ec::bad_argument) << "fed twice";
  const draft_segment wild{fresh.get(), 1024};
  EXPECT_EQ(drafts->start({&wild, 1}).error().code, ec::bad_argument);
  EXPECT_EQ(drafts->start({}).error().code, ec::bad_argument);
  EXPECT_EQ(drafts->resume().error().code, ec::bad_argument);
  EXPECT_TRUE(drafts->start({&segment, 1}).ok());
}

TEST_F(draft_rows, are_fed_for_all_sequences_but_the_one_whose_rows_do_not_fit) {
  const auto good = engine.sequence(), bad = engine.sequence(), last = engine.sequence();
  const std::array<token_id, 3> tokens{1, 2, 3};
  std::vector<bf16> taps;
  for (sequence_state* s : {good.get(), bad.get(), last.get()}) {
    engine.run(*s, tokens);
    taps.assign(engine.steps->taps(0).begin(), engine.steps->taps(0).end());
  }
  ASSERT_TRUE(bad->truncate(2).ok());
  const std::array<draft_feed, 3> rows{
      {{good.get(), 0, taps}, {bad.get(), 0, taps}, {last.get(), 0, taps}}};
  const auto fed = drafts->feed(rows);
  ASSERT_FALSE(fed.ok());
  EXPECT_EQ(fed.error().code, ec::bad_argument);
  EXPECT_NE(fed.error().what.find("draft feed 1"), std::string::npos) << fed.error().what;
  EXPECT_EQ(good->draft_end(), 3);
  EXPECT_EQ(bad->draft_end(), 0);
  EXPECT_EQ(last->draft_end(), 3);
  EXPECT_EQ(last->draft_hash(), good->draft_hash());
}

TEST_F(draft_rows, see_nothing_before_a_gap) {
  // A prefix that came without taps: the ring begins behind it, and passes work.
  const auto whole = engine.sequence();
  const auto tokens = sequences[4]->tokens();
  engine.run(*whole, tokens.first(80));
  engine.run(*whole, tokens.subspan(80));
  const draft_feed rows{whole.get(), 80, engine.steps->taps(0)};
  ASSERT_TRUE(drafts->feed({&rows, 1}).ok());
  EXPECT_EQ(whole->draft_begin(), 80);
  EXPECT_NE(whole->draft_hash(), sequences[4]->draft_hash());
  const draft_segment segment{whole.get(), 4};
  EXPECT_TRUE(drafts->start({&segment, 1}).ok());
  // Once a window was fed, nothing of the gap is left.
  ASSERT_TRUE(whole->truncate(0).ok());
  engine.run(*whole, tokens.first(60));
  engine.run(*whole, tokens.subspan(60));
  const draft_feed more{whole.get(), 60, engine.steps->taps(0)};
  ASSERT_TRUE(drafts->feed({&more, 1}).ok());
  EXPECT_EQ(whole->draft_hash(), sequences[4]->draft_hash());
}

TEST_F(draft_rows, go_with_a_fork_and_part_from_it) {
  sequence_state& first = *sequences[4];
  const auto second = first.fork();
  EXPECT_EQ(second->draft_hash(), first.draft_hash());
  engine.run(*second, std::array<token_id, 4>{9, 8, 7, 6});
  const draft_feed rows{second.get(), 90, engine.steps->taps(0)};
  const std::uint64_t before = first.draft_hash();
  ASSERT_TRUE(drafts->feed({&rows, 1}).ok());
  EXPECT_EQ(first.draft_hash(), before);
  EXPECT_EQ(second->draft_end(), 94);
  EXPECT_EQ(second->draft_begin(), 94 - 16);
}

TEST_F(draft_rows, come_back_with_a_snapshot_of_their_windows) {
  const auto cold = engine.sequence();
  std::mt19937_64 random{77};
  std::vector<token_id> tokens(150);
  for (token_id& t : tokens)
    t = static_cast<token_id>(random() % 1000);
  const auto run = [&](sequence_state& sequence, std::size_t from, std::size_t to) {
    engine.run(sequence, std::span{tokens}.subspan(from, to - from));
    const draft_feed rows{&sequence, static_cast<std::int64_t>(from), engine.steps->taps(0)};
    ASSERT_TRUE(drafts->feed({&rows, 1}).ok());
  };
  run(*cold, 0, 128);
  const auto snapshot = cold->snapshot(128, snapshot_kind::full);
  ASSERT_TRUE(snapshot.ok()) << snapshot.error().render();
  const auto warm = engine.sequence();
  const auto adopted = warm->adopt(std::span{tokens}.first(128), cold->pages().first(1),
                                   {0, 0, 128}, 128, &*snapshot);
  ASSERT_TRUE(adopted.ok()) << adopted.error().render();
  EXPECT_EQ(warm->draft_hash(), cold->draft_hash());
  run(*cold, 128, 150);
  run(*warm, 128, 150);
  EXPECT_EQ(warm->hash(), cold->hash());
  EXPECT_EQ(warm->draft_hash(), cold->draft_hash());
}

TEST_F(draft_rows, begin_at_the_floor_of_a_compact_prefill) {
  const auto sequence = engine.sequence();
  ASSERT_TRUE(sequence->set_floors({0, 60, 0}).ok());
  step_segment segment{sequence.get(), 0, sequences[4]->tokens(), logits_wanted::last};
  ASSERT_TRUE(engine.loop.run({&segment, 1}).ok());
  const auto taps = engine.steps->taps(0);
  ASSERT_EQ(taps.size(), 30u * 2u * 256u);
  const draft_feed rows{sequence.get(), 60, taps};
  ASSERT_TRUE(drafts->feed({&rows, 1}).ok());
  EXPECT_EQ(sequence->draft_end(), 90);
  EXPECT_EQ(sequence->draft_begin(), 90 - 16) << "a whole window was kept";
  const draft_segment wanted{sequence.get(), 4};
  EXPECT_TRUE(drafts->start({&wanted, 1}).ok());
}

} // namespace
} // namespace di::engine
