// SPDX-License-Identifier: Apache-2.0
// Orders and reports as JSON lines.
#include "launch/node_link.hpp"

#include <nlohmann/json.hpp>

#include <iterator>

namespace di::launch {
namespace {

using nlohmann::json;

constexpr std::string_view order_names[] = {"start", "signal", "leave", "tell", "beat"};
constexpr std::string_view report_names[] = {"hello",  "status", "log",   "exited",
                                             "failed", "lost",   "stuck", "beat"};

template <std::size_t N>
std::size_t index_of(const std::string_view (&names)[N], const std::string& word) {
  std::size_t i = 0;
  while (i < N && names[i] != word)
    ++i;
  return i;
}

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace

std::string to_json(const node_order& o) {
  return dump({{"order", std::string{order_names[static_cast<std::size_t>(o.kind)]}},
               {"name", o.name},
               {"role", o.role},
               {"boot", o.boot},
               {"number", o.number}});
}

result<node_order> parse_order(std::string_view line) {
  try {
    const auto j = json::parse(line);
    const auto kind = index_of(order_names, j.at("order").get<std::string>());
    if (kind == std::size(order_names))
      return fail(ec::bad_format, "unknown order {}", j.at("order").get<std::string>());
    return node_order{static_cast<order_kind>(kind), j.at("name").get<std::string>(),
                      j.at("role").get<std::vector<std::string>>(), j.at("boot").get<std::string>(),
                      j.at("number").get<int>()};
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "order: {}", e.what());
  }
}

std::string to_json(const node_report& r) {
  json j{{"report", std::string{report_names[static_cast<std::size_t>(r.kind)]}},
         {"name", r.name},
         {"text", r.text},
         {"code", r.state.code},
         {"signal", r.state.signal},
         {"host", r.host},
         {"cores", r.cores}};
  if (r.kind == report_kind::stuck) {
    j["phase"] = r.phase;
    j["stuck_ms"] = r.stuck_ms;
  }
  return dump(j);
}

result<node_report> parse_report(std::string_view line) {
  try {
    const auto j = json::parse(line);
    const auto kind = index_of(report_names, j.at("report").get<std::string>());
    if (kind == std::size(report_names))
      return fail(ec::bad_format, "unknown report {}", j.at("report").get<std::string>());
    node_report r{static_cast<report_kind>(kind),
                  j.at("name").get<std::string>(),
                  j.at("text").get<std::string>(),
                  {j.at("code").get<int>(), j.at("signal").get<int>()},
                  j.at("host").get<std::string>(),
                  j.at("cores").get<std::uint32_t>(),
                  {},
                  0};
    if (r.kind == report_kind::stuck) {
      r.phase = j.at("phase").get<std::string>();
      r.stuck_ms = j.at("stuck_ms").get<std::uint32_t>();
    }
    return r;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "report: {}", e.what());
  }
}

} // namespace di::launch
