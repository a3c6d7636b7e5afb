// SPDX-License-Identifier: Apache-2.0
// `dilaunch status`, `scale`, `drain`, `rejoin`, `upgrade` and `kill`: orders to a run that is
// under way.
#include "launch/admin_calls.hpp"
#include "launch/admin_client.hpp"
#include "launch/cluster.hpp"
#include "launch/commands.hpp"
#include "launch/units.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>

namespace di::launch {
namespace {

using nlohmann::json;

struct admin_arguments {
  std::string run;
  bool json = false;
  std::vector<std::string> words;
};

std::string table_of(const json& s) {
  std::string out = fmt::format("view {}: {} of {} ranks", s.value("view", 0),
                                s.value("members", 0), s.value("wanted", 0));
  if (s.contains("requests"))
    out += fmt::format("; requests: {} open, {} queued, {} done", s["requests"].value("open", 0),
                       s["requests"].value("queued", 0), s["requests"].value("closed", 0));
  if (const auto order = s.value("order", ""); !order.empty())
    out += fmt::format("; under way: {}", order);
  out += fmt::format("\n{:>4} {:>4} {:16} {:11} {:>8} {:>6} {:>6} {:>8}  {}\n", "rank", "node",
                     "life", "state", "requests", "deaths", "starts", "wait", "last end");
  for (const auto& r : s["ranks"]) {
    const auto wait = r.value("wait_ms", std::uint64_t{0});
    out += fmt::format("{:>4} {:>4} {:16} {:11} {:>8} {:>6} {:>6} {:>8}  {}\n", r.value("rank", 0),
                       r.value("node", 0), r.value("life", ""), r.value("state", ""),
                       r.contains("requests") ? std::to_string(r.value("requests", 0)) : "-",
                       r.value("deaths", 0), r.value("starts", 0),
                       wait == 0 ? "-" : fmt::format("{:.1f}s", static_cast<double>(wait) / 1000),
                       r.value("reason", ""));
  }
  return out;
}

/// What node 0 says of the run and its gateways.
std::string head_of(const json& who) {
  std::string out = fmt::format("{}: {}, process {}", who.value("topology", ""),
                                who.value("state", ""), who.value("pid", 0));
  if (who.contains("processes"))
    out += fmt::format(", {} of {} processes ready", who.value("processes_ready", 0),
                       who.value("processes", 0));
  out += '\n';
  if (!who.contains("gateways"))
    return out;
  for (const auto& url : who["urls"])
    out += fmt::format("clients {}; ", url.get<std::string>());
  out += fmt::format("operators {}\n{:>7} {:>6} {:>8} {:16} {:10} {:>6}\n", who.value("admin", ""),
                     "gateway", "port", "pid", "life", "state", "starts");
  for (const auto& g : who["gateways"])
    out += fmt::format("{:>7} {:>6} {:>8} {:16} {:10} {:>6}\n", g.value("gateway", 0),
                       g.value("port", 0), g.value("pid", 0), g.value("life", ""),
                       g.value("state", ""), g.value("starts", 0));
  return out;
}

int status(const admin_arguments& a) {
  const auto all = read_status(a.run);
  if (!all.ok())
    return complain_of(all.error());
  const auto text = a.json ? all->dump() + "\n" : status_table(*all);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return exit_done;
}

int order(const admin_arguments& a, const json& what) {
  const auto answer = ask_order(a.run, what);
  if (!answer.ok())
    return complain_of(answer.error());
  std::printf("done: %u ranks in view %llu\n", answer->value("ranks", 0U),
              static_cast<unsigned long long>(answer->value("view", std::uint64_t{0})));
  return exit_done;
}

/// "decode=3" -> 3
result<std::int64_t> ranks_of(const std::string& word) {
  const auto equals = word.find('=');
  const auto role = word.substr(0, equals);
  if (equals == std::string::npos || role != "decode")
    return fail(ec::bad_argument, "scale {}: write decode=N, the number of ranks", word);
  const auto n = parse_integer(std::string_view{word}.substr(equals + 1));
  if (!n.ok() || *n < 1 || *n > 4096)
    return fail(ec::bad_argument, "scale {}: N is a number from 1 to 4096", word);
  return *n;
}

/// "rank 3", "rank=3" or "3" -> 3
result<std::int64_t> rank_of(const std::string& command, const std::vector<std::string>& words) {
  auto word = words.empty() ? std::string{} : words.back();
  if (word.starts_with("rank="))
    word = word.substr(5);
  const bool shape = words.size() == 1 || (words.size() == 2 && words.front() == "rank");
  const auto n = parse_integer(word);
  if (!shape || !n.ok() || *n < 0 || *n > 1'000'000)
    return fail(ec::bad_argument, "{}: write `dilaunch {} rank R`, e.g. `dilaunch {} rank 3`",
                command, command, command);
  return *n;
}

} // namespace

int complain_of(const error& e) {
  std::fprintf(stderr, "dilaunch: %s\n", e.what.c_str());
  const bool usage = e.code == ec::bad_argument || e.code == ec::not_found;
  return usage ? exit_usage : exit_gave_up;
}

result<json> ask_order(const std::string& run, const json& order) {
  DI_TRY(const auto dir, find_run(run));
  DI_TRY(const auto line, ask_run(dir, order.dump()));
  auto answer = json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("ok"))
    return fail(ec::bad_format, "{}: no answer that can be read: {}", dir, line);
  if (answer["ok"] == true)
    return answer;
  const auto code = answer.value("code", "internal");
  return fail(error{code == "bad_argument" ? ec::bad_argument
                    : code == "not_found"  ? ec::not_found
                                           : ec::unavailable,
                    answer.value("error", "refused without words")});
}

