// SPDX-License-Identifier: Apache-2.0
// Test-only: the loop.
#include "tests/support/speculative_loop.hpp"

#include "engine/core/speculation.hpp"

#include <algorithm>
#include <ctime>

namespace di::testing {

namespace {

template <class T>
T need(result<T> r) {
  if (!r.ok())
    throw std::runtime_error(r.error().render());
  return std::move(*r);
}
void need(const result<void>& r) {
  if (!r.ok())
    throw std::runtime_error(r.error().render());
}

double cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Adds the CPU time of its life.
class stopwatch {
public:
  explicit stopwatch(double& to) : to_{to}, began_{cpu_now()} {}
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() { to_ += cpu_now() - began_; }

private:
  double& to_;
  double began_;
};

std::uint64_t next_random(std::uint64_t& state) { // splitmix64
  std::uint64_t x = state += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

} // namespace

struct speculative_loop::running {
  const loop_choice* of = nullptr;
  std::unique_ptr<engine::sequence_state> sequence;
  std::unique_ptr<engine::choice_sampler> sampler;
  std::vector<token_id> history; ///< prompt and output
  std::vector<token_id> drafts;  ///< to verify in the next step
  std::vector<float> logits;     ///< confidences of the model's drafts
  std::vector<token_id> rows;    ///< of the step
  loop_answer answer;

