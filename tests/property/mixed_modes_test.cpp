// SPDX-License-Identifier: Apache-2.0
// Requests of all modes together in one rank with too few pages: steps of several sequences, chunks
// of any size, drafts taken back, sequences dropped and started again, pages evicted. Every request
// gives the bits that it gives alone, and no page is ever lost. On several shapes of model.
#include "tests/support/prefix_modes.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <deque>

namespace di::engine {
namespace {

using di::testing::ask;
using di::testing::bounded_by_hand;
using di::testing::cold_run;
using di::testing::expect_same;
using di::testing::host;
using di::testing::outcome;
using di::testing::token_list;
using nlohmann::json;

/// One request on its way.
struct running {
  std::size_t number = 0;
  ask a;
  std::unique_ptr<sequence_state> sequence;
  prefix_session session;
  std::size_t emitted = 0; ///< output rows whose logits are known, the prompt's last row first
  outcome found;
};

class crowd {
public:
  crowd(const loaded_model& model, std::uint32_t seed)
      : model_{model},
        random_{seed},
        seed_{seed},
        vocab_{static_cast<std::size_t>(model.spec().vocab_size)},
        base_{text(600)},
        h_{model, std::size_t{1} << 20, 10} {}

  /// Serves `count` requests. Ends early at the first fatal failure.
  void serve(std::size_t count) {
    std::size_t begun = 0;
    for (int step = 0; done_ < count && !::testing::Test::HasFailure(); ++step) {
      ASSERT_LT(step, 100000) << "seed " << seed_ << ": no progress";
      if (begun < count && waiting_.size() + live_.size() < 5 && random_() % 3 == 0)
        waiting_.push_back(begin(begun++));
      admit();
      if (live_.size() > 1 && random_() % 15 == 0)
        drop(random_() % live_.size());
      if (!live_.empty())
        one_step();
      check();
    }
  }
  int dropped = 0, hits = 0, bounded = 0, evicted = 0;

private:
  token_list text(std::size_t count) {
    token_list out(count);
    for (token_id& t : out)
      t = static_cast<token_id>(random_() % vocab_);
    return out;
  }

  running begin(std::size_t number) {
    running r;
    r.number = number;
    r.a.prompt.assign(base_.begin(), base_.begin() + static_cast<std::ptrdiff_t>(random_() % 450));
    const token_list own = text(1 + random_() % 120);
    r.a.prompt.insert(r.a.prompt.end(), own.begin(), own.end());
    r.a.output = text(random_() % 12);
    r.a.prefill = static_cast<proto::prefill_mode>(random_() % 2);
    r.a.prefix = static_cast<proto::prefix_mode>(random_() % 3);
    return r;
  }

  void admit() {
    while (!waiting_.empty() && live_.size() < 4 && random_() % 2 == 0) {
      running r = std::move(waiting_.front());
      waiting_.pop_front();
      token_list known = r.a.prompt;
      const std::size_t tokens = r.emitted == 0 ? 0 : r.emitted - 1;
      known.insert(known.end(), r.a.output.begin(),
                   r.a.output.begin() + static_cast<std::ptrdiff_t>(tokens));
      r.sequence = h_.rank.sequence();
      auto session = h_.cache.start(*r.sequence, known, r.a.request(), {}, r.a.recorded);
      ASSERT_TRUE(session.ok()) << session.error().render();
      r.session = *session;
      ASSERT_TRUE(!r.a.recorded || r.session.bounded == *r.a.recorded);
      hits += r.session.hit > 0;
      bounded += r.session.bounded > 0;
      live_.push_back(std::move(r));
    }
  }

  void drop(std::size_t which) {
    running& r = live_[which];
    r.a.recorded = r.session.bounded;
    r.sequence.reset();
    waiting_.push_back(std::move(r));
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
    ++dropped;
  }

  struct part {
    std::size_t who = 0, at = 0, right = 0; ///< rows that stay
    token_list rows;
  };

