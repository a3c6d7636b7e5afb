// SPDX-License-Identifier: Apache-2.0
// RANK's step loop under random scripts: requests, withdrawals, new attempts, lost and late
// acknowledgements, too few pages, one or two steps in flight. Every choice gets the tokens,
// log probabilities and end of a run alone; nothing is kept that ended.
#include "tests/property/toy_rank.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <iostream>
#include <random>

namespace di::test {
namespace {

using toy_steps::answer;
using toy_steps::generate;
using toy_steps::kv;
using toy_steps::logits_of;
using toy_steps::row_after;
using toy_steps::samplers;
using toy_steps::vocab;

struct script_totals {
  std::uint64_t tokens = 0, preempted = 0, withdrawn = 0, attempts = 0, drafted = 0, accepted = 0,
                steps = 0, choices = 0, hits = 0, forks = 0;
};

/// Plays shell, device, SCHEDULER and JOURNAL of one core.
class script {
public:
  script(std::uint64_t seed, std::uint32_t depth, script_totals* sum)
      : random_{seed},
        sum_{sum},
        options_{make_options(depth)},
        kv_{options_.kv_tokens, options_.page_tokens, seed % 2 == 1},
        core_{options_, samplers(), &kv_} {
    const std::size_t requests = 1 + random_() % 8;
    for (std::size_t i = 0; i < requests; ++i)
      specs_.push_back(make_spec(i + 1));
    patience_ = random_() % 4;
  }

  void run() {
    for (std::size_t turn = 0; turn < 4000 && !testing::Test::HasFailure(); ++turn) {
      mail();
      if (next_ == specs_.size() && core_.requests() == 0 && !core_.step_out())
        return finished();
      step();
      mail();
    }
    ADD_FAILURE() << "no end: " << core_.running() << " running, " << core_.waiting() << " waiting";
  }

private:
  struct seen {
    std::vector<token_id> tokens;
    std::vector<double> logprobs;
    proto::choice_end end;
  };

  engine::rank_options make_options(std::uint32_t depth) {
    engine::rank_options o;
    o.vocab = vocab;
    o.context_tokens = 64;
    o.step_rows = static_cast<std::uint32_t>(2 + random_() % 15);
    o.prefill_rows_min = static_cast<std::uint32_t>(1 + random_() % 4);
    o.prefill_rows_max = static_cast<std::uint32_t>(random_() % 8);
    o.running_max = static_cast<std::uint32_t>(1 + random_() % 6);
    o.unacknowledged_max = static_cast<std::uint32_t>(1 + random_() % 8);
    o.page_tokens = static_cast<std::uint32_t>(1 + random_() % 6);
    o.kv_tokens = (41 + random_() % (random_() % 4 ? 10 : 80)) / o.page_tokens * o.page_tokens
                  + o.page_tokens;
    o.steps_in_flight = depth;
    if (random_() % 4) {
      o.draft_block = static_cast<std::uint32_t>(1 + random_() % 5);
      o.speculation = random_speculation();
    }
    if (random_() % 4 == 0)
      o.step_ms = static_cast<double>(1 + random_() % 8);
    return o;
  }

  engine::speculation_choice random_speculation() {
    const auto code = static_cast<std::int32_t>(random_() % 7) - 1;
    return engine::speculation_from_code(code).value();
  }

  proto::request_spec make_spec(std::uint64_t id) {
    proto::request_spec spec;
    spec.request = request_id{id};
    spec.prompt.resize(1 + random_() % 20);
    for (token_id& t : spec.prompt)
      t = static_cast<token_id>(random_() % vocab);
    spec.sampling.n = static_cast<std::uint32_t>(1 + random_() % 3);
    spec.sampling.max_tokens = static_cast<std::uint32_t>(1 + random_() % 20);
    spec.sampling.seed = random_();
    spec.sampling.logprobs = random_() % 2 ? 0 : -1;
    spec.speculate = random_() % 5 != 0;
    spec.drafts = random_() % 2 ? engine::speculation_code(random_speculation()) : 0;
    if (random_() % 2)
      spec.sampling.stop_token_ids = {static_cast<token_id>(random_() % vocab),
                                      static_cast<token_id>(random_() % vocab)};
    return spec;
  }

