// SPDX-License-Identifier: Apache-2.0
// Decoding with and without drafts on one rank, interleaved: A/B of tokens per second. JSON on
// stdout, one object per line.
//
//   spec_bench [--model demo|PRESET] [--runs N] [--sequences 1,8,32] [--tokens N] [--lengths 1,3,5]
//              [--temperature T]
//
// One run decodes all sequences side by side without drafts, then the same with each of `lengths`
// drafts, then with as many as the planner chooses; ratios are those of the medians over runs. The
// planner learns from all sides' steps; the first runs, which do not count, are its profile.
// Seconds are processor time of this process with one thread (a busy machine then does not count)
// and leave the prefill out. All sides must give the same tokens. `demo` answers its own questions;
// a preset continues random prompts.
#include "engine/core/text_sampler.hpp"
#include "tests/support/speculative_loop.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>

namespace di::testing {
namespace {

struct settings {
  std::string model = "demo";
  int runs = 5;
  std::vector<std::size_t> sequences{1, 8, 32};
  std::uint32_t tokens = 24;
  std::vector<std::uint32_t> lengths{1, 3, 5};
  double temperature = 0;
};

std::vector<std::vector<token_id>> demo_prompts(std::uint32_t tokens) {
  std::ifstream file{demo_checkpoint() + "/golden.json"};
  std::vector<std::vector<token_id>> prompts;
  const auto golden = nlohmann::json::parse(file);
  for (const auto& c : golden.at("cases"))
    if (c.at("tokens").size() > tokens) // so that all sequences run to the end
      prompts.push_back(c.at("prompt_ids").get<std::vector<token_id>>());
  return prompts;
}

std::vector<std::vector<token_id>> random_prompts(std::int64_t vocab) {
  std::mt19937_64 random{99};
  std::vector<std::vector<token_id>> prompts(32, std::vector<token_id>(32));
  for (auto& p : prompts)
    for (token_id& t : p)
      t = static_cast<token_id>(random() % static_cast<std::uint64_t>(vocab * 9 / 10));
  return prompts;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct side {
  std::vector<double> rates;
  loop_counts last;

  void add(const loop_counts& c, std::size_t sequences) {
    // The prefill drew one token of each sequence.
    rates.push_back(static_cast<double>(c.tokens - sequences) / c.decode_s());
    last = c;
  }
};

std::string text_of(std::string_view name, const side& s, double off) {
  const loop_counts& c = s.last;
  const auto per_round = [&](std::uint64_t n) {
    return c.rounds == 0 ? 0 : static_cast<double>(n) / static_cast<double>(c.rounds);
  };
  const auto per_step = [&](double seconds) {
    return 1e3 * seconds / static_cast<double>(c.steps);
  };
  return fmt::format("\"{}\": {{\"tok_s\": {:.1f}, \"gain\": {:.3f}, \"steps\": {}, "
                     "\"verified_per_round\": {:.2f}, \"accepted_per_round\": {:.2f}, "
                     "\"target_ms\": {:.3f}, \"sample_ms\": {:.3f}, \"feed_ms\": {:.3f}, "
                     "\"draft_ms\": {:.3f}}}",
                     name, median(s.rates), median(s.rates) / off, c.steps, per_round(c.verified),
                     per_round(c.accepted), per_step(c.target_s), per_step(c.sample_s),
                     per_step(c.feed_s), per_step(c.draft_s));
}

void measure(speculative_loop& loop, const settings& set,
             const std::vector<std::vector<token_id>>& prompts, std::size_t sequences) {
  std::vector<loop_choice> choices(sequences);
  for (std::size_t i = 0; i < sequences; ++i) {
    choices[i].spec.prompt = prompts[i % prompts.size()];
    choices[i].spec.sampling.temperature = set.temperature;
    choices[i].spec.sampling.max_tokens = set.tokens;
    choices[i].spec.sampling.seed = i;
    choices[i].spec.sampling.ignore_eos = true;
  }
  loop_tuning tuning;
  std::vector<side> sides(set.lengths.size() + 2);       // none, each length, planned
  const int warm = 1 + static_cast<int>(16 / sequences); // until confidences are corrected
  for (int r = -warm; r < set.runs; ++r) {
    std::vector<loop_answer> plain;
    for (std::size_t s = 0; s < sides.size(); ++s) {
      const bool planned = s + 1 == sides.size();
      loop_options o;
      o.source = s == 0 ? draft_source::none : draft_source::model;
      o.length = s == 0 || planned ? 5 : set.lengths[s - 1];
      o.planned = planned;
      o.tuning = &tuning;
      auto answers = loop.run(choices, o);
      if (r >= 0)
        sides[s].add(loop.counts(), sequences);
      if (s == 0)
        plain = std::move(answers);
      else
        for (std::size_t i = 0; i < sequences; ++i)
          if (plain[i].tokens != answers[i].tokens)
            throw std::runtime_error(fmt::format("sequence {} differs with drafts", i));
    }
  }
  const double off = median(sides[0].rates);
  std::string text = text_of("off", sides[0], off);
  double best = 0;
  for (std::size_t s = 1; s + 1 < sides.size(); ++s) {
    text += ", " + text_of(fmt::format("fixed:{}", set.lengths[s - 1]), sides[s], off);
    best = std::max(best, median(sides[s].rates));
  }
  const double varlen = median(sides.back().rates);
  const auto plans = [&](engine::verify_plan::kind how) { return tuning.planner.plans(how); };
  const engine::position_quality first = tuning.confidences.quality(0);
  using kind = engine::verify_plan::kind;
  fmt::print("{{\"model\": \"{}\", \"sequences\": {}, \"tokens\": {}, \"temperature\": {}, "
             "\"runs\": {}, {}, {}, \"varlen_over_best_fixed\": {:.3f}, \"varlen_over_best\": "
             "{:.3f}, \"plans\": {{\"none\": {}, \"all\": {}, \"uniform\": {}, \"trimmed\": {}, "
             "\"not_drafted\": {}}}, \"ece_first_raw\": {:.3f}, \"ece_first\": {:.3f}}}\n",
             set.model, sequences, set.tokens, set.temperature, set.runs, text,
             text_of("varlen", sides.back(), off), varlen / best, varlen / std::max(best, off),
             plans(kind::none), plans(kind::all), plans(kind::uniform), plans(kind::trimmed),
             tuning.planner.skipped(), first.ece_raw, first.ece);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  settings set;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view arg = argv[i];
    const std::string value = argv[i + 1];
    if (arg == "--model")
      set.model = value;
    else if (arg == "--runs")
      set.runs = std::stoi(value);
    else if (arg == "--tokens")
      set.tokens = static_cast<std::uint32_t>(std::stoul(value));
    else if (arg == "--temperature")
      set.temperature = std::stod(value);
    else if (arg == "--lengths") {
      set.lengths.clear();
      std::istringstream list{value};
      for (std::string n; std::getline(list, n, ',');)
        set.lengths.push_back(static_cast<std::uint32_t>(std::stoul(n)));
    } else if (arg == "--sequences") {
      set.sequences.clear();
      std::istringstream list{value};
      for (std::string n; std::getline(list, n, ',');)
        set.sequences.push_back(std::stoul(n));
    } else {
      throw std::runtime_error(fmt::format("no option {}", arg));
    }
  }
  const bool is_demo = set.model == "demo";
  const auto model = load_model(is_demo ? demo_checkpoint() : preset_checkpoint(set.model));
  speculative_loop loop{
      *model,
      engine::make_text_samplers(nullptr, static_cast<std::size_t>(model->spec().vocab_size), {}),
      1, 512};
  const auto prompts =
      is_demo ? demo_prompts(set.tokens) : random_prompts(model->spec().vocab_size);
  for (const std::size_t sequences : set.sequences)
    measure(loop, set, prompts, sequences);
  return 0;
}

} // namespace
} // namespace di::testing

int main(int argc, char** argv) {
  try {
    return di::testing::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