  std::uint32_t room() const {
    return of->spec.sampling.max_tokens - static_cast<std::uint32_t>(answer.tokens.size());
  }
  bool ended() const { return answer.end.reason != proto::finish_reason::none; }
};

speculative_loop::speculative_loop(const engine::loaded_model& model,
                                   engine::sampler_factory samplers, unsigned threads,
                                   std::uint32_t pages)
    : engine_{model, threads, kernels::best_cpu_ops(), pages},
      drafts_{engine::make_draft_runner(model, engine_.ops, *engine_.stream)},
      samplers_{std::move(samplers)} {
}

std::vector<loop_answer> speculative_loop::run(std::span<const loop_choice> choices,
                                               const loop_options& options) {
  counts_ = {};
  random_ = options.seed;
  feeds_ = options.source == draft_source::fed || options.source == draft_source::model;
  engine_.steps->want_taps(feeds_);
  std::vector<running> all(choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    all[i].of = &choices[i];
    all[i].sequence = engine_.sequence();
    all[i].sampler = need(samplers_(choices[i].spec, choices[i].choice));
    all[i].history = choices[i].spec.prompt;
  }
  prefill(all);
  for (;;) {
    std::vector<running*> live;
    for (running& r : all)
      if (!r.ended())
        live.push_back(&r);
    if (live.empty())
      break;
    draft(live, options);
    step(live, options);
  }
  std::vector<loop_answer> answers;
  for (running& r : all) {
    r.answer.state = r.sequence->hash();
    r.answer.draft_state = r.sequence->draft_hash();
    answers.push_back(std::move(r.answer));
  }
  return answers;
}

void speculative_loop::prefill(std::vector<running>& all) {
  const stopwatch watch{counts_.prefill_s};
  std::vector<engine::step_segment> segments;
  for (running& r : all)
    segments.push_back({r.sequence.get(), 0, r.of->spec.prompt, engine::logits_wanted::last});
  need(engine_.loop.run(segments));
  std::vector<engine::draft_feed> feeds;
  for (std::size_t i = 0; i < all.size(); ++i) {
    take(all[i], i, nullptr);
    feeds.push_back({all[i].sequence.get(), 0, engine_.steps->taps(i)});
  }
  if (feeds_)
    need(drafts_->feed(feeds));
}

/// Draws from the rows of a segment, accepts, and takes back what did not stand.
void speculative_loop::take(running& r, std::size_t segment, loop_tuning* tuning) {
  const engine::verified v =
      need(engine::verify_drafts(*r.sampler, engine_.steps->logits(segment), r.history, r.drafts));
  std::size_t kept = 0;
  for (const engine::drawn_token& t : v.tokens) {
    ++kept;
    r.history.push_back(t.token);
    r.answer.tokens.push_back(t.token);
    r.answer.logprobs.push_back(t.logprobs);
    r.answer.end = r.sampler->accept(t.token);
    if (r.ended())
      break;
  }
  if (!r.drafts.empty()) {
    if (tuning && r.logits.size() >= r.drafts.size())
      tuning->confidences.observe(std::span{r.logits}.first(r.drafts.size()), v.accepted);
    ++counts_.rounds;
    counts_.verified += r.drafts.size();
    counts_.accepted += std::min<std::size_t>(v.accepted, kept - 1);
  }
  counts_.tokens += kept;
  r.drafts.clear();
  need(r.sequence->truncate(static_cast<std::int64_t>(r.history.size()) - 1));
}

void speculative_loop::step(std::span<running*> live, const loop_options& options) {
  const bool feeding = feeds_;
  engine_.steps->want_taps(feeding);
  const double before = counts_.decode_s();
  std::size_t rows_in_all = 0;
  std::vector<engine::step_segment> segments;
  for (running* r : live) {
    r->rows.assign(1, r->history.back());
    r->rows.insert(r->rows.end(), r->drafts.begin(), r->drafts.end());
    rows_in_all += r->rows.size();
    segments.push_back({r->sequence.get(), static_cast<std::uint32_t>(r->sequence->length()),
                        r->rows, engine::logits_wanted::all});
  }
  {
    const stopwatch watch{counts_.target_s};
    need(engine_.loop.run(segments));
  }
  ++counts_.steps;
  std::vector<engine::draft_feed> feeds;
  {
    const stopwatch watch{counts_.sample_s};
    for (std::size_t i = 0; i < live.size(); ++i) {
      const std::int64_t first = segments[i].first_position;
      take(*live[i], i, options.tuning);
      if (!feeding)
        continue;
      const auto taps = engine_.steps->taps(i);
      const auto rows = static_cast<std::size_t>(live[i]->sequence->length() - first);
      feeds.push_back({live[i]->sequence.get(), first,
                       taps.first(taps.size() / segments[i].tokens.size() * rows)});
    }
  }
  if (feeding) {
    const stopwatch watch{counts_.feed_s};
    need(drafts_->feed(feeds));
  }
  if (options.tuning)
    options.tuning->planner.observe_step(static_cast<std::uint32_t>(rows_in_all),
                                         1e3 * (counts_.decode_s() - before));
}

void speculative_loop::draft(std::span<running*> live, const loop_options& options) {
  if (options.source != draft_source::model && options.source != draft_source::noise)
    return;
  std::vector<running*> wanted;
  std::vector<std::uint32_t> lengths;
  for (running* r : live) {
    const auto most = options.varied
                          ? static_cast<std::uint32_t>(next_random(random_) % (options.length + 1))
                          : options.length;
    if (const auto length = engine::drafts_wanted(most, r->room()); length > 0) {
      wanted.push_back(r);
      lengths.push_back(length);
    }
  }
  if (options.planned) {
    const auto n = static_cast<std::uint32_t>(wanted.size());
    if (!options.tuning->planner.wants_drafts(n, 0, static_cast<std::uint32_t>(live.size()) - n))
      return;
    std::erase_if(wanted, [](const running* r) { // not fed up to its end
      return r->sequence->draft_end() != r->sequence->length();
    });
    lengths.clear();
    for (const running* r : wanted)
      lengths.push_back(engine::drafts_wanted(options.length, r->room()));
  }
  if (options.source == draft_source::model && !wanted.empty()) {
    const double before = counts_.draft_s;
    {
      const stopwatch watch{counts_.draft_s};
      run_draft_pass(wanted);
    }
    if (options.tuning)
      options.tuning->planner.observe_draft(static_cast<std::uint32_t>(wanted.size()),
                                            1e3 * (counts_.draft_s - before));
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (options.source == draft_source::noise)
      for (std::uint32_t k = 0; k < lengths[i]; ++k)
        wanted[i]->drafts.push_back(static_cast<token_id>(
            next_random(random_) % static_cast<std::uint64_t>(engine_.model.spec().vocab_size)));
    wanted[i]->drafts.resize(lengths[i]);
  }
  if (options.planned)
    plan_lengths(live, wanted.size(), *options.tuning);
}

void speculative_loop::plan_lengths(std::span<running*> live, std::size_t drafted,
                                    loop_tuning& tuning) {
  const stopwatch watch{counts_.draft_s};
  std::vector<std::vector<float>> survivals(live.size());
  std::vector<engine::verify_offer> offers(live.size());
  for (std::size_t i = 0; i < live.size(); ++i) {
    survivals[i].resize(live[i]->drafts.size());
    tuning.confidences.survivals(std::span{live[i]->logits}.first(survivals[i].size()),
                                 survivals[i]);
    offers[i].wanted.mode = engine::speculation_mode::varlen;
    offers[i].limit = static_cast<std::uint32_t>(survivals[i].size());
    offers[i].survivals = survivals[i];
  }
  const auto& plan = tuning.planner.choose(offers, 0, static_cast<std::uint32_t>(drafted));
  for (std::size_t i = 0; i < live.size(); ++i)
    live[i]->drafts.resize(plan.lengths[i]);
}

void speculative_loop::run_draft_pass(std::span<running*> wanted) {
  std::vector<engine::draft_segment> segments;
  for (const running* r : wanted)
    segments.push_back({r->sequence.get(), r->history.back()});
  auto state = need(drafts_->start(segments));
  while (state == engine::step_state::needs_experts) {
    need(engine_.loop.answer(drafts_->demand()));
    state = need(drafts_->resume());
  }
  need(drafts_->draw([&](std::size_t segment, std::size_t k, std::span<const float> logits) {
    return wanted[segment]->sampler->draw_draft(logits, wanted[segment]->history,
                                                drafts_->drafts(segment).first(k));
  }));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto drawn = drafts_->drafts(i);
    wanted[i]->drafts.assign(drawn.begin(), drawn.end());
    const auto logits = drafts_->confidences(i);
    wanted[i]->logits.assign(logits.begin(), logits.end());
  }
}

} // namespace di::testing
