// SPDX-License-Identifier: Apache-2.0
// Log files and stderr.
#include "launch/cluster_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace di::launch {
namespace {

/// Lines of others may hold anything; a terminal must not obey them.
std::string printable(const std::string& text) {
  std::string out = text;
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }, '?');
  return out;
}

} // namespace

result<void> cluster_log::keep(const std::string& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code)
    return fail(ec::io_error, "cannot make the log folder {}: {}", folder, code.message());
  folder_ = folder;
  return {};
}

void cluster_log::line(const std::string& process, const std::string& text) {
  if (!quiet_)
    writer_.out(fmt::format("[{}] {}\n", process, printable(text)));
  if (folder_.empty())
    return;
  auto name = process;
  std::replace(name.begin(), name.end(), ' ', '_');
  writer_.file(fmt::format("{}/{}.log", folder_, name), text + "\n");
}

void cluster_log::note(const std::string& text) {
  line("dilaunch", text);
}

void cluster_log::tell(const std::string& text) {
  writer_.out(fmt::format("dilaunch: {}\n", printable(text)));
}

} // namespace di::launch
