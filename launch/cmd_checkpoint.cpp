// SPDX-License-Identifier: Apache-2.0
#include "launch/cmd_checkpoint.hpp"

#include "engine/model/checkpoint_report.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/synthetic.hpp"
#include "launch/cmd_verify.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
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
  fmt::print("{} tensors, {} parameters, {} payload bytes ({:.3f} GiB), {} shard{}, seed {}\n",
             s.tensors, s.parameters, s.data_bytes,
             static_cast<double>(s.data_bytes) / (1ULL << 30), o.shards, o.shards == 1 ? "" : "s",
             o.seed);
}

/// Makes the directory; refuses one that cannot be written to or holds a checkpoint.
result<void> prepare(const checkpoint_make_options& o) {
  namespace fs = std::filesystem;
  std::error_code why;
  fs::create_directories(o.out, why);
  if (why)
    return fail(ec::bad_argument, "--out {}: {}", o.out, why.message());
  if (::access(o.out.c_str(), W_OK | X_OK) != 0)
    return fail(ec::bad_argument, "--out {}: {}", o.out, std::strerror(errno));
  for (const auto& entry : fs::directory_iterator{o.out, why}) {
    const auto name = entry.path().filename().string();
    if (!o.force && (name == "config.json" || name.ends_with(".safetensors")))
      return fail(ec::bad_argument, "--out {}: holds {} already; another directory, or --force",
                  o.out, name);
  }
  return {};
}

/// Shards beside the checkpoint that its index does not name, e.g. of an earlier one.
void find_stray_shards(const engine::checkpoint& c, const std::string& dir,
                       engine::problem_list& problems) {
  std::error_code ignored;
  const auto files = c.files();
  std::vector<std::string> strays;
  for (const auto& entry : std::filesystem::directory_iterator{dir, ignored}) {
    auto name = entry.path().filename().string();
    if (name.ends_with(".safetensors")
        && std::find(files.begin(), files.end(), name) == files.end())
      strays.push_back(std::move(name));
  }
  std::sort(strays.begin(), strays.end());
  for (const auto& name : strays)
    problems.add(ec::bad_format, "{}: no shard of this checkpoint: the index does not name it",
                 name);
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
  if (o.dry_run) {
    print(*plan, o);
    return exit_done;
  }
  if (const auto ready = prepare(o); !ready.ok())
    return report(ready.error(), exit_bad_arguments);
  progress_bar bar{"writing"};
  s.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar(done, total); };
  const auto made = engine::write_synthetic(s, o.out);
  if (!made.ok())
    return report(made.error(), exit_check_failed);
  print(*plan, o);
  return exit_done;
}

int run_checkpoint_check(const checkpoint_check_options& o) {
  if (o.ep < 1)
    return report({ec::bad_argument, "--ep: expected at least 1, found 0"}, exit_bad_arguments);
  if (o.context < 0)
    return report(
        {ec::bad_argument, fmt::format("--context: expected at least 0, found {}", o.context)},
        exit_bad_arguments);
  if (std::error_code ignored; !std::filesystem::is_directory(o.dir, ignored))
    return report({ec::bad_argument, fmt::format("{}: no such directory", o.dir)},
                  exit_bad_arguments);
  engine::problem_list problems;
  const auto c = engine::checkpoint::inspect(o.dir, problems);
  if (c) {
    const auto& spec = c->spec();
    if (o.context > spec.max_position_embeddings)
      return report(
          {ec::bad_argument, fmt::format("--context: expected at most the model's {}, found {}",
                                         spec.max_position_embeddings, o.context)},
          exit_bad_arguments);
    fmt::print("{}", engine::render_report(
                         *c, {o.ep, o.redundant, static_cast<std::uint64_t>(o.context)}));
    if (std::int64_t{o.ep} > spec.n_routed_experts)
      fmt::print("note: {} ranks, but only {} routed experts in a layer: ranks share experts\n",
                 o.ep, spec.n_routed_experts);
    find_stray_shards(*c, o.dir, problems);
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
  make->add_flag("--force", m->force, "write although the directory holds a checkpoint");
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
