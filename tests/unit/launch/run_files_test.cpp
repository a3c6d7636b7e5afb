// SPDX-License-Identifier: Apache-2.0
// What the launcher makes of --prompts and --output.
#include "launch/run_files.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

namespace di::launch {
namespace {

namespace fs = std::filesystem;

class run_files_test : public testing::Test {
protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "di-run-files-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    home_ = name;
    std::ofstream{prompts()} << "one\n";
  }
  void TearDown() override { fs::remove_all(home_); }

  std::string prompts() const { return home_ / "prompts"; }
  static std::string content(const std::string& path) {
    std::ifstream in{path, std::ios::binary};
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  fs::path home_;
};

TEST_F(run_files_test, refuses_one_file_for_both_and_leaves_it_as_it_is) {
  fs::create_symlink("prompts", home_ / "soft");
  fs::create_hard_link(prompts(), home_ / "hard");
  for (const std::string name : {"prompts", "soft", "hard"}) {
    run_files files;
    const auto opened = files.open(prompts(), home_ / name);
    ASSERT_FALSE(opened.ok()) << name;
    EXPECT_EQ(opened.error().code, ec::bad_argument);
    EXPECT_NE(opened.error().what.find("is the same file as --prompts"), std::string::npos);
    EXPECT_EQ(content(prompts()), "one\n");
  }
}

TEST_F(run_files_test, opens_files_for_another_process) {
  run_files files;
  const auto b = files.open(prompts(), home_ / "out");
  ASSERT_TRUE(b.ok()) << b.error().what;
  EXPECT_EQ(b->prompts_name, prompts());
  EXPECT_EQ(content(b->prompts), "one\n");
  std::ofstream{b->output} << "answer";
  EXPECT_EQ(content(home_ / "out"), "answer");
}

TEST_F(run_files_test, reads_a_pipe_to_its_end) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "two\n", 4), 4);
  ::close(ends[1]);
  run_files files;
  const auto b = files.open("/dev/fd/" + std::to_string(ends[0]), "-");
  ::close(ends[0]);
  ASSERT_TRUE(b.ok()) << b.error().what;
  EXPECT_EQ(content(b->prompts), "two\n");
  EXPECT_EQ(b->output, "");
}

TEST_F(run_files_test, says_what_is_wrong_with_a_path) {
  const auto mistake = [](const std::string& in, const std::string& out) {
    run_files files;
    const auto opened = files.open(in, out);
    return opened.ok() ? std::string{} : opened.error().what;
  };
  EXPECT_EQ(mistake(home_, ""), "--prompts " + home_.string() + ": is a folder");
  EXPECT_EQ(mistake("/nowhere/x", ""), "--prompts /nowhere/x: No such file or directory");
  EXPECT_EQ(mistake(prompts(), "/nowhere/x"), "--output /nowhere/x: No such file or directory");
}

TEST_F(run_files_test, leaves_an_earlier_trace_as_it_is_unless_the_run_finished) {
  const std::string trace = home_ / "t.json";
  std::ofstream{trace} << "old";
  for (const bool keep : {false, true}) {
    run_files files;
    ASSERT_TRUE(files.open(prompts(), home_ / "out").ok());
    const auto rings = files.open_trace(trace);
    ASSERT_TRUE(rings.ok()) << rings.error().what;
    std::ofstream{*rings} << "new";
    EXPECT_EQ(content(trace), "old");
    ASSERT_TRUE(files.end_trace(keep).ok());
    EXPECT_EQ(content(trace), keep ? "new" : "old");
    EXPECT_FALSE(fs::exists(trace + ".unfinished"));
  }
}

TEST_F(run_files_test, leaves_no_trace_of_a_run_that_gave_up) {
  run_files files;
  ASSERT_TRUE(files.open(prompts(), home_ / "out").ok());
  ASSERT_TRUE(files.open_trace(home_ / "t").ok());
  ASSERT_TRUE(files.end_trace(false).ok());
  EXPECT_FALSE(fs::exists(home_ / "t"));
  EXPECT_FALSE(fs::exists(home_ / "t.unfinished"));
}

TEST_F(run_files_test, writes_a_trace_into_a_pipe_as_it_comes) {
  const std::string pipe = home_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  run_files files;
  ASSERT_TRUE(files.open(prompts(), home_ / "out").ok());
  const auto rings = files.open_trace(pipe);
  ASSERT_TRUE(rings.ok()) << rings.error().what;
  EXPECT_TRUE(files.rings().empty());
  std::ofstream{*rings} << "span";
  char seen[8] = {};
  EXPECT_EQ(::read(reader, seen, sizeof seen), 4);
  ::close(reader);
  ASSERT_TRUE(files.end_trace(true).ok());
  EXPECT_TRUE(fs::is_fifo(pipe));
}

} // namespace
} // namespace di::launch
