// SPDX-License-Identifier: Apache-2.0
// What processes say to each other, token files, run directories, children.
#include "launch/boot.hpp"
#include "launch/join_token.hpp"
#include "launch/node_link.hpp"
#include "launch/process.hpp"
#include "launch/remote.hpp"
#include "launch/run_dir.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

boot_config full_boot() {
  boot_config b;
  b.role = process_role::control;
  b.index = 3;
  b.node = 2;
  b.life = incarnation{0xfedcba9876543210};
  b.topology_file = "/a/\"b\".yaml";
  b.topology_text = "name: x\n# \xe2\x82\xac\n";
  b.sets = {"a=b", "c=d"};
  b.run_dir = "/tmp/di-0-1";
  b.control_endpoint = "tcp://127.0.0.1:1";
  b.bulk_endpoint = "tcp://127.0.0.1:2";
  b.curve = curve_boot{"pub", "sec", {"k1", "k2"}};
  b.control = bus::peer{"/control", incarnation{7}, "c", "b", "key"};
  b.threads = 5;
  b.trace_spans = 9;
  b.log_level = "debug";
  b.batch = batch_boot{};
  b.batch->prompts = "/p.jsonl";
  b.batch->output = "/o.jsonl";
  b.batch->trace = "/t.json";
  b.batch->progress = true;
  b.batch->window = 3;
  return b;
}

/// Waits until a child has ended.
exit_state ended(child_process& c) {
  pollfd p{c.pidfd(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 10'000), 1);
  const auto state = c.poll();
  EXPECT_TRUE(state.has_value());
  return state.value_or(exit_state{});
}

result<child_process> shell(const std::string& script) {
  process_options o;
  o.argv = {"sh", "-c", script};
  o.boot = "boot text";
  o.pipe_stdout = true;
  o.with_status = true;
  return child_process::start(o);
}

std::string all_of(int fd) {
  pollfd p{fd, POLLIN, 0};
  ::poll(&p, 1, 10'000);
  std::string text(256, '\0');
  const auto n = ::read(fd, text.data(), text.size());
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

} // namespace

TEST(boot, survives_the_way_through_json) {
  const auto b = full_boot();
  EXPECT_EQ(parse_boot(to_json(b)).value(), b);
  auto serving = full_boot();
  serving.role = process_role::gateway;
  serving.gateway = gateway_boot{2, 1, 8000, 9000, true};
  EXPECT_EQ(parse_boot(to_json(serving)).value(), serving);
  boot_config plain;
  EXPECT_EQ(parse_boot(to_json(plain)).value(), plain);
}

TEST(boot, refuses_what_is_none_and_names_the_field) {
  EXPECT_EQ(parse_boot("").error().code, ec::bad_format);
  EXPECT_EQ(parse_boot("[]").error().code, ec::bad_format);
  auto json = to_json(full_boot());
  json.replace(json.find("\"run_dir\""), 9, "\"ran_dir\"");
  EXPECT_NE(parse_boot(json).error().what.find("run_dir"), std::string::npos);
}

TEST(status, survives_the_way_through_json) {
  for (const auto& s :
       {child_status{status_kind::ready, {}, {}},
        child_status{status_kind::failed, {}, "why \"not\"\n"},
        child_status{status_kind::bound, {"/rank/1", incarnation{9}, "c", "b", "k"}, {}}}) {
    const auto line = to_json(s);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(parse_status(line).value(), s);
  }
  EXPECT_FALSE(parse_status("{\"kind\":\"gone\"}").ok());
}

TEST(node_link, survives_the_way_through_json) {
  const auto order = parse_order(
      to_json(node_order{order_kind::start, "rank 1", {"rank", "1"}, "{\"a\":\"\n\"}", 0}));
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(order->name, "rank 1");
  EXPECT_EQ(order->role.at(1), "1");
  EXPECT_EQ(order->boot, "{\"a\":\"\n\"}");
  const auto report = parse_report(
      to_json(node_report{report_kind::exited, "rank 1", "words \xff", {3, 9}, "host", 8}));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->state.signal, 9);
  EXPECT_EQ(report->cores, 8U);
  for (const char* bad : {"", "x", "{}", "{\"order\":\"dance\"}", "{\"report\":\"dance\"}"}) {
    EXPECT_FALSE(parse_order(bad).ok()) << bad;
    EXPECT_FALSE(parse_report(bad).ok()) << bad;
  }
}

TEST(shell_quoting, keeps_quotes) {
  EXPECT_EQ(shell_quoted("a'b $x"), "'a'\\''b $x'");
}

TEST(join_token, is_private_and_refused_when_it_is_not) {
  const auto dir = run_dir::make();
  ASSERT_TRUE(dir.ok()) << dir.error().what;
  const auto file = dir->path() + "/token";
  const join_token t{{"/node/0", incarnation{5}, "tcp://h:1", "tcp://h:2", "K"}, {"P", "S"}};
  ASSERT_TRUE(write_token(file, t).ok());
  struct stat s {};
  ASSERT_EQ(::stat(file.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777U, 0600U);
  const auto back = read_token(file);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->launcher, t.launcher);
  EXPECT_EQ(back->keys.secret_key, "S");
  ::chmod(file.c_str(), 0640);
  EXPECT_EQ(read_token(file).error().code, ec::refused);
  ::chmod(file.c_str(), 0600);
  std::ofstream{file} << "{}";
  EXPECT_EQ(read_token(file).error().code, ec::bad_format);
  EXPECT_EQ(read_token(dir->path()).error().code, ec::io_error);
  EXPECT_EQ(read_token(file + "2").error().code, ec::io_error);
}

TEST(run_dir, is_private_and_goes_with_its_owner) {
  std::string path;
  {
    const auto dir = run_dir::make();
    ASSERT_TRUE(dir.ok()) << dir.error().what;
    path = dir->path();
    struct stat s {};
    ASSERT_EQ(::stat(path.c_str(), &s), 0);
    EXPECT_EQ(s.st_mode & 0777U, 0700U);
    std::ofstream{path + "/x.sock"} << "x";
    // Another run sweeps what nobody holds, and leaves this one alone.
    const auto other = run_dir::make();
    ASSERT_TRUE(other.ok());
    EXPECT_NE(other->path(), path);
    EXPECT_TRUE(fs::exists(path + "/x.sock"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(child_process, gets_its_boot_text_and_reports_status) {
  auto c = shell("read line <&3; echo \"$line\"; echo ready >&4; exit 7");
  ASSERT_TRUE(c.ok()) << c.error().what;
  EXPECT_EQ(all_of(c->out.get()), "boot text\n");
  EXPECT_EQ(all_of(c->status.get()), "ready\n");
  const auto state = ended(*c);
  EXPECT_EQ(to_string(state), "exit code 7");
}

TEST(child_process, is_killed_with_its_owner_and_tells_the_signal) {
  auto c = shell("kill -SEGV $$");
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(ended(*c).signal, SIGSEGV);
  pid_t pid = 0;
  {
    auto sleeper = shell("echo up; exec cat /dev/zero >/dev/null");
    ASSERT_TRUE(sleeper.ok());
    EXPECT_EQ(all_of(sleeper->out.get()), "up\n");
    pid = sleeper->pid();
  }
  EXPECT_NE(::kill(pid, 0), 0);
}

TEST(child_process, says_at_once_that_a_program_cannot_start) {
  process_options o;
  o.argv = {"/nowhere/program"};
  const auto c = child_process::start(o);
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.error().what, "cannot start /nowhere/program: No such file or directory (errno 2)");
}

} // namespace di::launch
