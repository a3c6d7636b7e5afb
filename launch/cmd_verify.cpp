// SPDX-License-Identifier: Apache-2.0
// The command around engine/model/verify.hpp.
#include "launch/cmd_verify.hpp"

#include "engine/model/verify.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <memory>

namespace di::launch {

namespace {

constexpr int exit_done = 0;
constexpr int exit_bad_arguments = 2;
constexpr int exit_check_failed = 4;

int refuse(const error& e) {
  std::fprintf(stderr, "checkpoint verify: %s\n", e.render().c_str());
  return exit_bad_arguments;
}

} // namespace

int run_checkpoint_verify(const checkpoint_verify_options& options) {
  if (options.threads < 1 || options.threads > 1024)
    return refuse({ec::bad_argument,
                   fmt::format("--threads: expected 1 to 1024, found {}", options.threads)});
  const auto model = engine::loaded_model::load(options.dir);
  if (!model.ok())
    return refuse(model.error());
  const auto stream = kernels::make_cpu_stream(options.threads);
  const kernels::op_table& ops = kernels::best_cpu_ops();
  const auto report = engine::verify_golden({**model, ops, *stream}, options.golden);
  if (!report.ok())
    return refuse(report.error());
  for (const std::string& line : report->summaries)
    std::printf("%s\n", line.c_str());
  if (report->tensors > 0)
    std::printf("layers: %zu tensors, at most %.0f %% of a tolerance used (%s)\n", report->tensors,
                100 * report->worst_share, report->worst_tensor.c_str());
  for (const std::string& line : report->failures)
    std::printf("FAILED %s\n", line.c_str());
  if (report->failures_total > report->failures.size())
    std::printf("FAILED and %zu more\n", report->failures_total - report->failures.size());
  std::printf("%s: %s (kernels %s, %u threads)\n", options.dir.c_str(),
              report->ok() ? "agrees with the golden vectors" : "does not agree", ops.name,
              options.threads);
  return report->ok() ? exit_done : exit_check_failed;
}

void add_verify_command(CLI::App& group, int& exit_code) {
  auto options = std::make_shared<checkpoint_verify_options>();
  CLI::App* command =
      group.add_subcommand("verify", "run a checkpoint and compare with golden vectors");
  command->add_option("dir", options->dir, "checkpoint directory")->required();
  command->add_option("--golden", options->golden, "folder of golden vectors")->required();
  command->add_option("--threads", options->threads, "compute threads (default 1)");
  command->callback([options, &exit_code] { exit_code = run_checkpoint_verify(*options); });
}

} // namespace di::launch
