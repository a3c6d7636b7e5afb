// SPDX-License-Identifier: Apache-2.0
// Files that a topology names: checkpoint, tokenizer, plugins.
#include "launch/preflight.hpp"

#include "actors/registry.hpp"
#include "engine/text/tokenizer.hpp"
#include "launch/process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

#if defined(__x86_64__)
constexpr unsigned own_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned own_machine = EM_AARCH64;
#else
#error "which machine do plugins need?"
#endif

/// Empty, or why this cannot be loaded as a shared object.
std::string defect_of_plugin(const std::string& path) {
  const unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (!fd)
    return std::strerror(errno);
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode))
    return "no regular file";
  Elf64_Ehdr head{};
  const auto n = ::read(fd.get(), &head, sizeof head);
  if (n != static_cast<ssize_t>(sizeof head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
    return "no shared object (not an ELF file)";
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != own_machine)
    return fmt::format("built for another machine (ELF machine {}, this is {})", head.e_machine,
                       own_machine);
  if (head.e_type != ET_DYN)
    return fmt::format("no shared object (ELF type {})", head.e_type);
  return {};
}

void add(std::string& problems, const std::string& line) {
  problems += (problems.empty() ? "" : "\n") + line;
}

void check_tokenizer(const topology& t, std::string& problems) {
  const bool named = !t.tokenizer_path.empty();
  const auto file = named ? t.tokenizer_path : (fs::path{t.model_path} / "tokenizer.json").string();
  std::error_code ignored;
  if (!named && !fs::exists(file, ignored))
    return; // a model without words: prompts are token numbers
  if (const auto words = engine::tokenizer::load(file); !words.ok()) {
    auto what = words.error().what;
    if (what.find(file) == std::string::npos)
      what = fmt::format("{}: {}", file, what);
    add(problems, located(t, t.blame({"model.tokenizer", "model.path"}, t.model_at), what));
  }
}

} // namespace

result<engine::checkpoint> open_model(const topology& t) {
  auto model = engine::checkpoint::open(t.model_path);
  if (model.ok())
    return model;
  std::string_view what = model.error().what;
  const auto prefix = t.model_path + ": ";
  while (what.starts_with(prefix))
    what.remove_prefix(prefix.size());
  return fail(
      error{ec::bad_config, located(t, t.model_at,
                                    what.find(t.model_path) != std::string_view::npos
                                        ? fmt::format("model.path: {}", what)
                                        : fmt::format("model.path {}: {}", t.model_path, what))});
}

std::vector<actors::user_actor> user_actors(const topology& t) {
  std::vector<actors::user_actor> out;
  for (std::size_t i = 0; i < t.actors.size(); ++i) {
    const auto& a = t.actors[i];
    actors::user_actor u;
    u.kind = a.kind;
    u.at = a.at;
    u.where = shown_place(t, t.blame({fmt::format("actors[{}].kind", i)}, a.where));
    for (const auto& [key, value] : a.config)
      u.config.push_back(
          {key, value,
           shown_place(t, t.blame({fmt::format("actors[{}].config.{}", i, key)}, a.where))});
    u.listen = a.listen;
    u.restarts_max = a.restart_max;
    u.restart_window = std::chrono::milliseconds{a.restart_window_ms};
    out.push_back(std::move(u));
  }
  return out;
}

result<void> check_files(const topology& t) {
  std::string problems;
  check_tokenizer(t, problems);
  for (std::size_t i = 0; i < t.plugins.size(); ++i)
    if (const auto what = defect_of_plugin(t.plugins[i]); !what.empty())
      add(problems, located(t, t.blame({fmt::format("plugins[{}]", i)}, {}),
                            fmt::format("plugin {}: {}", t.plugins[i], what)));
  if (t.plugins.empty() && !t.actors.empty()) {
    DI_TRY(const auto types, actors::make_registry());
    if (const auto known = actors::check_user_actors(types, user_actors(t)); !known.ok())
      add(problems, known.error().what);
  }
  if (!problems.empty())
    return fail(error{ec::bad_config, problems});
  return {};
}

} // namespace di::launch
