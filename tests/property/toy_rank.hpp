// SPDX-License-Identifier: Apache-2.0
// A device for rank_core alone: the KV of a sequence is a hash per row over all tokens before it,
// and logits are a function of that hash. One stale, missing or strange row changes all that
// follows. With a drafter that guesses right or wrong, and the oracle: one row after the other.
#pragma once

#include "chaos/sim_toy_model.hpp"
#include "engine/core/rank_core.hpp"
#include "messaging/base/check.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

namespace di::test::toy_steps {

inline constexpr std::uint32_t vocab = 13;

using sim::toy::mix;

inline std::uint64_t row_after(std::uint64_t before, token_id token) {
  return mix(before + 1, static_cast<std::uint64_t>(token));
}
inline void logits_of(std::uint64_t row, float* out) {
  for (std::uint32_t t = 0; t < vocab; ++t)
    out[t] = static_cast<float>(mix(row, t) % 4096);
}

/// Pages and rows of all sequences. `tricky`: remembers prefixes by their last row, forks, wants
/// chunks cut, and sometimes has rows run again, as the real one does behind a bounded hit.
class kv final : public engine::counted_ledger {
public:
  kv(std::uint64_t kv_tokens, std::uint32_t page_tokens, bool tricky = false)
      : counted_ledger{kv_tokens, page_tokens}, tricky_{tricky} {}

  std::uint32_t open(engine::sequence_key key, const engine::kv_opening& what) override {
    DI_CHECK(!rows_.contains(key));
    std::vector<std::uint64_t>& rows = rows_[key];
    counted_ledger::open(key, what);
    if (!tricky_)
      return 0;
    std::vector<std::uint64_t> chain;
    std::size_t hit = 0;
    for (std::size_t i = 0; i + 1 < what.tokens.size(); ++i) {
      chain.push_back(row_after(i == 0 ? 0 : chain.back(), what.tokens[i]));
      if (chain.size() % page_tokens() == 0 && known_.contains(chain.back()))
        hit = chain.size();
    }
    if (hit > 0 && reserve(key, static_cast<std::uint32_t>(hit))) {
      rows.assign(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(hit));
      ++hits;
    }
    return static_cast<std::uint32_t>(rows.size());
  }
  std::uint32_t advanced(engine::sequence_key key, std::uint32_t settled,
                         std::uint32_t rows) override {
    std::vector<std::uint64_t>& all = rows_.at(key);
    DI_CHECK(settled <= rows && rows <= all.size());
    if (!tricky_)
      return rows;
    for (std::size_t n = page_tokens(); n <= settled; n += page_tokens())
      known_.insert(all[n - 1]);
    if (key % 5 == 0 && rows > 3 && again_.insert(key).second) {
      truncate(key, rows - 3);
      return rows - 3;
    }
    return rows;
  }
  std::uint32_t chunk_end(engine::sequence_key key, std::uint32_t position) const override {
    return tricky_ && key % 3 == 0 ? position / 7 * 7 + 7 : ~0U;
  }
  bool fork(engine::sequence_key from, engine::sequence_key to, std::uint32_t tokens) override {
    const std::vector<std::uint64_t>& of = rows_.at(from);
    std::vector<std::uint64_t>& copy = rows_.at(to);
    DI_CHECK(copy.empty() && of.size() >= tokens);
    if (!tricky_ || of.size() > tokens + 8 || !reserve(to, tokens))
      return false;
    copy.assign(of.begin(), of.begin() + tokens);
    ++forks;
    return true;
  }
  void truncate(engine::sequence_key key, std::uint32_t tokens) override {
    DI_CHECK(tokens <= rows_.at(key).size());
    rows_.at(key).resize(tokens);
    counted_ledger::truncate(key, tokens);
  }
  void close(engine::sequence_key key) override {
    DI_CHECK_EQ(rows_.erase(key), std::size_t{1});
    counted_ledger::close(key);
  }
  void check() const override {
    counted_ledger::check();
    DI_CHECK_EQ(sequences(), rows_.size());
  }

  /// Computes a segment's rows. @return [wanted, vocab]
  std::vector<float> compute(const engine::planned_segment& s) {
    std::vector<std::uint64_t>& rows = rows_.at(s.sequence);
    DI_CHECK_EQ(rows.size(), std::size_t{s.first_position});
    DI_CHECK(rows.size() + s.tokens.size() <= tokens_held(s.sequence));
    std::vector<float> logits;
    for (std::size_t i = 0; i < s.tokens.size(); ++i) {
      rows.push_back(row_after(rows.empty() ? 0 : rows.back(), s.tokens[i]));
      if (s.draws && i + 1 + s.drafts >= s.tokens.size()) {
        logits.resize(logits.size() + vocab);
        logits_of(rows.back(), logits.data() + logits.size() - vocab);
      }
    }
    return logits;
  }
  std::uint64_t row(engine::sequence_key key) const {
    return rows_.at(key).empty() ? 0 : rows_.at(key).back();
  }
  std::size_t rows(engine::sequence_key key) const { return rows_.at(key).size(); }
  std::set<engine::sequence_key> open_keys() const {
    std::set<engine::sequence_key> keys;
    for (const auto& [key, rows] : rows_)
      keys.insert(key);
    return keys;
  }

