// SPDX-License-Identifier: Apache-2.0
// Writing and reading of ring files.
#include "launch/trace_file.hpp"

#include "messaging/base/trace.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

namespace di::launch {
namespace {

using nlohmann::json;

constexpr std::string_view format_name = "di-trace-1";
constexpr std::size_t file_bytes_max = std::size_t{4} << 30U;

std::string text_of(std::string_view s) {
  return json(s).dump(-1, ' ', true, json::error_handler_t::replace);
}

template <class Int>
Int integer(const json& j, const char* what) {
  if (!j.is_number_integer())
    throw std::runtime_error{fmt::format("{} is no integer", what)};
  const auto in_range = [&](auto v) {
    if (!std::in_range<Int>(v))
      throw std::runtime_error{fmt::format("{} {} is out of range", what, v)};
    return static_cast<Int>(v);
  };
  return j.is_number_unsigned() ? in_range(j.get<std::uint64_t>())
                                : in_range(j.get<std::int64_t>());
}

proto::trace_event event_of(const json& j, const std::vector<std::uint8_t>& kinds,
                            std::size_t tracks) {
  if (!j.is_array() || j.size() != 8)
    throw std::runtime_error{"an event is a list of 8 numbers"};
  proto::trace_event e;
  const auto kind = integer<std::size_t>(j[0], "kind");
  if (kind >= kinds.size())
    throw std::runtime_error{fmt::format("kind {} of {}", kind, kinds.size())};
  e.what = kinds[kind];
  e.track = integer<std::uint16_t>(j[1], "track");
  if (e.track >= tracks)
    throw std::runtime_error{fmt::format("track {} of {}", e.track, tracks)};
  e.begin_ns = integer<std::int64_t>(j[2], "begin");
  e.end_ns = integer<std::int64_t>(j[3], "end");
  if (e.begin_ns < 0 || e.end_ns < e.begin_ns)
    throw std::runtime_error{fmt::format("span from {} to {} ns", e.begin_ns, e.end_ns)};
  e.flow = request_id{integer<std::uint64_t>(j[4], "flow")};
  e.rows = integer<std::uint32_t>(j[5], "rows");
  e.layer = integer<std::int32_t>(j[6], "layer");
  if (!j[7].is_number())
    throw std::runtime_error{"value is no number"};
  e.value = j[7].get<float>();
  return e;
}

proto::trace_part part_of(const json& j, const std::vector<std::uint8_t>& kinds) {
  proto::trace_part p;
  p.process = j.at("process").get<std::string>();
  p.host = j.at("host").get<std::string>();
  p.monotonic_ns = integer<std::int64_t>(j.at("monotonic_ns"), "monotonic_ns");
  p.wall_ns = integer<std::int64_t>(j.at("wall_ns"), "wall_ns");
  p.lost = integer<std::uint64_t>(j.at("lost"), "lost");
  p.tracks = j.at("tracks").get<std::vector<std::string>>();
  if (p.tracks.size() > trace::tracks_max)
    throw std::runtime_error{fmt::format("{} tracks", p.tracks.size())};
  for (const json& e : j.at("events"))
    p.events.push_back(event_of(e, kinds, p.tracks.size()));
  return p;
}

/// Kind numbers of the file's own list: a file may come from a build with others.
std::vector<std::uint8_t> kinds_of(const json& head) {
  if (head.value("format", "") != format_name)
    throw std::runtime_error{fmt::format("not a trace of this program ({})", format_name)};
  std::vector<std::uint8_t> kinds;
  for (const json& name : head.at("kinds")) {
    const auto known = trace::kind_of(name.get<std::string>());
    if (!known)
      throw std::runtime_error{fmt::format("unknown span kind {}", name.get<std::string>())};
    kinds.push_back(static_cast<std::uint8_t>(*known));
  }
  return kinds;
}

} // namespace

std::string trace_file_head() {
  json kinds = json::array();
  for (std::size_t i = 0; i < trace::kinds; ++i)
    kinds.push_back(std::string{trace::to_string(static_cast<trace::kind>(i))});
  return json{{"format", format_name}, {"kinds", kinds}}.dump() + "\n";
}

std::string trace_line(const proto::trace_part& p) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, R"({{"process":{},"host":{},"monotonic_ns":{},"wall_ns":{},"lost":{},)",
                 text_of(p.process), text_of(p.host), p.monotonic_ns, p.wall_ns, p.lost);
  fmt::format_to(to, R"("tracks":[)");
  for (std::size_t i = 0; i < p.tracks.size(); ++i)
    fmt::format_to(to, "{}{}", i == 0 ? "" : ",", text_of(p.tracks[i]));
  fmt::format_to(to, R"(],"events":[)");
  for (std::size_t i = 0; i < p.events.size(); ++i) {
    const proto::trace_event& e = p.events[i];
    fmt::format_to(to, "{}[{},{},{},{},{},{},{},{}]", i == 0 ? "" : ",", e.what, e.track,
                   e.begin_ns, e.end_ns, e.flow.v, e.rows, e.layer,
                   std::isfinite(e.value) ? e.value : 0.0F);
  }
  fmt::format_to(to, "]}}\n");
  return fmt::to_string(out);
}

result<std::vector<proto::trace_part>> parse_trace(std::string_view text, const std::string& name) {
  std::vector<proto::trace_part> parts;
  std::vector<std::uint8_t> kinds;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      continue;
    try {
      const json j = json::parse(line);
      if (!j.is_object())
        return fail(ec::bad_format, "{}:{}: not a JSON object", name, number);
      if (number == 1)
        kinds = kinds_of(j);
      else
        parts.push_back(part_of(j, kinds));
    } catch (const std::exception& e) {
      return fail(ec::bad_format, "{}:{}: {}", name, number, e.what());
    }
  }
  if (number == 0)
    return fail(ec::bad_format, "{}: is empty; `dilaunch run --trace` writes such files", name);
  return parts;
}

result<std::vector<proto::trace_part>> read_trace_file(const std::string& path) {
  std::ifstream in{path, std::ios::binary | std::ios::ate};
  if (!in)
    return fail(ec::io_error, "{}: {}", path, std::strerror(errno));
  if (const auto size = in.tellg(); size > 0 && static_cast<std::size_t>(size) > file_bytes_max)
    return fail(ec::limit_exceeded, "{}: {} bytes; at most {}", path, std::streamoff{size},
                file_bytes_max);
  in.seekg(0);
  in.clear();
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad() || text.str().empty())
    return fail(in.bad() ? ec::io_error : ec::bad_format, "{}: {}", path,
                in.bad() ? "cannot be read" : "is empty");
  return parse_trace(text.str(), path);
}

} // namespace di::launch