  void checked() {
    core_.check();
    kv_.check();
  }

  /// Some of what may come at any moment.
  void mail() {
    read_commits();
    while (random_() % 3 == 0) {
      switch (random_() % 6) {
      case 0:
      case 1:
        assign();
        break;
      case 2:
        withdraw();
        break;
      case 3:
        begin_attempt();
        break;
      default:
        acknowledge();
      }
      checked();
    }
    if (random_() % 8 == 0) {
      now_ = now_ + std::chrono::milliseconds{300};
      EXPECT_TRUE(core_.on_due({1, 0}, now_, out_));
      checked();
    }
    read_commits();
  }

  void assign() {
    if (next_ == specs_.size())
      return;
    proto::assign_request m;
    m.spec = specs_[next_++];
    m.attempt = attempts_[m.spec.request] = 1;
    EXPECT_TRUE(core_.on(m, now_, out_));
    EXPECT_TRUE(sent<proto::assignment_refused>(out_).empty());
  }

  void withdraw() {
    if (next_ == 0 || random_() % 4)
      return;
    const proto::request_spec& spec = specs_[random_() % next_];
    if (!gone_.insert(spec.request).second)
      return;
    ++sum_->withdrawn;
    EXPECT_TRUE(
        core_.on(proto::withdraw_request{spec.request, attempts_[spec.request]}, now_, out_));
    // Nothing is left of it as soon as no step computes it.
    if (!core_.step_out() && !drafting_) {
      EXPECT_EQ(kv_.sequences(), core_.running());
    }
  }

  /// As if another rank had had it until here.
  void begin_attempt() {
    if (next_ == 0 || random_() % 4)
      return;
    const proto::request_spec& spec = specs_[random_() % next_];
    if (gone_.contains(spec.request) || ended(spec))
      return;
    ++sum_->attempts;
    read_commits();
    proto::assign_request m;
    m.spec = spec;
    m.attempt = ++attempts_[spec.request];
    for (std::uint32_t c = 0; c < spec.sampling.n; ++c) {
      const seen& s = seen_[{spec.request, c}];
      m.progress.push_back({c, s.tokens, s.end.reason != proto::finish_reason::none});
    }
    EXPECT_TRUE(core_.on(m, now_, out_));
  }

  bool ended(const proto::request_spec& spec) {
    for (std::uint32_t c = 0; c < spec.sampling.n; ++c)
      if (seen_[{spec.request, c}].end.reason == proto::finish_reason::none)
        return false;
    return true;
  }

  /// JOURNAL: takes what comes next, in order and once.
  void read_commits() {
    for (const any_effect& e : out_.take()) {
      const auto* send = std::get_if<effect::send>(&e);
      const auto* m = send ? send->body.as<proto::tokens_committed>() : nullptr;
      if (!m || gone_.contains(m->request) || m->attempt != attempts_[m->request])
        continue;
      seen& s = seen_[{m->request, m->choice}];
      EXPECT_LE(m->first_index, s.tokens.size());
      if (s.end.reason != proto::finish_reason::none) {
        EXPECT_LE(m->first_index + m->tokens.size(), s.tokens.size());
      }
      EXPECT_TRUE(m->logprobs.empty() || m->logprobs.size() == m->tokens.size());
      for (std::size_t i = s.tokens.size() - m->first_index; i < m->tokens.size(); ++i) {
        s.tokens.push_back(m->tokens[i]);
        if (!m->logprobs.empty())
          s.logprobs.push_back(m->logprobs[i].logprob);
      }
      if (m->end.reason != proto::finish_reason::none)
        s.end = m->end;
      to_acknowledge_.insert({m->request, m->choice});
    }
  }

