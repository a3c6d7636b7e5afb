// SPDX-License-Identifier: Apache-2.0
// Folder and identity of a run's journal.
#include "launch/run_journal.hpp"

#include "actors/journal_file.hpp"
#include "engine/model/sha256.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <filesystem>
#include <sstream>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t tokenizer_bytes_max = std::size_t{256} << 20;

std::string mark_of(std::string_view text) {
  engine::sha256 digest;
  digest.update(text);
  return fmt::format("{} bytes, sha256 {}", text.size(), digest.hex().substr(0, 32));
}

/// Topology keys that answers depend on, and nothing else: ranks, threads, speculation and the like
/// never change a token.
result<std::string> settings_of(const topology& t) {
  std::string all =
      fmt::format("roles.decode.prefill={}\nroles.decode.prefill_keep={}\nkv.prefix={}\n",
                  t.prefill == proto::prefill_mode::compact ? "compact" : "full", t.prefill_keep,
                  t.prefix == proto::prefix_mode::bounded ? "bounded" : "exact");
  const std::string words =
      t.tokenizer_path.empty() ? t.model_path + "/tokenizer.json" : t.tokenizer_path;
  const unique_fd in{::open(words.c_str(), O_RDONLY | O_CLOEXEC)};
  if (in) { // else the prompts are ids, or the run says what is missing
    DI_TRY(const auto text, read_all(in.get(), tokenizer_bytes_max));
    all += fmt::format("model.tokenizer={}\n", mark_of(text));
  }
  return all;
}

/// The first line of `a` that `b` lacks.
std::string first_other(const std::string& a, const std::string& b) {
  std::istringstream lines{a};
  for (std::string line; std::getline(lines, line);)
    if (("\n" + b).find("\n" + line + "\n") == std::string::npos)
      return line;
  return "none";
}

std::string absolute(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

} // namespace

std::string differences(const engine::run_identity& found, const engine::run_identity& wanted) {
  if (found.prompts != wanted.prompts)
    return fmt::format("was begun with another prompts file ({}; this one has {})", found.prompts,
                       wanted.prompts);
  if (found.contract != wanted.contract)
    return fmt::format("was begun with another checkpoint ({}; this one is {})", found.contract,
                       wanted.contract);
  if (found.settings != wanted.settings)
    return fmt::format("was begun with other topology keys that change answers ({}; now {})",
                       first_other(found.settings, wanted.settings),
                       first_other(wanted.settings, found.settings));
  return {};
}

result<journal_boot> serving_journal_of(const std::string& folder, const topology& t,
                                        const std::string& contract) {
  const std::string named = folder.empty() ? t.journal_path : folder;
  journal_boot b;
  b.contract = contract;
  b.prompts = "served over HTTP";
  DI_TRY(b.settings, settings_of(t));
  if (named.empty())
    return b;
  b.keep = true;
  b.folder = absolute(named);
  DI_TRY(const auto found, actors::find_journal(b.folder));
  b.resume = found.has_value();
  if (!found)
    return b;
  const engine::run_identity wanted{b.contract, b.prompts, b.settings, found->image.run.batch_seed};
  if (const auto other = differences(found->image.run, wanted); !other.empty())
    return fail(ec::bad_argument, "--journal {}: what it holds {}", named, other);
  return b;
}

result<journal_boot> journal_of(const run_arguments& a, const topology& t,
                                const std::string& contract, run_files& files) {
  journal_boot b;
  b.resume = !a.resume.empty();
  if (b.resume && !a.journal.empty())
    return fail(ec::bad_argument, "--resume goes on with the journal that it names; --journal is "
                                  "for a new run");
  const std::string named = b.resume ? a.resume : !a.journal.empty() ? a.journal : t.journal_path;
  b.contract = contract;
  DI_TRY(const auto prompts, files.read_prompts());
  b.prompts = mark_of(prompts);
  DI_TRY(b.settings, settings_of(t));
  if (named.empty())
    return b;
  b.keep = true;
  std::error_code ignored;
  b.folder = absolute(named);
  if (fs::is_regular_file(b.folder, ignored)) // one of its files
    b.folder = fs::path{b.folder}.parent_path().string();
  files.hold_abandoned(fs::path{b.folder}.parent_path().string());
  DI_TRY(const auto found, actors::find_journal(b.folder));
  if (!found && b.resume)
    return fail(ec::bad_argument, "--resume {}: there is no journal", a.resume);
  if (found && !b.resume)
    return fail(ec::bad_argument,
                "{}: holds the journal of an earlier run; --resume goes on with that one", named);
  if (!found)
    return b;
  const engine::run_identity wanted{b.contract, b.prompts, b.settings, found->image.run.batch_seed};
  if (const auto other = differences(found->image.run, wanted); !other.empty())
    return fail(ec::bad_argument, "--resume {}: the interrupted run {}", a.resume, other);
  return b;
}

} // namespace di::launch
