// SPDX-License-Identifier: Apache-2.0
// Making prompts, and statistics of token times.
#include "launch/bench_work.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <random>

namespace di::launch {
namespace {

using nlohmann::json;

/// A prompt that a small model can go on from for long.
std::string sentence(std::mt19937_64& random) {
  constexpr std::array<std::string_view, 8> who = {"fox",  "boat", "cat",   "girl",
                                                   "bird", "king", "robot", "farmer"};
  constexpr std::array<std::string_view, 8> name = {"Ruby", "Tom",  "Mia", "Max",
                                                    "Lily", "Finn", "Zoe", "Sam"};
  constexpr std::array<std::string_view, 4> begin = {
      "Tell me a story about a {} named {}", "Write a short story about a {} called {}",
      "Tell me about a {} and its friend {}", "Once upon a time there was a {}. Its name was {}"};
  return fmt::format(fmt::runtime(begin[random() % begin.size()]), who[random() % who.size()],
                     name[random() % name.size()]);
}

json line_of(const bench_options& o, std::mt19937_64& random) {
  json line;
  if (o.prompt_tokens == 0) {
    line["prompt"] =
        fmt::format("<｜begin▁of▁sentence｜><｜User｜>{}<｜Assistant｜></think>", sentence(random));
    line["special_tokens"] = true;
  } else {
    json ids = json::array();
    for (std::uint32_t i = 0; i < o.prompt_tokens; ++i)
      ids.push_back(random() % o.vocab);
    line["prompt_ids"] = std::move(ids);
  }
  line["max_tokens"] = o.output_tokens;
  line["ignore_eos"] = true;
  line["temperature"] = o.temperature;
  line["seed"] = random();
  line["token_times"] = true;
  line["prefix"] = "off"; // the same prompts come once per variant; none may profit of another
  return line;
}

double part_of(std::vector<double> values, double part) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

double median_of(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// What one (batch, speculation) collects.
struct collected {
  std::uint64_t tokens = 0;
  std::vector<double> rates, first, gaps;
};

/// Tokens that came at one moment share the time since the moment before.
void add_gaps(const std::vector<double>& at, std::vector<double>& gaps) {
  std::size_t i = 0;
  while (i < at.size() && at[i] == at.front())
    ++i;
  double before = at.empty() ? 0 : at.front();
  while (i < at.size()) {
    std::size_t end = i;
    while (end < at.size() && at[end] == at[i])
      ++end;
    const double each = (at[i] - before) / static_cast<double>(end - i);
    before = at[i];
    gaps.insert(gaps.end(), end - i, each);
    i = end;
  }
}

} // namespace

bench_work make_bench_work(const bench_options& o) {
  bench_work work;
  std::mt19937_64 random{o.seed};
  const auto add = [&](std::uint32_t batch, std::size_t speculation, bool counted,
                       const std::vector<json>& lines) {
    for (json line : lines) {
      line["id"] = work.phases.size();
      line["phase"] = work.phases.size();
      if (o.speculations[speculation] != "default")
        line["speculation"] = o.speculations[speculation];
      work.lines += line.dump() + "\n";
    }
    work.phases.push_back({batch, speculation, counted});
  };
  const auto some = [&](std::uint32_t n) {
    std::vector<json> lines;
    for (std::uint32_t i = 0; i < n; ++i)
      lines.push_back(line_of(o, random));
    return lines;
  };
  for (std::size_t s = 0; s < o.speculations.size(); ++s)
    add(8, s, false, some(8));
  for (std::uint32_t round = 0; round < o.rounds; ++round)
    for (const std::uint32_t batch : o.batches) {
      const auto lines = some(batch); // the same ones for each speculation
      for (std::size_t k = 0; k < o.speculations.size(); ++k)
        add(batch, round % 2 ? o.speculations.size() - 1 - k : k, true, lines);
    }
  return work;
}

result<std::vector<bench_case>> read_bench(const bench_options& o, const bench_work& work,
                                           std::string_view answers) {
  std::vector<collected> all(o.batches.size() * o.speculations.size());
  std::size_t number = 0;
  for (const bench_phase& phase : work.phases) {
    double begin = 0, end = 0;
    collected here;
    for (std::uint32_t i = 0; i < phase.batch; ++i) {
      const std::size_t stop = std::min(answers.find('\n'), answers.size());
      const std::string_view text = answers.substr(0, stop);
      answers.remove_prefix(std::min(stop + 1, answers.size()));
      ++number;
      try {
        const json answer = json::parse(text);
        if (answer.contains("error"))
          return fail(ec::refused, "answer {}: {}", number, answer.at("error").dump());
        const json& times = answer.at("timings");
        const double sent = times.at("submitted_ms").get<double>();
        const auto at = times.at("token_ms").get<std::vector<double>>();
        if (at.size() != o.output_tokens)
          return fail(ec::bad_format, "answer {}: {} tokens, not {}", number, at.size(),
                      o.output_tokens);
        begin = i == 0 ? sent : std::min(begin, sent);
        end = std::max(end, at.back());
        here.tokens += at.size();
        here.first.push_back(at.front() - sent);
        add_gaps(at, here.gaps);
      } catch (const json::exception& e) {
        return fail(ec::bad_format, "answer {}: {}", number, e.what());
      }
    }
    if (!phase.counted)
      continue;
    const auto batch = static_cast<std::size_t>(
        std::find(o.batches.begin(), o.batches.end(), phase.batch) - o.batches.begin());
    collected& into = all[batch * o.speculations.size() + phase.speculation];
    into.tokens += here.tokens;
    into.rates.push_back(static_cast<double>(here.tokens) * 1e3 / std::max(end - begin, 1e-6));
    into.first.insert(into.first.end(), here.first.begin(), here.first.end());
    into.gaps.insert(into.gaps.end(), here.gaps.begin(), here.gaps.end());
  }
  std::vector<bench_case> cases;
  for (std::size_t b = 0; b < o.batches.size(); ++b)
    for (std::size_t s = 0; s < o.speculations.size(); ++s) {
      const collected& c = all[b * o.speculations.size() + s];
      cases.push_back({o.batches[b], o.speculations[s], c.tokens, median_of(c.rates), c.rates,
                       part_of(c.first, 0.5), part_of(c.first, 0.99), part_of(c.gaps, 0.5),
                       part_of(c.gaps, 0.99)});
    }
  return cases;
}

std::string bench_json(const bench_options& o, const std::vector<bench_case>& cases,
                       std::string_view facts) {
  std::string out =
      fmt::format("{{\"seed\": {}, \"rounds\": {}, \"output_tokens\": {}, \"prompt_tokens\": {}, "
                  "\"temperature\": {}{}{},\n \"cases\": [",
                  o.seed, o.rounds, o.output_tokens,
                  o.prompt_tokens == 0 ? "\"sentences\"" : std::to_string(o.prompt_tokens),
                  o.temperature, facts.empty() ? "" : ", ", facts);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const bench_case& c = cases[i];
    std::string rounds;
    for (const double r : c.rounds)
      rounds += fmt::format("{}{:.1f}", rounds.empty() ? "" : ", ", r);
    out += fmt::format(
        "{}\n  {{\"batch\": {}, \"speculation\": \"{}\", \"tokens\": {}, \"tokens_per_s\": {:.1f}, "
        "\"tokens_per_s_of_rounds\": [{}], \"first_token_ms\": {{\"p50\": {:.2f}, \"p99\": "
        "{:.2f}}}, "
        "\"inter_token_ms\": {{\"p50\": {:.3f}, \"p99\": {:.3f}}}}}",
        i == 0 ? "" : ",", c.batch, c.speculation, c.tokens, c.tokens_per_s, rounds, c.first_p50_ms,
        c.first_p99_ms, c.gap_p50_ms, c.gap_p99_ms);
  }
  out += "\n ],\n \"gain\": [";
  bool first = true;
  for (const bench_case& with : cases)
    for (const bench_case& without : cases)
      if (without.batch == with.batch && without.speculation == "off" && with.speculation != "off"
          && without.tokens_per_s > 0) {
        out += fmt::format(
            "{}\n  {{\"batch\": {}, \"speculation\": \"{}\", \"tokens_per_s\": {:.3f}}}",
            first ? "" : ",", with.batch, with.speculation,
            with.tokens_per_s / without.tokens_per_s);
        first = false;
      }
  return out + (first ? "]}\n" : "\n ]}\n");
}

} // namespace di::launch
