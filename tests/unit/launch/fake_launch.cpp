// SPDX-License-Identifier: Apache-2.0
// A stand-in for dilaunch whose children have no actors: they say bound and ready, then do what
// DI_FAKE tells: "control=done,rank 1=exit7". Tests of processes, signals and ends use it.
#include "launch/agent.hpp"
#include "launch/boot.hpp"
#include "launch/child_link.hpp"
#include "launch/cluster.hpp"
#include "launch/life_page.hpp"
#include "launch/node.hpp"
#include "launch/process.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <signal.h>
#include <sstream>
#include <unistd.h>

namespace di::launch {
namespace {

std::string behaviour(const std::string& name) {
  std::stringstream all{std::getenv("DI_FAKE") ? std::getenv("DI_FAKE") : ""};
  for (std::string item; std::getline(all, item, ',');)
    if (item.starts_with(name + "="))
      return item.substr(name.size() + 1);
  return "wait";
}

[[noreturn]] void wait_for_signal() {
  while (true)
    ::pause();
}

/// Stands in for KEEPER. `keep:N`: starts dead ranks again, is done when N have started. `quit:W`:
/// gives up with W when a rank has ended. `fence`: kills whom it hears of as ended, once. `tell`:
/// only repeats what it hears.
[[noreturn]] void keep(const std::string& act) {
  const auto wanted = act.starts_with("keep:") ? std::atoi(act.c_str() + 5) : -1;
  int started = 0;
  poll_loop loop;
  const node_listener link{loop, [&](const node_word& w, unique_fd) {
                             const auto json = to_json(w);
                             const auto at = json.find("\"word\":\"") + 8;
                             std::cerr << "heard " << json.substr(at, json.find('"', at) - at)
                                       << " node " << w.node << " rank " << w.rank << " signal "
                                       << w.state.signal << ": " << w.what << std::endl;
                             if (w.kind == node_word_kind::rank_exited
                                 && act.starts_with("quit:")) {
                               report_status({status_kind::failed, {}, act.substr(5)});
                               ::_exit(3);
                             }
                             if (w.kind == node_word_kind::rank_exited && wanted >= 0) {
                               child_word order;
                               order.rank = w.rank;
                               order.node = w.node;
                               order.number = 7;
                               tell_node(order);
                             }
                             if (w.kind == node_word_kind::rank_exited && act == "fence"
                                 && !w.what.ends_with("is gone")) {
                               child_word order;
                               order.kind = child_word_kind::kill_rank;
                               order.rank = w.rank;
                               order.node = w.node;
                               order.life = w.life;
                               tell_node(order);
                             }
                             if (w.kind == node_word_kind::rank_started && ++started == wanted)
                               ::_exit(0);
                           }};
  loop.run();
  ::_exit(1);
}

int child(const std::string& role, const std::string& index) {
  const auto name = role == "control" ? role : role + " " + index;
  const auto act = behaviour(name);
  if (act == "stubborn" || act == "deaf")
    for (const int number : {SIGTERM, SIGINT})
      ::signal(number, SIG_IGN);
  const auto boot = parse_boot(read_all(boot_fd, 1U << 20U).value()).value();
  if (boot.life_page)
    (void)hold_life();
  std::cerr << "pid " << ::getpid() << " run_dir " << boot.run_dir << std::endl;
  if (boot.recovering) {
    std::string ranks;
    for (const auto& r : boot.recovering->ranks)
      ranks += fmt::format(" {}", r.rank);
    std::cerr << "recovering lives " << boot.recovering->lives << " ranks" << ranks << std::endl;
  }
  const auto say = [](const child_status& s) { (void)write_all(status_fd, to_json(s) + "\n"); };
  if (act == "mute")
    wait_for_signal();
  child_status bound{status_kind::bound, {}, {}};
  bound.self = {"/" + role, boot.life, boot.control_endpoint, boot.bulk_endpoint, {}};
  say(bound);
  if (act == "deaf")
    wait_for_signal();
  if (act.starts_with("fail:")) {
    say({status_kind::failed, {}, act.substr(5)});
    return 3;
  }
  say({status_kind::ready, {}, {}});
  if (act.starts_with("exit"))
    return std::atoi(act.c_str() + 4);
  if (act == "noise")
    for (int i = 0; i < 20'000; ++i)
      std::cerr << "noise " << std::string(100, 'x') << " " << i << "\n";
  if (act == "segv")
    ::raise(SIGSEGV);
  if (act == "tell" || act == "fence" || act.starts_with("keep:") || act.starts_with("quit:"))
    keep(act);
  if (act == "print") {
    std::cout << "answer" << std::endl;
    return 0;
  }
  wait_for_signal();
}

int run(int argc, char** argv) {
  cluster_options o;
  const std::string file = argv[2];
  std::ifstream in{file};
  std::stringstream text;
  text << in.rdbuf();
  o.topology_text = text.str();
  for (int i = 3; i < argc; ++i)
    o.sets.emplace_back(argv[i]);
  auto t = load_topology(file, o.sets);
  if (!t.ok()) {
    std::cerr << t.error().what << "\n";
    return exit_usage;
  }
  o.plan = place_ranks(*t, this_machine()).value();
  o.config = *t;
  o.program = own_program().value();
  o.log_level = "info";
  o.token_file = std::getenv("DI_TOKEN") ? std::getenv("DI_TOKEN") : "";
  return run_cluster(std::move(o));
}

} // namespace
} // namespace di::launch

int main(int argc, char** argv) {
  using std::string_literals::operator""s;
  if (argc >= 4 && argv[1] == "child"s)
    return di::launch::child(argv[2], argv[3]);
  if (argc >= 4 && argv[1] == "node"s) {
    const auto voice = di::launch::make_pipe_voice();
    return di::launch::serve_node(
        {static_cast<std::uint32_t>(std::atoi(argv[3])), di::launch::own_program().value()},
        *voice);
  }
  if (argc >= 3 && argv[1] == "agent"s) {
    di::launch::agent_options o;
    o.token_file = argv[2];
    o.host = argc > 3 ? argv[3] : "";
    o.wait = std::chrono::seconds{5};
    di::launch::take_slurm(o);
    return di::launch::run_agent(o);
  }
  if (argc >= 3 && argv[1] == "run"s)
    return di::launch::run(argc, argv);
  return 2;
}
