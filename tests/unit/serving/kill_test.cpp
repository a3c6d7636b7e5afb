// SPDX-License-Identifier: Apache-2.0
// Ranks die in the middle of steps, are expelled, come back and die again while batches of all
// kinds of requests run: no request fails, and every byte is that of the undisturbed run.
#include "tests/support/kill_cluster.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>
#include <set>

namespace di::test {
namespace {

using json = nlohmann::json;
using kind = rank_fault::kind;

const test_model& demo() {
  static const test_model loaded = test_model::load(DI_SOURCE_DIR "/launch/models/demo").value();
  return loaded;
}

/// Output lines without what may differ from run to run.
std::vector<std::string> answers(const batch_outcome& outcome) {
  std::vector<std::string> all;
  for (const std::string& line : outcome.lines) {
    json one = json::parse(line);
    one.erase("timings");
    one.erase("attempts");
    if (one.contains("choices"))
      for (json& choice : one["choices"])
        choice.erase("timings");
    all.push_back(one.dump());
  }
  return all;
}

std::string chat(const std::string& text) {
  return "<｜begin▁of▁sentence｜><｜User｜>" + text + "<｜Assistant｜></think>";
}

/// Requests of every kind that has state to rebuild.
std::string mixed_load(int rounds) {
  std::string lines;
  const auto add = [&](json line) { lines += line.dump() + "\n"; };
  std::string longer;
  for (int i = 0; i < 30; ++i)
    longer += "one two three four five " + std::to_string(i) + " ";
  for (int i = 0; i < rounds; ++i) {
    add({{"id", "greet"},
         {"prompt", chat("Hello!")},
         {"special_tokens", true},
         {"temperature", 0},
         {"max_tokens", 40}});
    add({{"id", "logprobs"},
         {"prompt", chat("What is 12 + 30?")},
         {"special_tokens", true},
         {"seed", i},
         {"max_tokens", 30},
         {"logprobs", 3},
         {"ignore_eos", true}});
    add({{"id", "choices"},
         {"prompt", "The name of the"},
         {"temperature", 1.3},
         {"top_p", 0.9},
         {"seed", 42 + i},
         {"max_tokens", 30},
         {"n", 3},
         {"stop", {"e ", "th"}}});
    add({{"id", "penalties"},
         {"prompt", chat("Count from 1 to 9.")},
         {"special_tokens", true},
         {"seed", 5 + i},
         {"frequency_penalty", 0.7},
         {"presence_penalty", 0.2},
         {"repetition_penalty", 1.1},
         {"top_k", 20},
         {"min_tokens", 20},
         {"max_tokens", 45}});
    add({{"id", "long"},
         {"prompt", longer},
         {"temperature", 0},
         {"max_tokens", 12 + i},
         {"prefix", "exact"},
         {"ignore_eos", true}});
    add({{"id", "compact"},
         {"prompt", longer + "six"},
         {"seed", i},
         {"max_tokens", 20},
         {"prefill", "compact"},
         {"prefix", "exact"},
         {"n", 2},
         {"ignore_eos", true},
         {"logprobs", 1}});
    add({{"id", "forced"},
         {"prompt_ids", {5, 6, 7}},
         {"forced_ids", {9, 10, 11, 12, 13, 14, 15}},
         {"max_tokens", 25},
         {"temperature", 0},
         {"logprobs", 0},
         {"ignore_eos", true},
         {"deadline_ms", 600000}});
    add({{"id", "stops"},
         {"prompt", "a b c d e f g"},
         {"seed", 11 * i},
         {"max_tokens", 60},
         {"stop", {" qq", "zzzz", "o"}},
         {"include_stop_str_in_output", i % 2 == 0}});
    add({{"id", "drafted"},
         {"prompt", chat("Hello!")},
         {"special_tokens", true},
         {"seed", i},
         {"speculation", i % 2 == 0 ? "varlen" : "fixed:3"},
         {"max_tokens", 40},
         {"ignore_eos", true}});
    add({{"id", "one"},
         {"prompt_ids", {7}},
         {"max_tokens", 33},
         {"seed", 3 + i},
         {"ignore_eos", true}});
  }
  return lines;
}

double counted(const batch_outcome& outcome, std::string_view name) {
  const auto at = outcome.counters.find(name);
  return at == outcome.counters.end() ? 0 : at->second;
}

struct undisturbed {
  std::string prompts;
  std::vector<std::string> lines;
  std::uint64_t calls = 0;
};

/// The batch over as many ranks without a fault.
const undisturbed& plain() {
  static const undisturbed made = [] {
    undisturbed u;
    u.prompts = mixed_load(3);
    cluster_options options;
    options.ranks = 4;
    const auto outcome = kill_cluster{demo(), options, {}}.run(u.prompts);
    DI_CHECK(outcome.finished.has_value());
    u.lines = answers(outcome);
    u.calls = outcome.calls;
    return u;
  }();
  return made;
}

/// @param all  whether all faults must have come before the end
kill_outcome expect_same_bytes(const cluster_options& options, std::vector<rank_fault> faults,
                               bool all = true) {
  const std::size_t planned = all ? faults.size() : 1;
  const auto outcome = kill_cluster{demo(), options, std::move(faults)}.run(plain().prompts);
  EXPECT_TRUE(outcome.finished) << "no end, " << outcome.lines.size() << " lines";
  if (!outcome.finished)
    return outcome;
  EXPECT_EQ(outcome.finished->failed, 0U);
  EXPECT_GE(outcome.happened, planned) << "of " << outcome.calls << " calls";
  EXPECT_EQ(counted(outcome, "di_rank_steps_failed_total"), 0);
  const auto got = answers(outcome);
  EXPECT_EQ(got.size(), plain().lines.size());
  for (std::size_t i = 0; i < std::min(got.size(), plain().lines.size()); ++i)
    EXPECT_EQ(got[i], plain().lines[i]);
  std::cout << outcome.calls << " calls, " << counted(outcome, "di_journal_attempts_opened_total")
            << " attempts opened, " << counted(outcome, "di_expert_shard_calls_held_total")
            << " calls held, " << counted(outcome, "di_rank_calls_moved_total") << " moved, "
            << counted(outcome, "di_rank_answers_late_total") << " answers late\n";
  return outcome;
}

TEST(kill, of_a_rank_in_the_middle_of_a_step_changes_no_byte) {
  int resumed = 0; // a late victim may have nothing left to do
  for (const std::uint64_t share : {3U, 20U, 45U, 70U})
    for (const std::uint32_t victim : {0U, 3U}) {
      SCOPED_TRACE(fmt::format("rank {} after {} % of {} calls", victim, share, plain().calls));
      cluster_options options;
      options.ranks = 4;
      options.steps_in_flight = share == 45 ? 1 : 2;
      options.redundant = victim == 3 ? 6 : 0;
      const auto outcome =
          expect_same_bytes(options, {{plain().calls * share / 100, kind::kill, {victim}}});
      resumed += counted(outcome, "di_journal_attempts_opened_total") > 0;
    }
  EXPECT_GE(resumed, 4);
}

TEST(kill, of_two_ranks_at_once_or_one_after_the_other_changes_no_byte) {
  const std::uint64_t part = plain().calls / 16; // fewer ranks make fewer calls
  cluster_options options;
  options.ranks = 4;
  expect_same_bytes(options, {{3 * part, kind::kill, {1, 2}}});
  expect_same_bytes(options, {{2 * part, kind::kill, {0}}, {2 * part + 5, kind::kill, {3}}});
  expect_same_bytes(
      options, {{part, kind::kill, {3}}, {2 * part, kind::kill, {2}}, {3 * part, kind::kill, {0}}});
}

TEST(kill, while_experts_move_changes_no_byte) {
  const std::uint64_t part = plain().calls / 16; // fewer ranks make fewer calls
  for (const std::uint64_t offset : {0U, 40U, 90U}) {
    cluster_options options;
    options.ranks = 4;
    options.redundant = 5;
    options.rebalance = engine::parse_rebalance("forced:2").value();
    options.rebalance.epoch_moves = offset == 0 ? 1 : 16;
    const auto outcome = expect_same_bytes(options, {{part + offset, kind::kill, {1}},
                                                     {3 * part + offset, kind::join, {1}},
                                                     {5 * part + offset, kind::kill, {2}}});
    EXPECT_GT(counted(outcome, "di_rebalancer_slots_loaded_total"), 10);
  }
}

TEST(kill, of_a_rank_that_came_back_changes_no_byte) {
  const std::uint64_t part = plain().calls / 16; // fewer ranks make fewer calls
  for (const std::uint32_t redundant : {0U, 7U}) {
    cluster_options options;
    options.ranks = 4;
    options.redundant = redundant;
    const auto outcome = expect_same_bytes(options, {{part, kind::kill, {2}},
                                                     {2 * part, kind::join, {2}},
                                                     {4 * part, kind::kill, {2}},
                                                     {5 * part, kind::join, {2}},
                                                     {6 * part, kind::kill, {0}}});
    EXPECT_GT(counted(outcome, "di_rebalancer_slots_loaded_total"), 0) << "experts came back";
  }
}

TEST(kill, of_a_rank_that_is_replaced_in_its_place_changes_no_byte) {
  const std::uint64_t part = plain().calls / 16; // fewer ranks make fewer calls
  cluster_options options;
  options.ranks = 3;
  expect_same_bytes(options, {{2 * part, kind::replace, {1}}, {4 * part, kind::replace, {0, 2}}});
  options.ranks = 1; // nobody is left to go on: all begin again behind what was recorded
  expect_same_bytes(options, {{120, kind::replace, {0}}}); // there are fewer calls
}

TEST(kill, with_little_room_snapshots_and_drafts_changes_no_byte) {
  const std::uint64_t part = plain().calls / 16; // fewer ranks make fewer calls
  for (const char* speculation : {"off", "fixed:4", "varlen"}) {
    SCOPED_TRACE(speculation);
    cluster_options options;
    options.ranks = 4;
    options.pages = 5; // one of the long requests at a time
    options.step_rows = 40;
    options.snapshot_bytes = 8U << 20;
    options.speculation = speculation;
    const auto outcome =
        expect_same_bytes(options, {{part, kind::kill, {0}}, {2 * part, kind::kill, {3}}});
    std::cout << counted(outcome, "di_rank_prefix_hits_total") << " prefix hits\n";
  }
}

/// Faults of a seed: kills, expulsions and returns, so that somebody is always left.
std::vector<rank_fault> drawn_faults(std::uint64_t seed, std::uint32_t ranks, std::uint64_t calls) {
  std::mt19937_64 random{seed};
  std::set<std::uint32_t> in, out;
  for (std::uint32_t r = 0; r < ranks; ++r)
    in.insert(r);
  const auto pick = [&random](std::set<std::uint32_t>& from) {
    auto at = from.begin();
    std::advance(at, random() % from.size());
    return from.extract(at).value();
  };
  std::vector<rank_fault> all;
  std::uint64_t at = calls / 20;
  for (std::uint64_t n = 3 + random() % 5; n > 0; --n) {
    at += random() % (calls / 10);
    if (!out.empty() && random() % 2 == 0) {
      const std::uint32_t back = pick(out);
      in.insert(back);
      all.push_back({at, kind::join, {back}});
      continue;
    }
    if (random() % 4 == 0) { // in its place: all of them may go
      const std::uint32_t same = pick(in);
      in.insert(same);
      all.push_back({at, kind::replace, {same}});
      continue;
    }
    rank_fault lost{at, random() % 3 == 0 ? kind::expel : kind::kill, {}};
    while (in.size() > 1 && (lost.ranks.empty() || random() % 3 == 0)) {
      lost.ranks.push_back(pick(in));
      out.insert(lost.ranks.back());
    }
    if (!lost.ranks.empty())
      all.push_back(std::move(lost));
  }
  return all;
}

TEST(kill, at_random_with_whatever_else_goes_on_changes_no_byte) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    cluster_options options;
    options.ranks = 3 + static_cast<std::uint32_t>(seed % 4);
    options.redundant = seed % 3 == 0 ? 9 : 0;
    options.steps_in_flight = seed % 2 == 0 ? 1 : 2;
    options.step_rows = seed % 5 == 0 ? 33 : 256;
    if (seed % 4 == 1) {
      options.rebalance = engine::parse_rebalance("forced:3").value();
      options.rebalance.seed = seed;
    }
    if (seed % 4 == 2)
      options.speculation = "varlen";
    expect_same_bytes(options, drawn_faults(seed, options.ranks, plain().calls / 2), false);
  }
}

TEST(kill, of_nobody_a_rank_that_is_expelled_alive_fences_itself) {
  const std::uint64_t part = plain().calls / 16; // fewer ranks make fewer calls
  cluster_options options;
  options.ranks = 4;
  const auto outcome =
      expect_same_bytes(options, {{2 * part, kind::expel, {1}}, {4 * part, kind::expel, {0, 3}}});
  EXPECT_EQ(outcome.fenced, 6U) << "RANK and EXPERT_SHARD of each";
}

} // namespace
} // namespace di::test
