// SPDX-License-Identifier: Apache-2.0
// `dilaunch down`, `reload`, `logs` and `top`: what operators do with a run that is under way.
#include "launch/admin_calls.hpp"
#include "launch/cluster.hpp"
#include "launch/commands.hpp"
#include "launch/log_follow.hpp"
#include "launch/process.hpp"
#include "launch/units.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace di::launch {
namespace {

using nlohmann::json;

/// Waits until a process has ended. @return false: it had not after so long
bool wait_for_end(std::int64_t pid, int limit_ms) {
  const unique_fd fd{static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))};
  if (!fd)
    return true;
  pollfd ended{fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, limit_ms) > 0;
}

int down(const std::string& run, bool now, const std::string& wait) {
  const auto limit = parse_time(wait);
  if (!limit.ok())
    return complain_of(error{ec::bad_argument, "--wait: " + limit.error().what});
  const auto answer = ask_order(run, {{"command", "down"}, {"now", now}});
  if (!answer.ok())
    return complain_of(answer.error());
  const auto pid = answer->value("pid", std::int64_t{0});
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*limit).count();
  if (!wait_for_end(pid, static_cast<int>(ms)))
    return complain_of(error{ec::deadline_exceeded,
                             fmt::format("process {} still runs after {}; `dilaunch down --now` "
                                         "does not wait for open requests",
                                         pid, wait)});
  std::printf("ended: process %lld\n", static_cast<long long>(pid));
  return exit_done;
}

int reload(const std::string& run) {
  const auto answer = ask_order(run, {{"command", "reload"}});
  if (!answer.ok())
    return complain_of(answer.error());
  std::printf("asked for; what is wrong with a file stands in the log of the run\n");
  return exit_done;
}

/// What went on between two looks. Empty: nothing can be said.
std::string rates_of(const json& before, const json& now, double seconds) {
  if (!before.contains("requests") || !now.contains("requests") || seconds <= 0)
    return {};
  const auto grown = [&](const char* field) {
    const auto was = before["requests"].value(field, 0.0), is = now["requests"].value(field, 0.0);
    return is < was ? 0.0 : (is - was) / seconds; // control started again
  };
  return fmt::format("{:.1f} tokens/s, {:.1f} requests/s\n", grown("tokens"), grown("closed"));
}

int top(const std::string& run, double every_s, std::uint32_t rounds) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  json before;
  auto looked = std::chrono::steady_clock::now();
  for (std::uint32_t i = 0; rounds == 0 || i < rounds; ++i) {
    if (i > 0)
      ::poll(nullptr, 0, static_cast<int>(every_s * 1000));
    const auto now = std::chrono::steady_clock::now();
    const auto shown = read_status(run);
    if (!shown.ok() && i == 0)
      return complain_of(shown.error());
    const auto text =
        shown.ok()
            ? status_table(*shown)
                  + rates_of(before, *shown, std::chrono::duration<double>(now - looked).count())
            : shown.error().what + "\n";
    if (shown.ok())
      before = *shown;
    looked = now;
    std::printf("%s%s", terminal ? "\033[H\033[2J" : "", text.c_str());
    std::fflush(stdout);
    if (!shown.ok() && shown.error().code == ec::not_found)
      return exit_done; // it has ended
  }
  return exit_done;
}

void add_logs(CLI::App& app, int& exit_code) {
  const auto run = std::make_shared<std::string>();
  const auto o = std::make_shared<log_follow_options>();
  auto* c = app.add_subcommand("logs", "Show what the processes of a run say");
  c->add_option("--run", *run, "Run directory or process id; default: the one run of this user")
      ->option_text("DIR|PID");
  c->add_option("--log-dir", o->folder, "A folder that --log-dir named, also after the run's end")
      ->option_text("FOLDER");
  c->add_flag("-f,--follow", o->follow, "Go on with what comes, until the run ends");
  c->add_option("--role", o->role, "control, rank, gateway or dilaunch")
      ->check(CLI::IsMember({"control", "rank", "gateway", "dilaunch"}));
  c->add_option("--rank", o->rank, "Of one rank only")->option_text("R");
  c->add_option("--grep", o->grep, "Lines with this text only")->option_text("TEXT");
  c->add_option("-n,--lines", o->lines, "Last lines of each file; 0: all; default 200");
  c->callback([run, o, &exit_code] {
    if (o->folder.empty()) {
      const auto who = ask_order(*run, {{"command", "who"}});
      if (!who.ok()) {
        exit_code = complain_of(who.error());
        return;
      }
      o->folder = who->value("log", "");
      o->pid = who->value("pid", std::int64_t{0});
    }
    const auto done = follow_logs(*o, STDOUT_FILENO);
    exit_code = done.ok() ? exit_done : complain_of(done.error());
  });
}

} // namespace

void add_operate_commands(CLI::App& app, int& exit_code) {
  const auto run = std::make_shared<std::string>();
  const auto with_run = [&](CLI::App* c) {
    c->add_option("--run", *run, "Run directory or process id; default: the one run of this user")
        ->option_text("DIR|PID");
    return c;
  };
  const auto now = std::make_shared<bool>(false);
  const auto wait = std::make_shared<std::string>("10m");
  auto* end = with_run(
      app.add_subcommand("down", "End a run: open requests finish first, new ones are refused"));
  end->add_flag("--now", *now, "Cut off open requests");
  end->add_option("--wait", *wait, "For its end; default 10m")->option_text("TIME");
  end->callback([run, now, wait, &exit_code] { exit_code = down(*run, *now, *wait); });

  auto* again = with_run(
      app.add_subcommand("reload", "Let gateways read limits and API keys again, as SIGHUP does"));
  again->callback([run, &exit_code] { exit_code = reload(*run); });

  const auto every = std::make_shared<double>(1.0);
  const auto rounds = std::make_shared<std::uint32_t>(0);
  auto* view = with_run(app.add_subcommand("top", "Show a run and refresh, until it ends"));
  view->add_option("--every", *every, "Seconds between two looks; default 1")
      ->check(CLI::Range(0.1, 3600.0));
  view->add_option("--rounds", *rounds, "Looks; 0: until the run ends")->option_text("N");
  view->callback([run, every, rounds, &exit_code] { exit_code = top(*run, *every, *rounds); });
  add_logs(app, exit_code);
}

} // namespace di::launch