  void acknowledge() {
    read_commits();
    if (random_() % (1 + patience_) != 0)
      return;
    for (const auto& [request, choice] : std::exchange(to_acknowledge_, {})) {
      const seen& s = seen_[{request, choice}];
      if (gone_.contains(request))
        continue;
      EXPECT_TRUE(core_.on(proto::commit_accepted{request, choice, attempts_[request],
                                                  static_cast<std::uint32_t>(s.tokens.size()),
                                                  s.end.reason != proto::finish_reason::none},
                           now_, out_));
    }
  }

  /// One turn of the shell's loop.
  void step() {
    if (!core_.step_out()) {
      draft();
      core_.launch(now_, out_);
      checked();
      for (const engine::planned_segment& s : core_.launched().segments) {
        EXPECT_LE(s.drafts, options_.draft_block);
        EXPECT_TRUE(s.drafts == 0 || (s.draws && s.tokens.size() == s.drafts + 1));
      }
      EXPECT_LE(core_.launched().rows, options_.step_rows);
    }
    if (options_.steps_in_flight == 1 || !core_.step_out()) {
      core_.finish(now_, out_);
      checked();
    }
    if (!core_.step_out())
      return;
    ++sum_->steps;
    mail();
    // Depth 2: the rest of the last step, and the next plan, while this one computes.
    core_.finish(now_, out_);
    checked();
    if (options_.steps_in_flight == 2 && random_() % 4) {
      core_.plan(now_);
      checked();
    }
    mail();
    compute();
    if (options_.steps_in_flight == 1)
      core_.finish(now_, out_);
    checked();
  }

  /// A draft pass: guesses that are right, nearly right, wrong, too few, too late.
  void draft() {
    const auto all = core_.draft_wishes(now_);
    const std::vector<engine::draft_wish> wishes{all.begin(), all.end()};
    EXPECT_TRUE(wishes.empty() || options_.draft_block > 0);
    if (wishes.empty())
      return;
    drafting_ = true;
    std::vector<std::uint64_t> rows;
    for (const engine::draft_wish& w : wishes) {
      EXPECT_GT(kv_.rows(w.sequence), 0U);
      rows.push_back(row_after(kv_.row(w.sequence), w.next));
    }
    if (random_() % 4 == 0)
      core_.finish(now_, out_); // its experts took their time
    mail();
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      std::vector<token_id> drafts;
      std::vector<float> confidences;
      while (drafts.size() < options_.draft_block && random_() % 16) {
        std::vector<float> logits(vocab);
        logits_of(rows[i], logits.data());
        if (random_() % 5 == 0)
          logits[random_() % vocab] += 4096;
        const auto drawn = core_.draw_draft(wishes[i].sequence, logits, drafts);
        ASSERT_TRUE(drawn);
        drafts.push_back(random_() % 8 ? *drawn : static_cast<token_id>(random_() % vocab));
        confidences.push_back(static_cast<float>(random_() % 100) / 10 - 4);
        rows[i] = row_after(rows[i], drafts.back());
      }
      if (random_() % 8)
        core_.offer_drafts(wishes[i].sequence, drafts, confidences);
    }
    core_.observe_draft_pass(static_cast<std::uint32_t>(wishes.size()),
                             1 + static_cast<double>(random_() % 100) / 50);
    checked();
    mail();
    for (const engine::draft_wish& w : wishes)
      kv_.row(w.sequence); // all have been readable until here
    if (random_() % 16 == 0)
      core_.end_drafts();
    drafting_ = false;
  }

