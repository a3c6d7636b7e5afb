// SPDX-License-Identifier: Apache-2.0
#include "chaos/trial.hpp"

#include "chaos/file_text.hpp"
#include "chaos/pauses.hpp"
#include "chaos/workload.hpp"
#include "engine/model/sha256.hpp"
#include "launch/topology.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/utsname.h>
#include <thread>

namespace di::chaos {
namespace {

namespace fs = std::filesystem;

/// A short folder of one trial, gone with it unless kept.
struct scratch {
  std::string path;
  scratch() = default;
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    std::error_code ignored;
    if (!path.empty())
      fs::remove_all(path, ignored);
  }
  result<void> make() {
    std::string name = "/tmp/dch-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      return fail(ec::io_error, "{}: {}", name, std::strerror(errno));
    path = std::move(name);
    return {};
  }
};

result<std::string> program_beside(std::string_view name) {
  std::error_code wrong;
  const fs::path self = fs::read_symlink("/proc/self/exe", wrong);
  for (const fs::path& folder : {self.parent_path(), self.parent_path().parent_path() / "launch"})
    if (fs::exists(folder / name, wrong))
      return (folder / name).string();
  return fail(ec::bad_argument, "no {} beside {}; name it with --dilaunch", name, self.string());
}

/// The hosts' ranks in their order, as the launcher numbers them.
node_ranks ranks_by_node(const launch::topology& t) {
  node_ranks out;
  std::uint32_t next = 0;
  for (const launch::node_entry& n : t.nodes) {
    const auto hosts = launch::expand_hosts(n.hosts);
    for (std::size_t h = 0; h < (hosts.ok() ? hosts->size() : 1); ++h) {
      auto& ranks = out.emplace_back();
      for (std::uint32_t r = 0; r < n.ranks; ++r)
        ranks.push_back(next++);
    }
  }
  return out;
}

result<void> check_targets(const plan& p, std::uint32_t ranks, std::size_t nodes) {
  for (const fault& f : p.faults)
    for (const fault_target* t : {&f.target, &f.peer}) {
      if (t->kind == target_kind::rank && t->index >= ranks)
        return fail(ec::bad_config, "{}:{}: rank {}, but the topology has {}", p.file, f.where.line,
                    t->index, ranks);
      if (t->kind == target_kind::node && t->index >= nodes)
        return fail(ec::bad_config, "{}:{}: node {}, but the topology has {}", p.file, f.where.line,
                    t->index, nodes);
    }
  return {};
}

bool jumps(const plan& p) {
  for (const fault& f : p.faults)
    if (f.kind == fault_kind::clock_jump)
      return true;
  return false;
}

std::string machine_name() {
  std::string cpu = "unknown processor";
  std::istringstream info{file_text("/proc/cpuinfo")};
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  utsname kernel{};
  (void)::uname(&kernel);
  return fmt::format("{}, {} cores, {} {}", cpu, std::thread::hardware_concurrency(),
                     kernel.sysname, kernel.release);
}

class trial {
public:
  trial(plan p, const trial_options& o) : plan_{std::move(p)}, options_{o} {}
  result<trial_outcome> run();

private:
  result<void> prepare();
  result<void> take_reference();
  std::string cache_file() const;
  void keep(const std::string& name) const;

  plan plan_;
  const trial_options& options_;
  run_options run_;
  scratch home_;
  trial_outcome out_;
  std::string model_, reference_;
};

result<void> trial::prepare() {
  plan_.sets.insert(plan_.sets.end(), options_.sets.begin(), options_.sets.end());
  run_.topology = fs::absolute(options_.topology).lexically_normal().string();
  DI_TRY(const auto t, launch::load_topology(run_.topology, plan_.sets));
  run_.nodes = ranks_by_node(t);
  run_.ranks = t.ep;
  DI_TRY_VOID(check_targets(plan_, t.ep, run_.nodes.size()));
  DI_TRY(const auto facts, read_model_facts(t.model_path, t.tokenizer_path));
  run_.prompts = make_workload(plan_.work, facts);
  model_ = t.model_path;
  run_.dilaunch = options_.dilaunch;
  if (run_.dilaunch.empty()) {
    DI_TRY(run_.dilaunch, program_beside("dilaunch"));
  }
  if (jumps(plan_)) {
    DI_TRY(run_.clock_shim, program_beside("libdichaos_clock.so"));
  }
  run_.verbose = options_.verbose;
  const char* commit = std::getenv("DI_COMMIT");
  out_.facts = {plan_.name, t.name,      commit == nullptr ? "" : commit, machine_name(), t.ep,
                plan_.seed, plan_.covers};
  return home_.make();
}

/// The answers depend on the prompts, the model and the program alone: not on the group.
std::string trial::cache_file() const {
  if (options_.cache.empty())
    return {};
  std::error_code wrong;
  const auto stamp = [&](const fs::path& p) {
    return fmt::format("{} {}", fs::file_size(p, wrong),
                       fs::last_write_time(p, wrong).time_since_epoch().count());
  };
  std::string key = run_.prompts + model_ + stamp(run_.dilaunch) + stamp(model_ + "/config.json");
  for (const std::string& s : plan_.sets)
    key += s;
  engine::sha256 digest;
  digest.update(key);
  return fmt::format("{}/{}.jsonl", options_.cache, digest.hex().substr(0, 32));
}

void trial::keep(const std::string& name) const {
  if (options_.keep.empty())
    return;
  std::error_code wrong;
  const fs::path to = fs::path{options_.keep} / plan_.name / name;
  fs::remove_all(to, wrong);
  fs::create_directories(to.parent_path(), wrong);
  fs::copy(run_.home, to, fs::copy_options::recursive, wrong);
}

result<void> trial::take_reference() {
  const std::string cached = cache_file();
  if (!cached.empty())
    reference_ = file_text(cached);
  if (!reference_.empty())
    return {};
  run_.home = home_.path + "/u";
  run_.disturbed = false;
  DI_TRY(const auto record, run_once(plan_, run_));
  keep("undisturbed");
  if (record.exit_code != 0 || record.timed_out)
    return fail(ec::gave_up, "the undisturbed run ended with exit code {}{}: {}", record.exit_code,
                record.timed_out ? " at the plan's limit" : "", record.last_line);
  reference_ = record.answers;
  if (!cached.empty()) {
    std::error_code wrong;
    fs::create_directories(options_.cache, wrong);
    std::ofstream file{cached, std::ios::binary};
    file << reference_;
  }
  DI_TRY(const auto answers, read_answers(record.answers));
  out_.judged.reference_tokens_per_s = token_times{answers, record.events}.tokens_per_s();
  return {};
}

result<trial_outcome> trial::run() {
  DI_TRY_VOID(prepare());
  if (plan_.expect.identical)
    DI_TRY_VOID(take_reference());
  std::vector<answer> reference;
  DI_TRY(reference, read_answers(reference_));
  const double undisturbed = out_.judged.reference_tokens_per_s;
  run_.home = home_.path + "/d";
  run_.disturbed = true;
  DI_TRY(const auto record, run_once(plan_, run_));
  keep("disturbed");
  out_.judged = judge(plan_, reference, record, run_.ranks);
  out_.judged.reference_tokens_per_s = undisturbed;
  return std::move(out_);
}

} // namespace

result<trial_outcome> run_trial(plan p, const trial_options& o) {
  trial t{std::move(p), o};
  return t.run();
}

} // namespace di::chaos
