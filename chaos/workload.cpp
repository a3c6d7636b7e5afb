// SPDX-License-Identifier: Apache-2.0
#include "chaos/workload.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>

namespace di::chaos {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 8> sentences = {
    "Tell me a story about a boat",
    "Tell me about a fox named Ruby",
    "What is 12 plus 47?",
    "Count from 3 to 11",
    "Sort these numbers: 47 12 88 3",
    "Which month comes after May?",
    "Remember the word silver. Why red",
    "Write a short story about a king",
};

class maker {
public:
  maker(const workload& w, const model_facts& model) : w_{w}, model_{model}, random_{w.seed} {}

  json line(std::uint32_t number) {
    json out;
    out["id"] = number;
    out["phase"] = number < w_.requests ? 0 : 1;
    if (model_.has_words && chance(0.4)) {
      out["prompt"] = sentences[random_() % sentences.size()];
    } else {
      json& ids = out["prompt_ids"] = json::array();
      for (std::uint32_t n = in(w_.prompt_tokens); n > 0; --n)
        ids.push_back(3 + random_() % (model_.vocab - 3));
    }
    out["max_tokens"] = in(w_.output_tokens);
    out["ignore_eos"] = true;
    out["token_times"] = true;
    out["seed"] = random_() >> 2;
    out["n"] = in(w_.choices);
    out["temperature"] = 0;
    if (w_.mixed)
      sampling(out);
    if (w_.logprobs && chance(0.3))
      out["logprobs"] = random_() % 4;
    if (w_.stop && chance(0.2)) {
      if (model_.has_words)
        out["stop"] = json::array({"zebra stripes", "xyz"});
      else
        out["stop_token_ids"] = json::array({random_() % model_.vocab});
    }
    return out;
  }

private:
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  std::uint32_t in(range r) {
    return r.low + static_cast<std::uint32_t>(random_() % (r.high - r.low + 1ULL));
  }
  void sampling(json& out) {
    constexpr std::array<double, 6> heat = {0, 0, 0.3, 0.7, 1.0, 1.5};
    out["temperature"] = heat[random_() % heat.size()];
    switch (random_() % 6) {
    case 0:
      out["top_p"] = 0.9;
      break;
    case 1:
      out["top_k"] = 20;
      break;
    case 2:
      out["min_p"] = 0.05;
      break;
    case 3:
      out["frequency_penalty"] = 0.5;
      break;
    case 4:
      out["presence_penalty"] = 0.8;
      out["repetition_penalty"] = 1.1;
      break;
    default:
      break;
    }
  }

  const workload& w_;
  const model_facts& model_;
  std::mt19937_64 random_;
};

} // namespace

result<model_facts> read_model_facts(const std::string& folder, const std::string& tokenizer) {
  const std::string path = folder + "/config.json";
  std::ifstream file{path, std::ios::binary};
  if (!file)
    return fail(ec::io_error, "{}: cannot be read", path);
  const json config = json::parse(file, nullptr, false);
  if (!config.is_object())
    return fail(ec::bad_format, "{}: no JSON object", path);
  model_facts facts;
  const json& text = config.contains("text_config") ? config["text_config"] : config;
  if (text.is_object() && text.contains("vocab_size") && text["vocab_size"].is_number_unsigned())
    facts.vocab = text["vocab_size"].get<std::uint32_t>();
  if (facts.vocab < 4)
    return fail(ec::bad_format, "{}: no vocab_size", path);
  std::error_code ignored;
  facts.has_words =
      !tokenizer.empty() || std::filesystem::exists(folder + "/tokenizer.json", ignored);
  return facts;
}

std::string make_workload(const workload& w, const model_facts& model) {
  maker m{w, model};
  std::string out;
  for (std::uint32_t i = 0; i < w.requests + w.after; ++i)
    out += m.line(i).dump() + "\n";
  return out;
}

} // namespace di::chaos
