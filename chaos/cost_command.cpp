// SPDX-License-Identifier: Apache-2.0
// Arguments and files of `dichaos sim --device cost`.
#include "chaos/cost_command.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <fstream>

namespace di::chaos {
namespace {

result<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t n = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (code != std::errc{} || end != text.data() + text.size() || n == 0 || n > 4096)
    return fail(ec::bad_argument, "--ranks {}: numbers from 1 to 4096", text);
  return n;
}

result<std::vector<std::uint32_t>> sizes_of(std::string_view text) {
  std::vector<std::uint32_t> sizes;
  if (const auto dots = text.find(".."); dots != text.npos) {
    DI_TRY(const auto low, number_of(text.substr(0, dots)));
    DI_TRY(const auto high, number_of(text.substr(dots + 2)));
    for (std::uint32_t n = low; n <= high; n *= 2)
      sizes.push_back(n);
    if (sizes.empty())
      return fail(ec::bad_argument, "--ranks {}: nothing from {} to {}", text, low, high);
    return sizes;
  }
  while (!text.empty()) {
    const auto comma = text.find(',');
    DI_TRY(const auto n, number_of(text.substr(0, comma)));
    sizes.push_back(n);
    text = comma == text.npos ? std::string_view{} : text.substr(comma + 1);
  }
  if (sizes.empty())
    return fail(ec::bad_argument, "--ranks: at least one number");
  return sizes;
}

result<void> write_file(const std::string& path, const std::string& text) {
  std::ofstream file{path, std::ios::binary};
  file << text;
  file.close();
  if (!file)
    return fail(ec::io_error, "{}: cannot be written", path);
  return {};
}

void tell(const cost_table& table, const std::vector<cost_comparison>& all) {
  fmt::print(stderr,
             "mail {:.1f} us of a processor, {:.1f} us more for waking a process, "
             "{:.1f} us on its way\n",
             table.mail_us, table.wake_us, table.latency_us);
  fmt::print(stderr, "{:>5} {:>9} {:>6} {:>14} {:>14} {:>7} {:>12} {:>12} {:>7}\n", "ranks",
             "sequences", "prompt", "real tokens/s", "simulated", "error", "real TTFT ms",
             "simulated", "error");
  for (const cost_comparison& c : all)
    fmt::print(
        stderr,
        "{:>5} {:>9} {:>6} {:>14.1f} {:>14.1f} {:>+6.1f}% {:>12.1f} {:>12.1f} {:>+6.1f}%{}\n",
        c.real.load.ranks, c.real.load.sequences_per_rank, c.real.load.prompt_tokens,
        c.real.tokens_per_s, c.simulated.tokens_per_s, 100 * c.rate_error, c.real.first_token_ms,
        c.simulated.first_token_ms, 100 * c.first_token_error, c.real.held_out ? " held out" : "");
}

result<void> run(const cost_command& command) {
  DI_TRY(const auto sizes, sizes_of(command.ranks));
  DI_TRY(auto table, read_cost_table(command.table));
  if (command.calibrate) {
    DI_TRY(table, calibrate(std::move(table)));
  }
  DI_TRY(const auto compared, compare(table));
  tell(table, compared);
  if (command.latency_us >= 0)
    table.latency_us = command.latency_us;
  std::string csv = csv_head();
  std::vector<cost_options> options;
  std::vector<cost_outcome> outcomes;
  for (const std::uint32_t ranks : sizes) {
    cost_options o = command.options;
    o.load.ranks = ranks;
    DI_TRY(const auto outcome, simulate_load(table, o));
    csv += csv_row(o, outcome);
    fmt::print(
        stderr,
        "{} ranks: {:.0f} tokens/s, {:.1f} per rank, {:.1f} per user, first token {:.1f} ms, "
        "step {:.2f} ms, moe_lb {:.2f}, control {:.0f} % busy\n",
        ranks, outcome.tokens_per_s, outcome.rank_tokens_per_s, outcome.user_tokens_per_s,
        outcome.first_token_ms, outcome.step_ms, outcome.moe_lb, 100 * outcome.control_share);
    options.push_back(o);
    outcomes.push_back(outcome);
  }
  if (command.csv.empty())
    std::fputs(csv.c_str(), stdout);
  else
    DI_TRY_VOID(write_file(command.csv, csv));
  if (!command.plot.empty())
    DI_TRY_VOID(write_file(command.plot, plot_svg(options, outcomes)));
  return {};
}

} // namespace

int run_cost_command(const cost_command& command) {
  const auto done = run(command);
  if (done)
    return 0;
  fmt::print(stderr, "dichaos: {}\n", done.error().what);
  return done.error().code == ec::unavailable || done.error().code == ec::io_error ? 3 : 2;
}

} // namespace di::chaos