  void compute() {
    std::vector<std::vector<float>> values;
    for (const engine::planned_segment& s : core_.launched().segments)
      values.push_back(kv_.compute(s));
    std::vector<std::span<const float>> logits{values.begin(), values.end()};
    const auto outcome = core_.draw(logits, now_);
    ASSERT_EQ(outcome.size(), values.size());
    for (std::size_t i = 0; i < outcome.size(); ++i) {
      const engine::planned_segment& s = core_.launched().segments[i];
      EXPECT_LE(outcome[i].kept, s.tokens.size());
      if (outcome[i].sequence != 0 && s.drafts > 0) {
        EXPECT_EQ(outcome[i].kept, outcome[i].drawn);
        sum_->drafted += s.drafts;
        sum_->accepted += outcome[i].kept - 1;
      }
    }
    core_.observe_step(1 + core_.launched().rows * 0.1 + static_cast<double>(random_() % 10) / 10);
    checked();
    EXPECT_EQ(kv_.sequences(), core_.running()); // what ended in the step is gone
  }

  void finished() {
    core_.finish(now_, out_);
    read_commits();
    EXPECT_EQ(kv_.sequences(), 0U);
    EXPECT_EQ(kv_.tokens_free(), kv_.tokens_total());
    sum_->preempted += core_.preemptions();
    sum_->hits += kv_.hits;
    sum_->forks += kv_.forks;
    for (const proto::request_spec& spec : specs_)
      for (std::uint32_t c = 0; c < spec.sampling.n; ++c) {
        SCOPED_TRACE("request " + std::to_string(spec.request.v) + " choice " + std::to_string(c));
        const answer wanted = generate(spec, c);
        const seen& got = seen_[{spec.request, c}];
        ++sum_->choices;
        sum_->tokens += got.tokens.size();
        if (gone_.contains(spec.request) && got.end.reason == proto::finish_reason::none) {
          ASSERT_LE(got.tokens.size(), wanted.tokens.size());
          EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), wanted.tokens.begin()));
          continue;
        }
        EXPECT_EQ(got.tokens, wanted.tokens);
        EXPECT_EQ(got.logprobs, wanted.logprobs);
        EXPECT_EQ(got.end.reason, wanted.end.reason) << got.end.what;
        EXPECT_EQ(got.end.stop_index, wanted.end.stop_index);
        EXPECT_EQ(got.end.kept_tokens, wanted.end.kept_tokens);
      }
  }

  std::mt19937_64 random_;
  script_totals* sum_;
  engine::rank_options options_;
  kv kv_;
  engine::rank_core core_;
  outbox out_;
  instant now_{1};
  std::vector<proto::request_spec> specs_;
  std::size_t next_ = 0;
  std::uint64_t patience_ = 0;
  bool drafting_ = false;
  std::map<request_id, std::uint32_t> attempts_;
  std::set<request_id> gone_;
  std::map<std::pair<request_id, std::uint32_t>, seen> seen_;
  std::set<std::pair<request_id, std::uint32_t>> to_acknowledge_;
};

TEST(rank_steps, give_the_tokens_of_a_run_alone_at_either_depth) {
  script_totals sum;
  for (std::uint64_t seed = 0; seed < 4000 && !testing::Test::HasFailure(); ++seed)
    for (const std::uint32_t depth : {1U, 2U}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " depth " + std::to_string(depth));
      script{seed, depth, &sum}.run();
    }
  EXPECT_GT(sum.tokens, 100'000U);
  EXPECT_GT(sum.preempted, 1'000U);
  EXPECT_GT(sum.withdrawn, 1'000U);
  EXPECT_GT(sum.attempts, 1'000U);
  EXPECT_GT(sum.accepted, 10'000U);
  EXPECT_GT(sum.hits, 1'000U);
  EXPECT_GT(sum.forks, 1'000U);
  EXPECT_GT(sum.drafted, sum.accepted + 10'000U);
  std::cout << sum.choices << " choices, " << sum.tokens << " tokens, " << sum.steps << " steps, "
            << sum.preempted << " preempted, " << sum.withdrawn << " withdrawn, " << sum.attempts
            << " attempts, " << sum.accepted << " of " << sum.drafted << " drafts accepted, "
            << sum.hits << " prefix hits, " << sum.forks << " forks\n";
}

} // namespace
} // namespace di::test
