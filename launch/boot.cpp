// SPDX-License-Identifier: Apache-2.0
// Boot configuration and status lines as JSON.
#include "launch/boot.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace di::launch {
namespace {

using nlohmann::json;

json peer_json(const bus::peer& p) {
  return {{"prefix", p.prefix},
          {"life", p.life.v},
          {"control", p.control_endpoint},
          {"bulk", p.bulk_endpoint},
          {"key", p.curve_key}};
}

bus::peer peer_of(const json& j) {
  bus::peer p;
  p.prefix = j.at("prefix").get<std::string>();
  p.life = incarnation{j.at("life").get<std::uint64_t>()};
  p.control_endpoint = j.at("control").get<std::string>();
  p.bulk_endpoint = j.at("bulk").get<std::string>();
  p.curve_key = j.at("key").get<std::string>();
  return p;
}

constexpr std::string_view kind_names[] = {"bound",  "ready",      "failed",  "finished",
                                           "notice", "unanswered", "serving", "drained"};
constexpr std::string_view role_names[] = {"control", "rank", "gateway"};

} // namespace

std::string_view to_string(process_role role) noexcept {
  return role_names[static_cast<std::size_t>(role)];
}

std::string to_json(const boot_config& b) {
  json j{{"role", std::string{to_string(b.role)}},
         {"index", b.index},
         {"node", b.node},
         {"life", b.life.v},
         {"topology", {{"file", b.topology_file}, {"text", b.topology_text}, {"sets", b.sets}}},
         {"run_dir", b.run_dir},
         {"bind", {{"control", b.control_endpoint}, {"bulk", b.bulk_endpoint}}},
         {"threads", b.threads},
         {"trace_spans", b.trace_spans},
         {"life_page", b.life_page},
         {"stuck_after_ms", b.stuck_after_ms},
         {"log_level", b.log_level}};
  if (b.curve)
    j["curve"] = {{"public", b.curve->public_key},
                  {"secret", b.curve->secret_key},
                  {"allowed", b.curve->allowed}};
  if (!b.segment_lives.empty()) {
    j["segments"] = {{"bytes", b.segment_bytes}, {"lives", json::array()}};
    for (const incarnation life : b.segment_lives)
      j["segments"]["lives"].push_back(life.v);
  }
  if (b.control)
    j["control"] = peer_json(*b.control);
  if (b.batch)
    j["batch"] = {{"prompts", b.batch->prompts},   {"prompts_name", b.batch->prompts_name},
                  {"output", b.batch->output},     {"trace", b.batch->trace},
                  {"progress", b.batch->progress}, {"window", b.batch->window},
                  {"seed", b.batch->seed}};
  if (b.journal)
    j["journal"] = {{"folder", b.journal->folder},   {"keep", b.journal->keep},
                    {"resume", b.journal->resume},   {"contract", b.journal->contract},
                    {"prompts", b.journal->prompts}, {"settings", b.journal->settings}};
  if (b.recovering) {
    j["recovering"] = {{"lives", b.recovering->lives},
                       {"lines_written", b.recovering->lines_written},
                       {"lines_failed", b.recovering->lines_failed},
                       {"ranks", json::array()}};
    for (const auto& r : b.recovering->ranks)
      j["recovering"]["ranks"].push_back(
          {{"rank", r.rank}, {"node", r.node}, {"life", r.life.v}, {"ready", r.ready}});
  }
  if (b.gateway)
    j["gateway"] = {{"http_sockets", b.gateway->http_sockets},
                    {"admin_sockets", b.gateway->admin_sockets},
                    {"http_port", b.gateway->http_port},
                    {"admin_port", b.gateway->admin_port},
                    {"recovering", b.gateway->recovering}};
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

result<boot_config> parse_boot(std::string_view text) {
  try {
    const auto j = json::parse(text);
    boot_config b;
    const auto role = j.at("role").get<std::string>();
    const auto* known = std::find(std::begin(role_names), std::end(role_names), role);
    if (known == std::end(role_names))
      return fail(ec::bad_format, "boot configuration: unknown role {}", role);
    b.role = static_cast<process_role>(known - std::begin(role_names));
    b.index = j.at("index").get<std::uint32_t>();
    b.node = j.at("node").get<std::uint32_t>();
    b.life = incarnation{j.at("life").get<std::uint64_t>()};
    const auto& t = j.at("topology");
    b.topology_file = t.at("file").get<std::string>();
    b.topology_text = t.at("text").get<std::string>();
    b.sets = t.at("sets").get<std::vector<std::string>>();
    b.run_dir = j.at("run_dir").get<std::string>();
    b.control_endpoint = j.at("bind").at("control").get<std::string>();
    b.bulk_endpoint = j.at("bind").at("bulk").get<std::string>();
    b.threads = j.at("threads").get<std::uint32_t>();
    b.trace_spans = j.at("trace_spans").get<std::uint32_t>();
    b.life_page = j.at("life_page").get<bool>();
    b.stuck_after_ms = j.at("stuck_after_ms").get<std::uint32_t>();
    b.log_level = j.at("log_level").get<std::string>();
    if (j.contains("curve")) {
      const auto& c = j.at("curve");
      b.curve = curve_boot{c.at("public").get<std::string>(), c.at("secret").get<std::string>(),
                           c.at("allowed").get<std::vector<std::string>>()};
    }
    if (j.contains("segments")) {
      b.segment_bytes = j.at("segments").at("bytes").get<std::uint64_t>();
      for (const auto life : j.at("segments").at("lives").get<std::vector<std::uint64_t>>())
        b.segment_lives.emplace_back(life);
    }
    if (j.contains("control"))
      b.control = peer_of(j.at("control"));
    if (j.contains("batch")) {
      const auto& c = j.at("batch");
      b.batch =
          batch_boot{c.at("prompts").get<std::string>(), c.at("prompts_name").get<std::string>(),
                     c.at("output").get<std::string>(),  c.at("trace").get<std::string>(),
                     c.at("progress").get<bool>(),       c.at("window").get<std::uint32_t>(),
                     c.at("seed").get<std::uint64_t>()};
    }
    if (j.contains("journal")) {
      const auto& c = j.at("journal");
      b.journal =
          journal_boot{c.at("folder").get<std::string>(),  c.at("keep").get<bool>(),
                       c.at("resume").get<bool>(),         c.at("contract").get<std::string>(),
                       c.at("prompts").get<std::string>(), c.at("settings").get<std::string>()};
    }
    if (j.contains("recovering")) {
      const auto& c = j.at("recovering");
      recovering_boot r;
      r.lives = c.at("lives").get<std::uint32_t>();
      r.lines_written = c.at("lines_written").get<std::uint64_t>();
      r.lines_failed = c.at("lines_failed").get<std::uint64_t>();
      for (const auto& e : c.at("ranks"))
        r.ranks.push_back({e.at("rank").get<std::uint32_t>(), e.at("node").get<std::uint32_t>(),
                           incarnation{e.at("life").get<std::uint64_t>()},
                           e.at("ready").get<bool>()});
      b.recovering = std::move(r);
    }
    if (j.contains("gateway")) {
      const auto& c = j.at("gateway");
      b.gateway = gateway_boot{
          c.at("http_sockets").get<std::uint32_t>(), c.at("admin_sockets").get<std::uint32_t>(),
          c.at("http_port").get<std::uint32_t>(), c.at("admin_port").get<std::uint32_t>(),
          c.at("recovering").get<bool>()};
    }
    return b;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "boot configuration: {}", e.what());
  }
}

std::string to_json(const child_status& s) {
  json j{{"kind", std::string{kind_names[static_cast<std::size_t>(s.kind)]}}};
  if (s.kind == status_kind::bound)
    j["self"] = peer_json(s.self);
  if (!s.what.empty())
    j["what"] = s.what;
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

result<child_status> parse_status(std::string_view text) {
  try {
    const auto j = json::parse(text);
    child_status s;
    const auto kind = j.at("kind").get<std::string>();
    std::size_t k = 0;
    while (k < std::size(kind_names) && kind_names[k] != kind)
      ++k;
    if (k == std::size(kind_names))
      return fail(ec::bad_format, "status line: unknown kind {}", kind);
    s.kind = static_cast<status_kind>(k);
    if (s.kind == status_kind::bound)
      s.self = peer_of(j.at("self"));
    if (j.contains("what"))
      s.what = j.at("what").get<std::string>();
    return s;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "status line: {}", e.what());
  }
}

std::string to_json(const bus::peer& p) {
  return peer_json(p).dump(-1, ' ', false, json::error_handler_t::replace);
}

result<bus::peer> parse_peer(std::string_view text) {
  try {
    return peer_of(json::parse(text));
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "peer: {}", e.what());
  }
}

} // namespace di::launch
