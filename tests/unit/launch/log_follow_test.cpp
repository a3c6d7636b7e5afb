// SPDX-License-Identifier: Apache-2.0
// Log files as `dilaunch logs` shows them.
#include "launch/log_follow.hpp"
#include "launch/process.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>
#include <unistd.h>

namespace di::launch {
namespace {

struct folder : testing::temporary_directory {
  folder() : temporary_directory{"log_follow"} {}
  void add(const std::string& file, const std::string& text) const {
    std::ofstream{path() + "/" + file, std::ios::app} << text;
  }
};

std::string line(int second, const std::string& text) {
  return "2026-01-01T00:00:0" + std::to_string(second) + ".000000Z " + text + "\n";
}

std::string shown(const log_follow_options& o) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const unique_fd in{ends[0]};
  unique_fd out{ends[1]};
  const auto done = follow_logs(o, out.get());
  EXPECT_TRUE(done.ok()) << done.error().what;
  out.reset();
  return read_all(in.get(), 1U << 20U).value();
}

} // namespace

TEST(log_follow, puts_lines_of_all_processes_in_the_order_of_their_times) {
  const folder f;
  f.add("rank_0.log", line(2, "b") + "no time\n" + line(4, "d"));
  f.add("control.log", line(1, "a") + line(3, "c") + "unfinished");
  f.add("other.txt", line(0, "x"));
  log_follow_options o;
  o.folder = f.path();
  EXPECT_EQ(shown(o), "[control] " + line(1, "a") + "[rank 0] " + line(2, "b")
                          + "[rank 0] no time\n[control] " + line(3, "c") + "[rank 0] "
                          + line(4, "d"));
}

TEST(log_follow, chooses_by_role_rank_text_and_number_of_lines) {
  const folder f;
  for (const char* name : {"rank_0", "rank_1", "rank_11", "control", "gateway_0"})
    f.add(std::string{name} + ".log", line(1, "first") + line(2, "second"));
  log_follow_options o;
  o.folder = f.path();
  o.rank = 1;
  o.lines = 1;
  EXPECT_EQ(shown(o), "[rank 1] " + line(2, "second"));
  o.rank.reset();
  o.role = "gateway";
  o.lines = 0;
  o.grep = "first";
  EXPECT_EQ(shown(o), "[gateway 0] " + line(1, "first"));
  o.folder = "/nowhere";
  EXPECT_EQ(follow_logs(o, 1).error().code, ec::not_found);
}

TEST(log_follow, goes_on_with_what_comes_until_the_process_ends) {
  const folder f;
  f.add("control.log", line(1, "before"));
  process_options p;
  p.argv = {"cat"};
  p.pipe_stdin = true;
  auto run = child_process::start(p).value();
  log_follow_options o;
  o.folder = f.path();
  o.follow = true;
  o.pid = run.pid();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const unique_fd in{ends[0]};
  unique_fd out{ends[1]};
  std::jthread follower{[&] { EXPECT_TRUE(follow_logs(o, out.get()).ok()); }};
  std::string seen(4096, '\0');
  const auto next = [&] {
    const auto n = ::read(in.get(), seen.data(), seen.size());
    return std::string{seen.data(), n > 0 ? static_cast<std::size_t>(n) : 0};
  };
  EXPECT_EQ(next(), "[control] " + line(1, "before"));
  f.add("rank_0.log", line(2, "new file"));
  EXPECT_EQ(next(), "[rank 0] " + line(2, "new file"));
  f.add("control.log", line(3, "after"));
  EXPECT_EQ(next(), "[control] " + line(3, "after"));
  run.in.reset(); // it ends
}

} // namespace di::launch