result<json> read_status(const std::string& run) {
  DI_TRY(auto who, ask_order(run, {{"command", "who"}}));
  const auto state = who.value("state", "");
  const bool early = state == "starting" || state == "recovering" || state == "ending";
  if (early && who.contains("gateways"))
    return who;
  DI_TRY(auto answer, ask_order(who.value("run", run), {{"command", "status"}}));
  for (const auto& [key, value] : who.items())
    if (!answer.contains(key))
      answer[key] = value;
  return answer;
}

std::string status_table(const json& status) {
  return status.contains("ranks") ? head_of(status) + table_of(status) : head_of(status);
}

void add_admin_commands(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<admin_arguments>();
  const auto with_run = [&](CLI::App* c) {
    c->add_option("--run", a->run,
                  "Run directory or process id of the run; default: the one run of this user")
        ->option_text("DIR|PID");
    return c;
  };
  auto* show = with_run(app.add_subcommand("status", "Show a run: its ranks, deaths, requests"));
  show->add_flag("--json", a->json, "For programs");
  show->callback([a, &exit_code] { exit_code = status(*a); });

  auto* scale = with_run(
      app.add_subcommand("scale", "Change the number of ranks: highest drained, or lowest added"));
  scale->add_option("size", a->words, "decode=N")->required()->expected(1);
  scale->callback([a, &exit_code] {
    const auto n = ranks_of(a->words.front());
    exit_code = n.ok() ? order(*a, {{"command", "scale"}, {"ranks", *n}}) : complain_of(n.error());
  });

  const auto of_rank = [&](const char* name, const char* words) {
    auto* c = with_run(app.add_subcommand(name, words));
    c->add_option("rank", a->words, "rank R")->required()->expected(1, 2);
    c->callback([a, name = std::string{name}, &exit_code] {
      const auto n = rank_of(name, a->words);
      exit_code = n.ok() ? order(*a, {{"command", name}, {"rank", *n}}) : complain_of(n.error());
    });
  };
  of_rank("drain", "Let a rank finish or hand over its requests, then end it");
  of_rank("rejoin", "Bring a rank back, also out of quarantine");
  of_rank("kill", "Kill the process of a rank, as a test; it comes back as after any death");

  auto* upgrade =
      with_run(app.add_subcommand("upgrade", "Restart all ranks one after the other, under load"));
  upgrade->callback([a, &exit_code] { exit_code = order(*a, {{"command", "upgrade"}}); });
}

} // namespace di::launch
