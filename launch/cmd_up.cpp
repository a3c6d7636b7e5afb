// SPDX-License-Identifier: Apache-2.0
// `dilaunch up`: a cluster that serves HTTP until it is told to end.
#include "launch/commands.hpp"
#include "launch/gateway_sockets.hpp"
#include "launch/run_arguments.hpp"
#include "launch/run_journal.hpp"
#include "messaging/base/trace.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

namespace di::launch {
namespace {

struct up_arguments {
  run_arguments run;
  std::uint32_t trace_spans = 0;
  bool background = false;
};

int complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return exit_usage;
}

int serve_here(const up_arguments& a) {
  (void)fill_standard_descriptors();
  cluster_options o;
  listening_sockets sockets;
  const auto ready = [&]() -> result<void> {
    DI_TRY(const auto contract, common_options_of(a.run, o));
    DI_TRY_VOID(check_gateway_ports(o.config, o.plan));
    DI_TRY_VOID(check_serving_files(o.config));
    DI_TRY(o.journal, serving_journal_of(a.run.journal, o.config, contract));
    DI_TRY(o.serve, sockets.open(o.config));
    o.trace_spans = a.trace_spans;
    return {};
  }();
  if (!ready.ok())
    return complain(ready.error().what);
  return run_cluster(std::move(o));
}

/// What the background process says, until it serves (its line comes on `out`) or has ended.
int wait_for(pid_t child, int out, int err) {
  std::string line;
  std::array<char, 4096> block{};
  std::array<pollfd, 2> ready{{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  while (ready[0].fd >= 0 || ready[1].fd >= 0) {
    if (::poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR)
      break;
    for (auto& one : ready) {
      if (one.fd < 0 || one.revents == 0)
        continue;
      const auto n = ::read(one.fd, block.data(), block.size());
      if (n < 0 && errno == EINTR)
        continue;
      if (n <= 0) {
        one.fd = -1;
        continue;
      }
      const std::string_view text{block.data(), static_cast<std::size_t>(n)};
      if (one.fd == err)
        (void)write_all(STDERR_FILENO, text);
      else
        line += text;
    }
    if (line.ends_with('\n')) {
      std::printf("%sprocess %d; `dilaunch status` shows it, `dilaunch down` ends it\n",
                  line.c_str(), child);
      return exit_done;
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : exit_gave_up;
}

int up(const up_arguments& a) {
  if (!a.background)
    return serve_here(a);
  std::array<int, 2> out{}, err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0)
    return complain("dilaunch: --background: no pipe");
  const pid_t child = ::fork();
  if (child < 0)
    return complain("dilaunch: --background: no process");
  if (child > 0) {
    ::close(out[1]);
    ::close(err[1]);
    return wait_for(child, out[0], err[0]);
  }
  ::close(out[0]);
  ::close(err[0]);
  ::setsid();
  ::signal(SIGPIPE, SIG_IGN); // its reader leaves
  if (const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC); nothing >= 0)
    ::dup2(nothing, STDIN_FILENO);
  ::dup2(out[1], STDOUT_FILENO);
  ::dup2(err[1], STDERR_FILENO);
  ::close(out[1]);
  ::close(err[1]);
  const int code = serve_here(a);
  std::fflush(nullptr);
  ::_exit(code);
}

} // namespace

void add_serve_commands(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<up_arguments>();
  auto& r = a->run;
  auto* c = app.add_subcommand("up", "Serve HTTP until a signal or `dilaunch down`");
  c->add_option("--topology,topology", r.topology, "Topology file (doc/topology.md)")
      ->required()
      ->option_text("FILE");
  c->add_option("--set", r.sets, "Override a topology key: --set cluster.ports.http=8080")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c->add_option("--speculation", r.speculation,
                "off, fixed:N or varlen; as --set roles.decode.speculation")
      ->option_text("HOW");
  c->add_option("--journal", r.journal,
                "Keep the journal here over runs, and with it stored responses; as --set "
                "journal.path")
      ->option_text("DIR");
  c->add_option("--log-dir", r.log_dir, "Keep the log of every process here")
      ->option_text("FOLDER");
  c->add_option("--log-level", r.log_level, "debug, info, warn, error or off")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  c->add_flag("--quiet", r.quiet, "No logs on stderr");
  c->add_option("--token-file", r.token_file, "Agent launcher: written for the agents, mode 0600")
      ->option_text("FILE");
  c->add_option("--trace-spans", a->trace_spans,
                "Record spans, so many in each process; /admin/trace of the operators' listener "
                "gives them away (doc/trace.md)")
      ->check(CLI::Range(1U, static_cast<unsigned>(trace::spans_max)))
      ->option_text("N");
  c->add_flag("--background", a->background, "Return once it serves; it goes on without terminal");
  c->callback([a, &exit_code] { exit_code = up(*a); });
}

} // namespace di::launch
