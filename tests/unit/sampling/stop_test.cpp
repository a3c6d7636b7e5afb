// SPDX-License-Identifier: Apache-2.0
// Goal: a completion ends at the same place with the same deltas joined, however its text falls
// into tokens. The twin searches the whole text at once.
#include "engine/sampling/stop.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::engine {
namespace {

constexpr token_id word = 7, eos = 1;

struct outcome {
  std::string text;
  std::uint32_t tokens = 0;
  finish_reason finish = finish_reason::none;
  std::optional<std::uint32_t> stop_string;
  std::optional<token_id> stop_id;
};

struct setup {
  std::vector<std::string> stop = {};
  bool include = false;
  std::uint32_t min_tokens = 0, max_tokens = 1000;
  bool ignore_eos = false;
};

std::shared_ptr<const stop_rules> rules_of(const setup& s) {
  sampling_params p;
  p.stop = s.stop;
  p.include_stop_str = s.include;
  p.min_tokens = s.min_tokens;
  p.max_tokens = s.max_tokens;
  p.ignore_eos = s.ignore_eos;
  return std::make_shared<const stop_rules>(p, std::vector<token_id>{eos});
}

void join(outcome& all, const stop_delta& d) {
  EXPECT_EQ(utf8_valid_prefix(d.text), d.text.size());
  all.text += d.text;
  all.tokens += d.tokens;
  if (d.finish != finish_reason::none) {
    all.finish = d.finish;
    all.stop_string = d.stop_string;
    all.stop_id = d.stop_id;
  }
}

// Pushes tokens; "" in `tokens` is the end-of-sentence token. Checks what must hold after every
// step.
outcome run(const setup& s, const std::vector<std::string>& tokens) {
  stop_watch watch{rules_of(s)};
  outcome all;
  for (const std::string& t : tokens) {
    join(all, watch.push(t.empty() ? eos : word, t));
    EXPECT_LE(all.tokens, watch.tokens()); // never released and then taken back
    const bool searched = !s.include && s.min_tokens == 0;
    for (const std::string& stop : s.stop)
      EXPECT_FALSE(searched && all.text.find(stop) != std::string::npos) << "leaked " << stop;
  }
  join(all, watch.finish(finish_reason::length));
  EXPECT_EQ(all.tokens, watch.tokens());
  EXPECT_TRUE(watch.finished());
  EXPECT_EQ(watch.push(word, "more").text, "");
  return all;
}

TEST(stop_watch, cuts_text_and_tokens_at_the_start_of_a_stop_string) {
  const outcome o = run({.stop = {"own fox"}}, {"the br", "own", " f", "ox jum", "ps"});
  EXPECT_EQ(o.text, "the br");
  EXPECT_EQ(o.tokens, 2U); // the second token holds the first byte of the match
  EXPECT_EQ(o.finish, finish_reason::stop);
  EXPECT_EQ(o.stop_string, 0U);
}

TEST(stop_watch, keeps_the_stop_string_when_asked_to) {
  const outcome o =
      run({.stop = {"own fox"}, .include = true}, {"the br", "own", " f", "ox jum", "ps"});
  EXPECT_EQ(o.text, "the brown fox");
  EXPECT_EQ(o.tokens, 4U);
}

TEST(stop_watch, holds_back_only_a_true_beginning_of_a_stop_string) {
  stop_watch watch{rules_of({.stop = {"aab"}})};
  EXPECT_EQ(watch.push(word, "xa").text, "x");
  EXPECT_EQ(watch.push(word, "a").text, "");
  const stop_delta d = watch.push(word, "a"); // "aaa": the first a is free now
  EXPECT_EQ(d.text, "a");
  EXPECT_EQ(watch.push(word, "c").text, "aac");
  EXPECT_EQ(watch.tokens(), 4U);
}

TEST(stop_watch, lets_the_earliest_end_win_and_then_the_longest) {
  EXPECT_EQ(run({.stop = {"abc", "ab", "b"}}, {"xabc"}).text, "x");
  EXPECT_EQ(run({.stop = {"abc", "ab", "b"}}, {"xabc"}).stop_string, 1U);
  EXPECT_EQ(run({.stop = {"abcd", "c"}}, {"xabcd"}).stop_string, 1U);
  EXPECT_EQ(run({.stop = {"abcd", "c"}}, {"xabcd"}).text, "xab");
}

TEST(stop_watch, stops_at_the_first_token_with_empty_text) {
  const outcome o = run({.stop = {"hi"}}, {"hi there"});
  EXPECT_EQ(o.text, "");
  EXPECT_EQ(o.tokens, 1U);
  EXPECT_EQ(o.finish, finish_reason::stop);
}

TEST(stop_watch, counts_an_end_id_but_hides_its_text) {
  const outcome o = run({}, {"a", "b", "", "c"});
  EXPECT_EQ(o.text, "ab");
  EXPECT_EQ(o.tokens, 3U);
  EXPECT_EQ(o.stop_id, eos);
  const outcome ignored = run({.ignore_eos = true}, {"a", "b", "", "c"});
  EXPECT_EQ(ignored.text, "abc");
  EXPECT_EQ(ignored.finish, finish_reason::length);
}

TEST(stop_watch, sends_a_held_beginning_when_the_text_ends_otherwise) {
  EXPECT_EQ(run({.stop = {"fox"}}, {"a f", "o", ""}).text, "a fo");
  EXPECT_EQ(run({.stop = {"fox"}, .max_tokens = 2}, {"a f", "o", "x"}).text, "a fo");
  EXPECT_EQ(run({.stop = {"fox"}, .max_tokens = 2}, {"a f", "o", "x"}).tokens, 2U);
}

TEST(stop_watch, ignores_everything_before_min_tokens_and_starts_afresh) {
  const setup s{.stop = {"ab"}, .min_tokens = 2};
  EXPECT_EQ(run(s, {"ab", "xa", "b", "ab", "c"}).text, "abxab");
  EXPECT_EQ(run(s, {"ab", "xa", "b", "ab", "c"}).tokens, 4U);
  EXPECT_EQ(run({.min_tokens = 2}, {"a", "", "b", ""}).tokens, 4U);
}

TEST(stop_watch, matches_characters_that_arrive_in_parts) {
  const outcome o = run({.stop = {"😀!"}}, {"é\xF0", "\x9F\x98", "\x80", "!z"});
  EXPECT_EQ(o.text, "é");
  EXPECT_EQ(o.tokens, 3U); // the character appears with the third token
  EXPECT_EQ(run({}, {"a\xE2\x82"}).text, "a\xEF\xBF\xBD");
}

TEST(stop_watch, is_rolled_back_by_keeping_a_copy) {
  stop_watch watch{rules_of({.stop = {"fox"}})};
  outcome all;
  join(all, watch.push(word, "a f"));
  const stop_watch before = watch;
  EXPECT_EQ(watch.push(word, "ox").finish,
            finish_reason::stop); // a draft that is rejected afterwards
  watch = before;
  join(all, watch.push(word, "un"));
  join(all, watch.push(eos, ""));
  EXPECT_EQ(all.text, "a fun");
  EXPECT_EQ(all.tokens, 3U);
}

// All ways to cut a text into tokens (2^(n-1) of them) give the same text, reason and string; the
// token list ends with the token that holds the first byte of the match.
TEST(stop_watch, ends_alike_for_every_cut_of_the_text_into_tokens) {
  const std::string text = "xaab😀abcaz";
  const std::vector<std::vector<std::string>> stops{{"aab"},          {"ab", "abc", "b"}, {"😀a"},
                                                    {"abca", "bcaz"}, {"nope"},           {"az"}};
  for (const auto& stop : stops)
    for (const bool include : {false, true}) {
      const outcome whole = run({.stop = stop, .include = include}, {text});
      for (std::size_t cuts = 0; cuts < std::size_t{1} << (text.size() - 1); ++cuts) {
        std::vector<std::string> tokens(1);
        for (std::size_t i = 0; i < text.size(); ++i) {
          tokens.back() += text[i];
          if (i + 1 < text.size() && (cuts >> i & 1) != 0)
            tokens.emplace_back();
        }
        const outcome o = run({.stop = stop, .include = include}, tokens);
        ASSERT_EQ(o.text, whole.text) << cuts;
        ASSERT_EQ(o.finish, whole.finish);
        ASSERT_EQ(o.stop_string, whole.stop_string);
        if (!o.stop_string || include)
          continue;
        std::size_t covered =
            0; // bytes of the kept tokens: they reach over the match start, one fewer would not
        for (std::uint32_t t = 0; t + 1 < o.tokens; ++t)
          covered += tokens[t].size();
        ASSERT_LE(utf8_lossy(text.substr(0, covered)).size(),
                  std::max(covered, whole.text.size() + 3));
        ASSERT_GT(covered + tokens[o.tokens - 1].size(), whole.text.size());
      }
    }
}

// Random small alphabets against a search in the whole text.
TEST(stop_watch, agrees_with_a_search_in_the_whole_text) {
  std::mt19937 random{5};
  const auto letters = [&](std::size_t n) {
    std::string out;
    for (std::size_t i = 0; i < n; ++i)
      out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 4000; ++round) {
    setup s;
    for (std::size_t n = 1 + random() % 4; n > 0; --n)
      s.stop.push_back(letters(1 + random() % 5));
    std::vector<std::string> tokens;
    std::string text;
    for (std::size_t n = random() % 12; n > 0; --n)
      text += tokens.emplace_back(letters(1 + random() % 3));
    std::size_t best_end = std::string::npos, best_size = 0;
    for (std::size_t end = 1; end <= text.size() && best_end == std::string::npos; ++end)
      for (const std::string& stop : s.stop)
        if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0
            && stop.size() > best_size) {
          best_end = end;
          best_size = stop.size();
        }
    const outcome o = run(s, tokens);
    const std::string expected =
        best_end == std::string::npos ? text : text.substr(0, best_end - best_size);
    ASSERT_EQ(o.text, expected) << round;
    ASSERT_EQ(o.finish == finish_reason::stop, best_end != std::string::npos);
    if (best_end != std::string::npos) {
      std::size_t covered = 0, kept = 0;
      while (covered <= best_end - best_size)
        covered += tokens[kept++].size();
      ASSERT_EQ(o.tokens, kept) << round;
    }
  }
}

} // namespace
} // namespace di::engine
