// SPDX-License-Identifier: Apache-2.0
#include "launch/cmd_checkpoint.hpp"

#include "engine/model/checkpoint_report.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/synthetic.hpp"
#include "launch/cmd_verify.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <memory>
#include <thread>
#include <unistd.h>

namespace di::launch {
namespace {

constexpr int exit_done = 0;
constexpr int exit_bad_arguments = 2;
constexpr int exit_check_failed = 4;

int report(const error& e, int code) {
  std::fprintf(stderr, "%s\n", e.render().c_str());
  return code;
}

/// A bar on stderr that redraws when a whole per cent is reached; silent unless on a terminal.
class progress_bar {
public:
  explicit progress_bar(const char* verb) : verb_{verb}, shown_{::isatty(STDERR_FILENO) != 0} {}
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  ~progress_bar() {
    if (percent_ >= 0)
      std::fprintf(stderr, "\r\033[K");
  }

  void operator()(std::uint64_t done, std::uint64_t total) {
    const int percent = total == 0 ? 100 : static_cast<int>(done * 100 / total);
    if (!shown_ || percent == percent_)
      return;
    percent_ = percent;
    const std::string full(static_cast<std::size_t>(percent / 2), '#');
    std::fprintf(stderr, "\r%s [%-50s] %3d %%", verb_, full.c_str(), percent);
  }

private:
  const char* verb_;
  bool shown_;
  int percent_ = -1;
};

result<std::string> config_text(const checkpoint_make_options& o) {
  if (o.preset.empty() == o.config_file.empty())
    return fail(ec::bad_argument, "checkpoint make: expected either --preset or --config");
  if (!o.config_file.empty()) {
    DI_TRY(const auto file, engine::mapped_file::open(o.config_file));
    return std::string{file.text()};
  }
  if (const auto text = engine::preset_config(o.preset))
    return std::string{*text};
  std::string names;
  for (const auto n : engine::preset_names())
    names += (names.empty() ? "" : ", ") + std::string{n};
  return fail(ec::bad_argument, "--preset: expected one of {}, found \"{}\"", names, o.preset);
}

void print(const engine::synthetic_summary& s, const checkpoint_make_options& o) {
  fmt::print("{} tensors, {} parameters, {} payload bytes ({:.3f} GiB), {} shard(s), seed {}\n",
             s.tensors, s.parameters, s.data_bytes,
             static_cast<double>(s.data_bytes) / (1ULL << 30), o.shards, o.seed);
}

} // namespace

int run_checkpoint_make(const checkpoint_make_options& o) {
  auto text = config_text(o);
  if (!text.ok())
    return report(text.error(), exit_bad_arguments);
  if (o.out.empty() && !o.dry_run)
    return report({ec::bad_argument, "checkpoint make: expected --out DIR or --dry-run"},
                  exit_bad_arguments);
  engine::synthetic_options s;
  s.config_text = std::move(*text);
  s.seed = o.seed;
  s.shards = o.shards;
  s.threads = o.threads > 0 ? o.threads : std::max(1U, std::thread::hardware_concurrency());
  const auto plan = engine::plan_synthetic(s);
  if (!plan.ok())
    return report(plan.error(), exit_bad_arguments);
  if (o.list)
    fmt::print("{}", engine::render_tensor_list(engine::parse_model_spec(s.config_text).value()));
  print(*plan, o);
  if (o.dry_run)
    return exit_done;
  progress_bar bar{"writing"};
  s.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar(done, total); };
  const auto made = engine::write_synthetic(s, o.out);
  if (!made.ok())
    return report(made.error(), exit_check_failed);
  return exit_done;
}

int run_checkpoint_check(const checkpoint_check_options& o) {
  if (o.ep < 1)
    return report({ec::bad_argument, "--ep: expected at least 1, found 0"}, exit_bad_arguments);
  engine::problem_list problems;
  const auto c = engine::checkpoint::inspect(o.dir, problems);
  if (c) {
    fmt::print("{}", engine::render_report(*c, {o.ep, o.redundant, o.context}));
    if (o.values) {
      progress_bar bar{"reading"};
      engine::check_values(*c, problems,
                           [&bar](std::uint64_t done, std::uint64_t total) { bar(done, total); });
    }
  }
  if (problems.empty()) {
    fmt::print("no defects\n");
    return exit_done;
  }
  std::fflush(stdout);
  for (const auto& p : problems.kept())
    std::fprintf(stderr, "%s\n", p.render().c_str());
  std::fprintf(stderr, "%zu defect%s\n", problems.total(), problems.total() == 1 ? "" : "s");
  return exit_check_failed;
}

CLI::App& add_checkpoint_commands(CLI::App& app, int& exit_code) {
  auto* group = app.add_subcommand("checkpoint", "make, check or verify a checkpoint directory");
  group->require_subcommand(1);

  const auto m = std::make_shared<checkpoint_make_options>();
  auto* make =
      group->add_subcommand("make", "write a synthetic checkpoint, the same bytes anywhere");
  make->add_option("--preset", m->preset, "tiny, tiny-vl, small, bench or real");
  make->add_option("--config", m->config_file, "a config.json instead of a preset");
  make->add_option("--out", m->out, "directory to write");
  make->add_option("--seed", m->seed, "of all values")->capture_default_str();
  make->add_option("--shards", m->shards, "number of files")->capture_default_str();
  make->add_option("--threads", m->threads, "0: one per core")->capture_default_str();
  make->add_flag("--dry-run", m->dry_run, "print totals, write nothing");
  make->add_flag("--list", m->list, "print every tensor");
  make->callback([m, &exit_code] { exit_code = run_checkpoint_make(*m); });

  const auto c = std::make_shared<checkpoint_check_options>();
  auto* check = group->add_subcommand("check", "validate a checkpoint; sizes and memory per rank");
  check->add_option("dir", c->dir, "checkpoint directory")->required();
  check->add_option("--ep", c->ep, "ranks for the memory lines")->capture_default_str();
  check->add_option("--redundant-experts", c->redundant, "copies per layer")->capture_default_str();
  check->add_option("--context", c->context, "tokens for the KV line; 0: the model's maximum");
  check->add_flag("--values", c->values, "read all data and look for NaN");
  check->callback([c, &exit_code] { exit_code = run_checkpoint_check(*c); });
  add_verify_command(*group, exit_code);
  return *group;
}

} // namespace di::launch