  std::uint64_t hits = 0, forks = 0;

private:
  bool tricky_;
  std::map<engine::sequence_key, std::vector<std::uint64_t>> rows_;
  std::set<std::uint64_t> known_; ///< last rows of prefixes
  std::set<engine::sequence_key> again_;
};

/// Ends with token 0, or with two tokens in a row that are spec.stop_token_ids (as a stop string
/// of two would); a penalty on tokens of the output makes history count.
class sampler final : public engine::choice_sampler {
public:
  sampler(const proto::request_spec& spec, std::uint32_t choice) : spec_{spec}, choice_{choice} {}

  result<engine::drawn_token> draw(std::span<const float> row, std::span<const token_id> history,
                                   std::span<const token_id> pending) override {
    // All output before `pending` went through accept().
    DI_CHECK_EQ(history.size(), spec_.prompt.size() + output_.size());
    DI_CHECK_EQ(row.size(), std::size_t{vocab});
    const std::size_t position = history.size() + pending.size();
    std::array<std::int64_t, vocab> score{};
    for (std::size_t t = 0; t < vocab; ++t)
      score[t] = static_cast<std::int64_t>(row[t])
                 + static_cast<std::int64_t>(
                     mix(mix(spec_.sampling.seed, position), t * 16 + choice_) % 4096);
    for (std::size_t i = spec_.prompt.size(); i < history.size(); ++i)
      score[static_cast<std::size_t>(history[i])] -= 100;
    for (const token_id t : pending)
      score[static_cast<std::size_t>(t)] -= 100;
    const auto best = std::max_element(score.begin(), score.end()) - score.begin();
    engine::drawn_token drawn;
    drawn.token = static_cast<token_id>(best);
    drawn.logprobs.logprob = static_cast<double>(score[static_cast<std::size_t>(best)]);
    return drawn;
  }

  proto::choice_end accept(token_id token) override {
    output_.push_back(token);
    const auto& stop = spec_.sampling.stop_token_ids;
    const std::size_t n = output_.size();
    proto::choice_end end;
    if (token == 0) {
      end.reason = proto::finish_reason::stop;
      end.kept_tokens = static_cast<std::uint32_t>(n);
    } else if (stop.size() == 2 && n >= 2 && output_[n - 2] == stop[0] && token == stop[1]) {
      end.reason = proto::finish_reason::stop;
      end.stop_index = 0;
      end.kept_tokens = static_cast<std::uint32_t>(n - 2);
    }
    return end;
  }

private:
  proto::request_spec spec_;
  std::uint32_t choice_;
  std::vector<token_id> output_;
};

inline engine::sampler_factory samplers() {
  return [](const proto::request_spec& spec,
            std::uint32_t choice) -> result<std::unique_ptr<engine::choice_sampler>> {
    return std::unique_ptr<engine::choice_sampler>{std::make_unique<sampler>(spec, choice)};
  };
}

struct answer {
  std::vector<token_id> tokens;
  std::vector<double> logprobs;
  proto::choice_end end;
};

/// What any rank must answer.
inline answer generate(const proto::request_spec& spec, std::uint32_t choice) {
  sampler draws{spec, choice};
  std::vector<token_id> tokens = spec.prompt;
  std::uint64_t row = 0;
  for (const token_id t : tokens)
    row = row_after(row, t);
  answer a;
  for (;;) {
    std::vector<float> logits(vocab);
    logits_of(row, logits.data());
    const auto drawn = draws.draw(logits, tokens, {}).value();
    tokens.push_back(drawn.token);
    a.tokens.push_back(drawn.token);
    if (spec.sampling.logprobs >= 0)
      a.logprobs.push_back(drawn.logprobs.logprob);
    a.end = draws.accept(drawn.token);
    if (a.end.reason == proto::finish_reason::none && a.tokens.size() == spec.sampling.max_tokens) {
      a.end.reason = proto::finish_reason::length;
      a.end.kept_tokens = spec.sampling.max_tokens;
    }
    if (a.end.reason != proto::finish_reason::none)
      return a;
    row = row_after(row, drawn.token);
  }
}

} // namespace di::test::toy_steps
