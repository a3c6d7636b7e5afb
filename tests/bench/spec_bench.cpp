// SPDX-License-Identifier: Apache-2.0
// Decoding with and without drafts on one rank, interleaved: A/B of tokens per second. JSON on
// stdout, one object per line.
//
//   spec_bench [--model demo|PRESET] [--runs N] [--sequences 1,8,32] [--tokens N] [--length N]
//              [--temperature T]
//
// One run decodes all sequences side by side without drafts, then the same with `length` drafts
// each; the ratio is that of the medians over runs. Seconds are processor time of this process with
// one thread (a busy machine then does not count) and leave the prefill out. Both sides must give
// the same tokens. `demo` answers its own questions; a preset continues random prompts.
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
  std::uint32_t tokens = 24, length = 5;
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

std::string text_of(std::string_view name, const side& s) {
  const loop_counts& c = s.last;
  const auto per_step = [&](double seconds) {
    return 1e3 * seconds / static_cast<double>(c.steps);
  };
  return fmt::format("\"{}\": {{\"tok_s\": {:.1f}, \"tok_s_max\": {:.1f}, \"steps\": {}, "
                     "\"target_ms\": {:.3f}, \"sample_ms\": {:.3f}, \"feed_ms\": {:.3f}, "
                     "\"draft_ms\": {:.3f}}}",
                     name, median(s.rates), *std::max_element(s.rates.begin(), s.rates.end()),
                     c.steps, per_step(c.target_s), per_step(c.sample_s), per_step(c.feed_s),
                     per_step(c.draft_s));
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
  side off, on;
  for (int r = 0; r < set.runs; ++r) {
    const auto plain = loop.run(choices, {draft_source::none});
    off.add(loop.counts(), sequences);
    const auto drafted = loop.run(choices, {draft_source::model, set.length});
    on.add(loop.counts(), sequences);
    for (std::size_t i = 0; i < sequences; ++i)
      if (plain[i].tokens != drafted[i].tokens)
        throw std::runtime_error(fmt::format("sequence {} differs with drafts", i));
  }
  const double per_round =
      static_cast<double>(on.last.accepted) / static_cast<double>(on.last.rounds);
  fmt::print("{{\"model\": \"{}\", \"sequences\": {}, \"tokens\": {}, \"temperature\": {}, "
             "\"length\": {}, \"runs\": {}, {}, {}, \"accepted_per_round\": {:.2f}, \"gain\": "
             "{:.3f}}}\n",
             set.model, sequences, set.tokens, set.temperature, set.length, set.runs,
             text_of("off", off), text_of("fixed", on), per_round,
             median(on.rates) / median(off.rates));
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
    else if (arg == "--length")
      set.length = static_cast<std::uint32_t>(std::stoul(value));
    else if (arg == "--temperature")
      set.temperature = std::stod(value);
    else if (arg == "--sequences") {
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
