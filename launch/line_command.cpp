// SPDX-License-Identifier: Apache-2.0
// Files of commands that work on JSON lines.
#include "launch/line_command.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

namespace di::launch {

void add_line_files(CLI::App& command, line_files& files) {
  command.add_option("--input", files.input, "JSON lines; - is standard input")
      ->capture_default_str();
  command.add_option("--output", files.output, "JSON lines; - is standard output")
      ->capture_default_str();
}

int run_lines(const line_files& files, const std::string& command, const lines_function& lines) {
  const auto say = [&command](const std::string& what) {
    std::cerr << "dilaunch " << command << ": " << what << '\n';
  };
  std::optional<engine::tokenizer> words;
  if (!files.tokenizer.empty()) {
    std::filesystem::path path = files.tokenizer;
    if (std::filesystem::is_directory(path))
      path /= "tokenizer.json";
    result<engine::tokenizer> loaded = engine::tokenizer::load(path);
    if (!loaded.ok()) {
      say(loaded.error().render());
      return 2;
    }
    words = std::move(loaded).value();
  }
  std::ifstream in_file;
  std::ofstream out_file;
  if (files.input != "-")
    in_file.open(files.input, std::ios::binary);
  if (files.output != "-")
    out_file.open(files.output, std::ios::binary);
  if (!in_file || !out_file) {
    say((in_file ? files.output : files.input) + ": cannot be opened");
    return 2;
  }
  std::ostream& out = files.output == "-" ? std::cout : out_file;
  const line_counts counts =
      lines(words ? &*words : nullptr, files.input == "-" ? std::cin : in_file, out);
  if (!out) {
    say(files.output + ": writing failed after " + std::to_string(counts.done) + " lines");
    return 5;
  }
  if (counts.failed > 0)
    say(std::to_string(counts.failed) + " of " + std::to_string(counts.failed + counts.done)
        + " lines failed");
  return counts.failed > 0 ? 5 : 0;
}

} // namespace di::launch