  /// Rows of a sequence: a chunk of the prompt, or a token with true and wrong drafts behind it.
  part rows_of(std::size_t who) {
    const running& r = live_[who];
    part p{who, static_cast<std::size_t>(r.sequence->length()), 0, {}};
    token_list all = r.a.prompt;
    all.insert(all.end(), r.a.output.begin(), r.a.output.end());
    std::size_t end = p.at + 1 + random_() % 4;
    if (p.at < r.a.prompt.size())
      end = std::min({p.at + 1 + random_() % 90, r.a.prompt.size(),
                      static_cast<std::size_t>(
                          h_.cache.chunk_end(r.session, static_cast<std::int64_t>(p.at)))});
    end = std::min(end, all.size());
    p.rows.assign(all.begin() + static_cast<std::ptrdiff_t>(p.at),
                  all.begin() + static_cast<std::ptrdiff_t>(end));
    p.right = end - p.at;
    if (p.at >= r.a.prompt.size())
      for (std::size_t wrong = random_() % 3; wrong > 0; --wrong)
        p.rows.push_back(static_cast<token_id>(random_() % vocab_));
    return p;
  }

  void one_step() {
    std::vector<part> parts;
    std::int64_t wanted = 0;
    for (std::size_t i = 0; i < live_.size(); ++i)
      if (live_.size() == 1 || random_() % 3 != 0) {
        parts.push_back(rows_of(i));
        wanted += live_[i].sequence->pages_wanted(
            static_cast<std::int64_t>(parts.back().at + parts.back().rows.size()));
      }
    if (parts.empty())
      return;
    const std::uint64_t before = h_.cache.index().counts().evicted_pages;
    if (!h_.cache.index().make_room(static_cast<std::uint32_t>(wanted)).ok()) {
      ASSERT_GT(live_.size(), 1u) << "seed " << seed_ << ": one request does not fit";
      return drop(live_.size() - 1);
    }
    evicted += static_cast<int>(h_.cache.index().counts().evicted_pages - before);
    std::vector<step_segment> segments;
    for (const part& p : parts) {
      const running& r = live_[p.who];
      const bool decodes = p.at >= r.a.prompt.size();
      const bool last = p.at + p.rows.size() >= r.a.prompt.size();
      segments.push_back({r.sequence.get(), static_cast<std::uint32_t>(p.at), p.rows,
                          decodes ? logits_wanted::all
                          : last  ? logits_wanted::last
                                  : logits_wanted::none});
    }
    const auto done = h_.loop.run(segments);
    ASSERT_TRUE(done.ok()) << "seed " << seed_ << ": " << done.error().render();
    for (std::size_t i = 0; i < parts.size(); ++i)
      settle(parts[i], h_.rank.steps->logits(i));
    for (std::size_t i = live_.size(); i-- > 0;)
      if (live_[i].sequence->length()
          == static_cast<std::int64_t>(live_[i].a.prompt.size() + live_[i].a.output.size()))
        finish(i);
  }

  void settle(const part& p, std::span<const float> logits) {
    running& r = live_[p.who];
    const std::size_t end = p.at + p.right;
    ASSERT_TRUE(r.sequence->truncate(static_cast<std::int64_t>(end)).ok());
    if (!logits.empty()) {
      const std::size_t rows = p.at >= r.a.prompt.size() ? p.right : 1;
      const std::size_t first = end - rows + 1 - r.a.prompt.size();
      r.found.logits.resize(std::max(r.found.logits.size(), (first + rows) * vocab_));
      std::copy(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(rows * vocab_),
                r.found.logits.begin() + static_cast<std::ptrdiff_t>(first * vocab_));
      r.emitted = std::max(r.emitted, first + rows);
    }
    const auto told = h_.cache.advanced(r.session, *r.sequence, r.sequence->length());
    ASSERT_TRUE(told.ok()) << told.error().render();
  }

  void finish(std::size_t which) {
    running& r = live_[which];
    r.found.state = r.sequence->hash();
    const std::string what =
        fmt::format("seed {} request {}: prefill {}, prefix {}, {} + {} tokens, hit {}, H {}, "
                    "first row {}",
                    seed_, r.number, static_cast<int>(r.a.prefill), static_cast<int>(r.a.prefix),
                    r.a.prompt.size(), r.a.output.size(), r.session.hit, r.session.bounded,
                    r.session.first_row);
    expect_same(r.session.bounded > 0 ? bounded_by_hand(model_, r.a, r.session.bounded)
                                      : cold_run(model_, r.a),
                r.found, what);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
    ++done_;
  }

