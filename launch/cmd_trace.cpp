// SPDX-License-Identifier: Apache-2.0
// `dilaunch trace`: rings of a run to one picture.
#include "launch/cluster.hpp" // exit codes
#include "launch/commands.hpp"
#include "launch/trace_file.hpp"
#include "launch/trace_picture.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

struct trace_arguments {
  std::vector<std::string> rings;
  std::string out;
};

/// A regular file is written beside its place and then put there; anything else that exists (a
/// device, a pipe) is written as it is.
result<picture_summary> merge(const std::vector<std::string>& rings, const std::string& target) {
  std::error_code wrong;
  const fs::file_status about = fs::status(target, wrong);
  const bool exists = target != "-" && fs::exists(about);
  const bool in_place = exists && !fs::is_regular_file(about);
  const std::string out = exists && !in_place ? fs::canonical(target, wrong).string() : target;
  std::vector<proto::trace_part> parts;
  for (const std::string& file : rings) {
    if (exists && fs::equivalent(file, target, wrong) && !in_place)
      return fail(ec::bad_argument, "--out {}: is one of the traces to be read", target);
    DI_TRY(auto more, read_trace_file(file));
    parts.insert(parts.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  }
  if (out == "-")
    return write_picture(parts, [](std::string_view block) -> result<void> {
      if (std::fwrite(block.data(), 1, block.size(), stdout) != block.size())
        return fail(ec::io_error, "standard output: {}", std::strerror(errno));
      return {};
    });
  const std::string unfinished = in_place ? out : out + ".drawing";
  std::ofstream file{unfinished, std::ios::binary | std::ios::trunc};
  if (!file)
    return fail(ec::io_error, "{}: {}", unfinished, std::strerror(errno));
  auto summary = write_picture(parts, [&](std::string_view block) -> result<void> {
    if (!file.write(block.data(), static_cast<std::streamsize>(block.size())))
      return fail(ec::io_error, "{}: {}", unfinished, std::strerror(errno));
    return {};
  });
  file.close();
  wrong.clear();
  if (summary.ok() && file && !in_place)
    fs::rename(unfinished, out, wrong);
  else if (!in_place)
    fs::remove(unfinished, wrong);
  if (summary.ok() && (!file || wrong))
    return fail(ec::io_error, "{}: {}", out, wrong ? wrong.message() : "could not be written");
  return summary;
}

int draw(const trace_arguments& a) {
  const auto summary = merge(a.rings, a.out);
  if (!summary.ok()) {
    std::fprintf(stderr, "dilaunch trace: %s\n", summary.error().what.c_str());
    return exit_usage;
  }
  const auto& s = *summary;
  std::fputs(
      fmt::format("{}: {} spans on {} tracks of {} processes, {} requests tied by arrows{}\n",
                  a.out == "-" ? "standard output" : a.out, s.spans, s.tracks, s.processes, s.flows,
                  s.lost == 0 ? std::string{} : fmt::format(", {} older spans overwritten", s.lost))
          .c_str(),
      stderr);
  return exit_done;
}

} // namespace

result<void> draw_trace(const std::vector<std::string>& rings, const std::string& out) {
  DI_TRY_VOID(merge(rings, out));
  return {};
}

void add_trace_commands(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<trace_arguments>();
  auto* c = app.add_subcommand("trace", "Merge traces of a run into one file for ui.perfetto.dev");
  c->add_option("rings", a->rings, "Written by dilaunch run --trace FILE")
      ->required()
      ->option_text("FILE...");
  c->add_option("--out,-o", a->out, "The picture (JSON); - is standard output")
      ->required()
      ->option_text("FILE");
  c->callback([a, &exit_code] { exit_code = draw(*a); });
}

} // namespace di::launch
