// SPDX-License-Identifier: Apache-2.0
#include "chaos/process_table.hpp"

#include "chaos/file_text.hpp"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace di::chaos {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const std::string& text, char end) {
  std::vector<std::string> out;
  std::stringstream in{text};
  for (std::string word; std::getline(in, word, end);)
    out.push_back(std::move(word));
  return out;
}

void name_it(process_entry& p, const std::vector<std::string>& argv) {
  if (argv.size() < 2)
    return;
  const auto index = [&](std::size_t i) {
    return i < argv.size() ? static_cast<std::uint32_t>(std::atoi(argv[i].c_str())) : 0U;
  };
  if (argv[1] == "child" && argv.size() > 2) {
    p.kind = argv[2] == "control" ? process_kind::control : process_kind::rank;
    p.index = index(3);
  } else if (argv[1] == "node") {
    p.kind = process_kind::node;
    p.index = index(3);
  } else if (argv[1] == "run") {
    p.kind = process_kind::launcher;
  }
}

std::size_t entries_of(const std::string& folder) {
  std::error_code gone;
  std::size_t n = 0;
  for (fs::directory_iterator at{folder, gone}, end; !gone && at != end; at.increment(gone))
    ++n;
  return n;
}

} // namespace

std::vector<process_entry> find_processes(const std::string& fault_folder) {
  std::vector<process_entry> found;
  const std::string mark = "DI_FAULTS=" + fault_folder;
  std::error_code gone;
  for (fs::directory_iterator at{"/proc", gone}, end; !gone && at != end; at.increment(gone)) {
    const std::string name = at->path().filename().string();
    process_entry p;
    if (std::from_chars(name.data(), name.data() + name.size(), p.pid).ptr
            != name.data() + name.size()
        || name.empty())
      continue;
    bool ours = false;
    for (const std::string& variable : words_of(file_text("/proc/" + name + "/environ"), '\0'))
      ours = ours || variable == mark;
    if (!ours)
      continue;
    const std::string stat = file_text("/proc/" + name + "/stat");
    const std::size_t behind = stat.rfind(") ");
    if (behind == std::string::npos)
      continue;
    const auto fields = words_of(stat.substr(behind + 2), ' ');
    if (fields.size() < 20 || fields[0] == "Z")
      continue;
    p.state = fields[0].front();
    p.started = std::strtoull(fields[19].c_str(), nullptr, 10);
    name_it(p, words_of(file_text("/proc/" + name + "/cmdline"), '\0'));
    found.push_back(p);
  }
  return found;
}

std::size_t open_descriptors(pid_t pid) {
  return entries_of("/proc/" + std::to_string(pid) + "/fd");
}

} // namespace di::chaos