  void check() {
    std::vector<page_id> held;
    for (const running& r : live_)
      held.insert(held.end(), r.sequence->pages().begin(), r.sequence->pages().end());
    const auto fine = h_.cache.index().check(held);
    ASSERT_TRUE(fine.ok()) << "seed " << seed_ << ": " << fine.error().render();
  }

  const loaded_model& model_;
  std::mt19937 random_;
  std::uint32_t seed_;
  std::size_t vocab_;
  token_list base_;
  host h_;
  std::deque<running> waiting_;
  std::vector<running> live_;
  std::size_t done_ = 0;
};

std::string changed(const json& changes) {
  json config = json::parse(*preset_config("tiny"));
  for (const auto& [key, value] : changes.items())
    config["text_config"][key] = value;
  return config.dump();
}

void expect_a_crowd_is_served(const std::string& name, const std::string& config,
                              std::size_t requests, bool has_pages = true) {
  const auto model = di::testing::load_model(di::testing::synthetic_checkpoint(name, config));
  int dropped = 0, hits = 0, bounded = 0, evicted = 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::uint32_t seeds = 1; // each takes minutes there
#else
  constexpr std::uint32_t seeds = 3;
#endif
  for (std::uint32_t seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    crowd c{*model, seed};
    c.serve(requests);
    dropped += c.dropped;
    hits += c.hits;
    bounded += c.bounded;
    evicted += c.evicted;
  }
  if (seeds < 3)
    return; // the full run shows that the crowds reach everything
  EXPECT_GT(dropped, 3);
  if (!has_pages)
    return;
  EXPECT_GT(hits, 3);
  EXPECT_GT(bounded, 1);
  EXPECT_GT(evicted, 3);
}

TEST(mixed_modes, serve_a_crowd_on_the_tiny_model) {
  expect_a_crowd_is_served("tiny", std::string{*preset_config("tiny")}, 40);
}

/// A window of 70 rows: halos reach below the prompt's start; taps on both sides of the cut.
TEST(mixed_modes, serve_a_crowd_with_a_wide_window_and_taps_on_both_sides_of_the_cut) {
  expect_a_crowd_is_served("odd_three_draft_layers",
                           changed({{"num_nextn_predict_layers", 3},
                                    {"compress_ratios", {0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0}},
                                    {"dspark_block_size", 7},
                                    {"dspark_target_layer_ids", {0, 2, 6, 7}},
                                    {"sliding_window", 70},
                                    {"dspark_markov_rank", 100}}),
                           15);
}

TEST(mixed_modes, serve_a_crowd_whose_last_layer_is_the_last_source) {
  expect_a_crowd_is_served("odd_last_source",
                           changed({{"compress_ratios", {0, 2, 2, 2, 2, 2, 2, 1, 0, 0}},
                                    {"kv_source_layer_ids", {1, 3, 7}},
                                    {"index_source_layer_ids", {1, 3, 7}},
                                    {"candidate_source_layer_id", 7},
                                    {"sliding_window", 5}}),
                           15);
}

TEST(mixed_modes, serve_a_crowd_whose_first_layer_is_the_only_source) {
  expect_a_crowd_is_served("odd_first_source",
                           changed({{"compress_ratios", {2, 2, 2, 2, 2, 2, 2, 2, 0, 0}},
                                    {"kv_source_layer_ids", {0}},
                                    {"index_source_layer_ids", {0, 4}},
                                    {"candidate_source_layer_id", -1},
                                    {"sliding_window", 9}}),
                           15);
}

TEST(mixed_modes, serve_a_crowd_without_compressed_entries) {
  expect_a_crowd_is_served("odd_no_source",
                           changed({{"compress_ratios", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
                                    {"kv_source_layer_ids", json::array()},
                                    {"index_source_layer_ids", json::array()},
                                    {"candidate_source_layer_id", -1}}),
                           15, false);
}

} // namespace
} // namespace di::engine
