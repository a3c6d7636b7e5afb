// SPDX-License-Identifier: Apache-2.0
#include "chaos/run.hpp"

#include "chaos/file_text.hpp"
#include "chaos/triggers.hpp"
#include "launch/process.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace di::chaos {
namespace {

namespace fs = std::filesystem;
using clock = launch::poll_loop::clock;
using std::chrono::milliseconds;

constexpr milliseconds look_every{500};  ///< at descriptors
constexpr milliseconds settle_time{600}; ///< after the end, until what is left is a leak

void write_file(const std::string& path, std::string_view text) {
  std::ofstream file{path, std::ios::binary};
  file << text;
}

/// Names in /dev/shm that could be ours.
std::vector<std::string> shared_memory() {
  std::vector<std::string> out;
  std::error_code ignored;
  for (fs::directory_iterator at{"/dev/shm", ignored}, end; at != end; at.increment(ignored))
    if (at->path().filename().string().starts_with("di"))
      out.push_back(at->path().string());
  return out;
}

std::string name_of(const process_entry& p) {
  switch (p.kind) {
  case process_kind::rank:
    return fmt::format("rank {}", p.index);
  case process_kind::node:
    return fmt::format("node {}", p.index);
  case process_kind::control:
    return "control";
  case process_kind::launcher:
    return "launcher";
  case process_kind::other:
    break;
  }
  return fmt::format("pid {}", p.pid);
}

class one_run {
public:
  one_run(const plan& p, const run_options& o)
      : plan_{p},
        options_{o},
        folder_{o.home + "/f"},
        injector_{loop_, {folder_, o.dilaunch, o.nodes, o.ranks, p.seed}},
        triggers_{p, loop_, [this](std::size_t number, bool in_step) { strike(number, in_step); }} {
  }

  result<run_record> run();

private:
  result<void> start();
  void strike(std::size_t number, bool in_step);
  void take_line(const std::string& line);
  void look();
  samples sample() const;
  void end_of_child();
  void look_for_leaks();

  const plan& plan_;
  const run_options& options_;
  std::string folder_;
  launch::poll_loop loop_;
  injector injector_;
  triggers triggers_;
  std::optional<launch::child_process> child_;
  launch::line_reader lines_;
  std::vector<std::string> shared_before_;
  run_record record_;
  bool struck_ = false, ended_ = false;
};

result<void> one_run::start() {
  shared_before_ = shared_memory();
  std::error_code wrong;
  for (const std::string& folder : {folder_, options_.home + "/r"})
    if (fs::create_directories(folder, wrong); wrong)
      return fail(ec::io_error, "{}: {}", folder, wrong.message());
  fs::permissions(options_.home + "/r", fs::perms::owner_all, wrong);
  write_file(options_.home + "/prompts.jsonl", options_.prompts);
  const std::int64_t no_offset = 0;
  write_file(folder_ + "/clock",
             {reinterpret_cast<const char*>(&no_offset), sizeof no_offset}); // NOLINT: raw number

  ::setenv("XDG_RUNTIME_DIR", (options_.home + "/r").c_str(), 1);
  ::setenv("DI_FAULTS", folder_.c_str(), 1);
  if (!options_.clock_shim.empty())
    ::setenv("LD_PRELOAD", options_.clock_shim.c_str(), 1);
  launch::process_options c;
  c.argv = {options_.dilaunch, "run",
            "--topology",      options_.topology,
            "--prompts",       options_.home + "/prompts.jsonl",
            "--output",        options_.home + "/answers.jsonl",
            "--log-dir",       options_.home + "/log"};
  if (plan_.work.window > 0)
    c.argv.insert(c.argv.end(), {"--window", std::to_string(plan_.work.window)});
  for (const std::string& s : plan_.sets)
    c.argv.insert(c.argv.end(), {"--set", s});
  auto child = launch::child_process::start(c);
  ::unsetenv("DI_FAULTS"); // or hogs would be taken for processes of the run
  ::unsetenv("LD_PRELOAD");
  DI_TRY(child_, std::move(child));
  return {};
}

void one_run::take_line(const std::string& line) {
  if (options_.verbose)
    std::fprintf(stderr, "%s\n", line.c_str());
  auto e = parse_log_line(line);
  if (!e) {
    if (!line.empty())
      record_.last_line = line;
    return;
  }
  if (options_.disturbed)
    triggers_.see(*e);
  record_.events.push_back(std::move(*e));
}

samples one_run::sample() const {
  samples now;
  for (const process_entry& p : find_processes(folder_))
    now[name_of(p)] = {p.pid, open_descriptors(p.pid)};
  return now;
}

void one_run::strike(std::size_t number, bool in_step) {
  if (!std::exchange(struck_, true))
    record_.before = sample();
  injector_.start(number, plan_.faults[number], in_step);
  if (options_.verbose)
    std::fprintf(stderr, "[dichaos] %s\n", injector_.done().back().what.c_str());
}

void one_run::look() {
  if (ended_)
    return;
  samples now = sample();
  if (now.size() > options_.ranks / 2) // not while it ends
    record_.after = std::move(now);
  loop_.at(clock::now() + look_every, [this] { look(); });
}

void one_run::end_of_child() {
  const auto state = child_->poll();
  if (!state)
    return;
  loop_.forget(child_->pidfd());
  ended_ = true;
  record_.ended_us = monotonic_us();
  record_.exit_code = state->signal != 0 ? 128 + state->signal : state->code;
  (void)lines_.read(child_->err.get(), [this](const std::string& l) { take_line(l); });
  triggers_.stop();
  injector_.heal();
  loop_.at(clock::now() + settle_time, [this] {
    look_for_leaks();
    loop_.stop();
  });
}

void one_run::look_for_leaks() {
  for (const process_entry& p : find_processes(folder_)) {
    record_.leaks.push_back(fmt::format("process {} ({}, state {})", p.pid, name_of(p), p.state));
    ::kill(p.pid, SIGKILL);
  }
  std::error_code ignored;
  for (fs::directory_iterator at{options_.home + "/r", ignored}, end; at != end;
       at.increment(ignored))
    record_.leaks.push_back(at->path().filename().string() + " in the runtime directory");
  for (const std::string& name : shared_memory())
    if (std::find(shared_before_.begin(), shared_before_.end(), name) == shared_before_.end())
      record_.leaks.push_back(name);
}

result<run_record> one_run::run() {
  DI_TRY_VOID(start());
  record_.started_us = monotonic_us();
  loop_.watch(child_->err.get(), [this] {
    if (!lines_.read(child_->err.get(), [this](const std::string& l) { take_line(l); }))
      loop_.forget(child_->err.get());
  });
  loop_.watch(child_->pidfd(), [this] { end_of_child(); });
  loop_.at(clock::now() + look_every, [this] { look(); });
  loop_.at(clock::now() + plan_.limit, [this] {
    if (ended_)
      return;
    record_.timed_out = true;
    triggers_.stop();
    injector_.heal();
    child_->signal(SIGTERM);                                                         // drains
    loop_.at(clock::now() + milliseconds{100}, [this] { child_->signal(SIGTERM); }); // aborts
    loop_.at(clock::now() + milliseconds{5'000}, [this] { child_->signal(SIGKILL); });
  });
  loop_.run();
  record_.faults = injector_.done();
  record_.faults_missing = options_.disturbed ? triggers_.waiting() : 0;
  record_.answers = file_text(options_.home + "/answers.jsonl");
  return std::move(record_);
}

} // namespace

result<run_record> run_once(const plan& p, const run_options& o) {
  one_run run{p, o};
  return run.run();
}

} // namespace di::chaos
