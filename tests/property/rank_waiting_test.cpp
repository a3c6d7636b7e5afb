// SPDX-License-Identifier: Apache-2.0
// RANK's step loop, 1,000 random sets of requests: decoding sequences, the oldest prompt and the
// oldest sequence get rows within a bounded number of steps.
#include "tests/property/toy_rank.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::test {
namespace {

using toy_steps::kv;
using toy_steps::samplers;
using toy_steps::vocab;

/// Steps that a sequence may have to wait for a row: all others that decode may come first.
std::uint32_t turn_steps(const engine::rank_options& o) {
  const std::uint32_t kept = std::min(o.prefill_rows_min, o.step_rows - 1);
  return (o.running_max + o.step_rows - kept - 1) / (o.step_rows - kept) + 2;
}

/// Without withdrawals and with an attentive JOURNAL: how long does who wait?
void run_waiting(std::uint64_t seed, std::uint64_t* steps) {
  std::mt19937_64 random{seed};
  engine::rank_options o;
  o.vocab = vocab;
  o.context_tokens = 96;
  o.step_rows = static_cast<std::uint32_t>(2 + random() % 31);
  o.prefill_rows_min = static_cast<std::uint32_t>(1 + random() % 16);
  o.running_max = static_cast<std::uint32_t>(1 + random() % 40);
  o.page_tokens = static_cast<std::uint32_t>(1 + random() % 16);
  o.kv_tokens = (96 + random() % 800) / o.page_tokens * o.page_tokens + o.page_tokens;
  o.steps_in_flight = static_cast<std::uint32_t>(1 + random() % 2);
  const std::uint32_t bound = turn_steps(o);
  kv pages{o.kv_tokens, o.page_tokens};
  engine::rank_core core{o, samplers(), &pages};
  outbox out;
  std::map<request_id, std::uint32_t> drawn;
  std::map<engine::sequence_key, std::uint64_t> row_at; // step of the last row, or of its opening
  std::map<engine::sequence_key, bool> prefilled;
  const std::uint64_t requests = 5 + random() % 60;
  std::uint64_t asked = 0, step = 0;
  for (; asked < requests || core.requests() > 0; ++step) {
    ASSERT_LT(step, 40'000U) << "no end";
    while (asked < requests && random() % 4 == 0) {
      proto::assign_request m;
      m.spec.request = request_id{++asked};
      m.attempt = 1;
      m.spec.prompt.assign(1 + random() % (random() % 4 ? 10 : 60), 3);
      m.spec.sampling.max_tokens = static_cast<std::uint32_t>(1 + random() % 30);
      m.spec.sampling.seed = random();
      ASSERT_TRUE(core.on(m, {}, out));
    }
    if (!core.step_out())
      core.launch({}, out);
    core.finish({}, out);
    const bool computes = core.step_out();
    if (computes && o.steps_in_flight == 2)
      core.plan({});
    // Who has pages and got a row?
    const auto open = pages.open_keys();
    for (auto at = row_at.begin(); at != row_at.end();)
      at = open.contains(at->first) ? std::next(at) : row_at.erase(at); // ended or preempted
    for (const engine::sequence_key key : open)
      if (row_at.try_emplace(key, step).second)
        prefilled[key] = false;
    engine::sequence_key oldest_prompt = 0;
    for (const engine::planned_segment& s : core.launched().segments)
      if (computes && open.contains(s.sequence)) {
        row_at[s.sequence] = step;
        prefilled[s.sequence] = s.draws;
      }
    for (const engine::sequence_key key : open) {
      if (!prefilled[key] && oldest_prompt == 0)
        oldest_prompt = key;
      if (prefilled[key] || key == oldest_prompt || key == *open.begin()) {
        ASSERT_LE(step - row_at[key], bound) << "sequence " << key << " starves";
      }
    }
    if (oldest_prompt != 0)
      for (const engine::sequence_key key : open)
        if (key > oldest_prompt && !prefilled[key])
          row_at[key] = step; // behind an older prompt: its turn comes
    if (computes) {
      std::vector<std::vector<float>> values;
      for (const engine::planned_segment& s : core.launched().segments)
        values.push_back(pages.compute(s));
      const std::vector<std::span<const float>> logits{values.begin(), values.end()};
      core.draw(logits, {});
      if (o.steps_in_flight == 1)
        core.finish({}, out);
    }
    const auto commits = sent<proto::tokens_committed>(out);
    out.take();
    for (const auto& [to, m] : commits) {
      ASSERT_NE(m.end.reason, proto::finish_reason::error) << m.end.what;
      ASSERT_TRUE(core.on(
          proto::commit_accepted{m.request, m.choice, m.attempt,
                                 m.first_index + static_cast<std::uint32_t>(m.tokens.size()),
                                 m.end.reason != proto::finish_reason::none},
          {}, out));
    }
    core.check();
  }
  *steps += step;
}

TEST(rank_steps, starve_neither_decoding_nor_prompts) {
  std::uint64_t steps = 0;
  for (std::uint64_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_waiting(seed, &steps);
  }
  EXPECT_GT(steps, 50'000U);
}

} // namespace
} // namespace di::test
