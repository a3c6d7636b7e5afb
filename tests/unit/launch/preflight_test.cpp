// SPDX-License-Identifier: Apache-2.0
// What is found out about a topology's files before processes start.
#include "launch/preflight.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace di::launch {
namespace {

topology with(const std::vector<std::string>& sets) {
  return load_topology(DI_SOURCE_DIR "/launch/topologies/local1.yaml", sets).value();
}

std::string defects(const std::vector<std::string>& sets) {
  const auto checked = check_files(with(sets));
  return checked.ok() ? "" : checked.error().what;
}

} // namespace

TEST(preflight, finds_nothing_wrong_with_the_demo) {
  EXPECT_EQ(defects({}), "");
}

TEST(preflight, takes_only_shared_objects_of_this_machine_as_plugins) {
  const di::testing::temporary_directory dir{"preflight"};
  EXPECT_EQ(defects({"plugins=[/no/such.so]"}),
            "--set plugins=[/no/such.so]: plugin /no/such.so: No such file or directory");
  EXPECT_EQ(defects({"plugins=[/proc]"}), "--set plugins=[/proc]: plugin /proc: no regular file");
  std::ofstream{dir.path() + "/text.so"} << std::string(200, 'x');
  EXPECT_NE(defects({"plugins=[" + dir.path() + "/text.so]"}).find("not an ELF file"),
            std::string::npos);
  const auto self = std::filesystem::canonical("/proc/self/exe").string();
  std::filesystem::copy(self, dir.path() + "/other.so");
  std::fstream other{dir.path() + "/other.so", std::ios::in | std::ios::out | std::ios::binary};
  other.seekp(18); // e_machine
  other.write("\x08\x00", 2);
  other.close();
  EXPECT_NE(defects({"plugins=[" + dir.path() + "/other.so]"}).find("ELF machine 8"),
            std::string::npos);
}

TEST(preflight, knows_the_kinds_of_actors_if_there_are_no_plugins) {
  EXPECT_EQ(defects({"actors=[{kind: foo, at: /a/b}]"}),
            "--set actors=[{kind: foo, at: /a/b}]: unknown actor kind 'foo'; known are none");
  EXPECT_EQ(defects({"actors[0]={kind: rank, at: /a/b}", "actors[0].kind=bar"})
                .find("--set actors[0].kind=bar: "),
            0U);
}

TEST(preflight, reads_the_tokenizer) {
  const di::testing::temporary_directory dir{"preflight"};
  const auto file = dir.path() + "/words.json";
  std::ofstream{file} << "{\"x\"";
  const auto what = defects({"model.tokenizer=" + file});
  EXPECT_EQ(what.find("--set model.tokenizer=" + file + ": " + file + ": not JSON"), 0U) << what;
}

TEST(preflight, names_a_missing_model_once) {
  const auto model = open_model(with({"model.path=/no/such"}));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().what, "--set model.path=/no/such: model.path: /no/such/config.json: "
                                "open: No such file or directory");
}

} // namespace di::launch
