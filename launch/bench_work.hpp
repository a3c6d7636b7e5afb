// SPDX-License-Identifier: Apache-2.0
// The workload of `dilaunch bench` and what its answers say. Pure.
//
// Rounds of phases: in every round each batch size runs once with each speculation, next to each
// other and in turning order, so that a machine whose speed drifts favours none. A phase is `batch`
// requests that begin together; the next one begins when all have ended.
#pragma once

#include "messaging/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

struct bench_options {
  std::uint64_t seed = 1;
  std::vector<std::uint32_t> batches = {1, 8, 32};
  std::vector<std::string> speculations = {"off"}; ///< as a prompt line says it
  std::uint32_t rounds = 3;
  std::uint32_t output_tokens = 64; ///< of each request; end tokens do not end it
  std::uint32_t prompt_tokens = 0;  ///< of random ids; 0: sentences, for a model with a tokenizer
  std::uint32_t vocab = 0;          ///< [tokens], for random ids
  double temperature = 0;
};

/// One phase of the workload. The first ones, one per speculation, warm up and are not counted.
struct bench_phase {
  std::uint32_t batch = 0;
  std::size_t speculation = 0; ///< index
  bool counted = true;
};

struct bench_work {
  std::vector<bench_phase> phases;
  std::string lines; ///< prompts for `dilaunch run`; phase p holds phases[p].batch lines
};

/// A function of the options alone.
bench_work make_bench_work(const bench_options& options);

/// Measured values of one (batch, speculation) over all rounds.
struct bench_case {
  std::uint32_t batch = 0;
  std::string speculation;
  std::uint64_t tokens = 0;                  ///< in all rounds
  double tokens_per_s = 0;                   ///< median of the rounds
  std::vector<double> rounds;                ///< [tokens/s] of each
  double first_p50_ms = 0, first_p99_ms = 0; ///< [ms] request sent until its first token
  double gap_p50_ms = 0, gap_p99_ms = 0; ///< [ms] per token; tokens that come together share a gap
};

/// Reads the answers. @errors bad_format (line, what), refused (an answer is an error)
result<std::vector<bench_case>> read_bench(const bench_options& options, const bench_work& work,
                                           std::string_view answers);

/// One JSON object. @param facts  further members, as `"name": value` pairs joined by commas
std::string bench_json(const bench_options& options, const std::vector<bench_case>& cases,
                       std::string_view facts);

} // namespace di::launch
