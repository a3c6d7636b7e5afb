// SPDX-License-Identifier: Apache-2.0
// Children under a low limit of descriptors, and token files that are in the way.
#include "launch/join_token.hpp"
#include "launch/process.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sys/resource.h>

namespace di::launch {

TEST(child_process, names_the_limit_of_descriptors_when_it_is_too_low) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{40, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  process_options o;
  o.argv = {"/bin/true"};
  const auto child = child_process::start(o);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code, ec::limit_exceeded);
  EXPECT_EQ(child.error().what, "cannot start /bin/true: a process may open 40 descriptors, at "
                                "least 128 are needed (ulimit -n 128)");
  EXPECT_TRUE(child_process::start(o).ok());
}

TEST(join_token, never_replaces_a_file) {
  const di::testing::temporary_directory dir{"token"};
  const auto file = dir.path() + "/token";
  EXPECT_TRUE(check_token_file(file).ok());
  std::ofstream{file} << "mine";
  EXPECT_EQ(check_token_file(file).error().code, ec::duplicate);
  EXPECT_EQ(write_token(file, {}).error().code, ec::duplicate);
  std::string kept;
  std::ifstream{file} >> kept;
  EXPECT_EQ(kept, "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator{dir.path()}, {}), 1);
  EXPECT_EQ(check_token_file(dir.path() + "/no/token").error().code, ec::io_error);
  EXPECT_EQ(check_token_file(dir.path() + "/new").ok(), true);
}

TEST(join_token, is_written_once_and_read_back) {
  const di::testing::temporary_directory dir{"token"};
  join_token t;
  t.launcher.prefix = "/node/0";
  const auto written = write_token(dir.path() + "/token", t);
  ASSERT_TRUE(written.ok()) << written.error().what;
  EXPECT_EQ(read_token(dir.path() + "/token").value().launcher.prefix, "/node/0");
}

} // namespace di::launch
