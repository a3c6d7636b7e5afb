// SPDX-License-Identifier: Apache-2.0
// Commands that read JSON lines and write JSON lines: their files, their options, their ends.
#pragma once

#include "engine/text/tokenizer.hpp"

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

namespace CLI {
class App;
}

namespace di::launch {

/// Lines of one run.
struct line_counts {
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
};

/// What the command line gave.
struct line_files {
  std::string tokenizer;                 ///< tokenizer.json, or the folder of a model
  std::string input = "-", output = "-"; ///< paths; - is standard input and output
};

/// Adds `--input` and `--output`.
void add_line_files(CLI::App& command, line_files& files);

/// @param words  null: no tokenizer was given
using lines_function =
    std::function<line_counts(const engine::tokenizer* words, std::istream& in, std::ostream& out)>;

/// Opens the files, does the lines, says on standard error what went wrong.
/// @param command  as messages name it, e.g. "codec render"
/// @return exit code: 0 done, 2 no such tokenizer or file, 5 some lines failed or were not written
int run_lines(const line_files& files, const std::string& command, const lines_function& lines);

} // namespace di::launch
