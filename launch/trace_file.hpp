// SPDX-License-Identifier: Apache-2.0
// Rings of a run on disk, as `dilaunch run --trace` writes them and `dilaunch trace` reads them:
// one JSON object a line, the first says what the file is.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/telemetry.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace di::launch {

/// First line of the file, with its line end: format and names of the span kinds.
std::string trace_file_head();
/// A part as one line, with its line end.
std::string trace_line(const proto::trace_part& part);

/// Reads the text of a file. Untrusted: every defect is an error, none is skipped.
///
/// @param name  of the file, for errors
/// @errors      bad_format (name:line: what), limit_exceeded
result<std::vector<proto::trace_part>> parse_trace(std::string_view text, const std::string& name);

/// The same of a file. @errors io_error, and those of parse_trace
result<std::vector<proto::trace_part>> read_trace_file(const std::string& path);

} // namespace di::launch
