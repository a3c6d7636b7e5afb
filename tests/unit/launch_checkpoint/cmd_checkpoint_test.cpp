// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint_report.hpp"
#include "engine/model/synthetic.hpp"
#include "launch/cmd_checkpoint.hpp"
#include "tests/support/temporary_directory.hpp"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace di::launch {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

/// What one command line did.
struct outcome {
  int code = -1;
  std::string out, err;
};

outcome dilaunch(const std::string& arguments) {
  CLI::App app{"test"};
  outcome o;
  add_checkpoint_commands(app, o.code);
  CaptureStdout();
  CaptureStderr();
  try {
    app.parse(arguments, false);
  } catch (const CLI::ParseError& e) {
    o.code = e.get_exit_code() == 0 ? 0 : 2;
  }
  o.out = GetCapturedStdout();
  o.err = GetCapturedStderr();
  return o;
}

TEST(checkpoint_commands, make_and_check_a_preset) {
  const di::testing::temporary_directory dir{"cmd"};
  const auto made = dilaunch("checkpoint make --preset tiny --shards 2 --out " + dir.path());
  EXPECT_EQ(made.code, 0);
  EXPECT_EQ(made.out, "1212 tensors, 18825292 parameters, 14413498 payload bytes (0.013 GiB), 2 "
                      "shards, seed 1\n");
  EXPECT_EQ(made.err, "") << "no progress bar but on a terminal";
  const auto checked = dilaunch("checkpoint check --ep 4 --values " + dir.path());
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_TRUE(checked.out.ends_with("no defects\n"));
  EXPECT_NE(checked.out.find("  6         reindex, ratio 1, KV of 4, among candidates, tap\n"),
            std::string::npos)
      << checked.out;
  EXPECT_NE(checked.out.find("4 slots per layer, 2 per draft layer"), std::string::npos);
}

TEST(checkpoint_commands, report_defects_with_exit_code_4) {
  const di::testing::temporary_directory dir{"cmd_defect"};
  ASSERT_EQ(dilaunch("checkpoint make --preset tiny --out " + dir.path()).code, 0);
  std::filesystem::remove(dir.path() + "/engram_token_map.i32");
  const auto checked = dilaunch("checkpoint check " + dir.path());
  EXPECT_EQ(checked.code, 4);
  EXPECT_NE(checked.err.find("not_found: engram_token_map.i32: expected 1024"), std::string::npos);
  EXPECT_NE(checked.err.find("\n1 defect\n"), std::string::npos);
  EXPECT_EQ(dilaunch("checkpoint check /no/such/dir").code, 2);
}

TEST(checkpoint_commands, find_values_that_are_no_numbers) {
  const di::testing::temporary_directory dir{"cmd_nan"};
  ASSERT_EQ(dilaunch("checkpoint make --preset tiny --out " + dir.path()).code, 0);
  const auto shard = dir.path() + "/model-00001-of-00001.safetensors";
  std::uint64_t at = 0;
  {
    const auto c = engine::checkpoint::open(dir.path()).value();
    const auto* first = c.find("layers.0.attn.attn_sink"); // the first F32 of the file
    const auto* norm = c.find("norm.weight");
    at = std::filesystem::file_size(shard) - c.data_bytes()
         + static_cast<std::uint64_t>(norm->data - first->data) + 2 * 7;
  }
  std::fstream file{shard, std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(static_cast<std::streamoff>(at));
  file.write("\xC0\x7F", 2);
  file.close();
  EXPECT_EQ(dilaunch("checkpoint check " + dir.path()).code, 0) << "headers are sound";
  const auto checked = dilaunch("checkpoint check --values " + dir.path());
  EXPECT_EQ(checked.code, 4);
  EXPECT_NE(
      checked.err.find("model-00001-of-00001.safetensors: tensor norm.weight: expected finite "
                       "values, found 1 that are not, the first at element 7"),
      std::string::npos)
      << checked.err;
}

TEST(checkpoint_commands, refuse_bad_arguments_with_exit_code_2) {
  const auto both = dilaunch("checkpoint make --preset tiny --config x --out y");
  EXPECT_EQ(both.code, 2);
  EXPECT_EQ(both.err, "bad_argument: checkpoint make: expected either --preset or --config\n");
  const auto unknown = dilaunch("checkpoint make --preset huge --out y");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err, "bad_argument: --preset: expected one of tiny, tiny-vl, small, bench, "
                         "real, found \"huge\"\n");
  EXPECT_EQ(dilaunch("checkpoint make --preset tiny").code, 2);
  EXPECT_EQ(dilaunch("checkpoint make --preset tiny --dry-run --shards 0").code, 2);
  EXPECT_EQ(dilaunch("checkpoint make --preset tiny --frobnicate").code, 2);
  EXPECT_EQ(dilaunch("checkpoint").code, 2);
  EXPECT_EQ(dilaunch("checkpoint check").code, 2);
}

TEST(checkpoint_commands, refuse_numbers_and_folders_that_make_no_sense) {
  const di::testing::temporary_directory dir{"cmd_numbers"};
  ASSERT_EQ(dilaunch("checkpoint make --preset tiny --out " + dir.path()).code, 0);
  const auto again = dilaunch("checkpoint make --preset tiny --out " + dir.path());
  EXPECT_EQ(again.code, 2);
  EXPECT_EQ(again.out, "");
  EXPECT_EQ(dilaunch("checkpoint make --preset tiny --force --out " + dir.path()).code, 0);
  const auto unwritable = dilaunch("checkpoint make --preset tiny --out /proc/x");
  EXPECT_EQ(unwritable.code, 2);
  EXPECT_EQ(unwritable.out, "");
  EXPECT_EQ(dilaunch("checkpoint check --context -1 " + dir.path()).code, 2);
  EXPECT_NE(dilaunch("checkpoint check --context 99999999 " + dir.path())
                .err.find("expected at most the model's"),
            std::string::npos);
  EXPECT_NE(dilaunch("checkpoint check --ep 1000 " + dir.path()).out.find("note: 1000 ranks"),
            std::string::npos);
  EXPECT_EQ(dilaunch("checkpoint verify --threads 0 --golden /x " + dir.path()).code, 2);
  std::ofstream{dir.path() + "/model-00009-of-00009.safetensors"} << "x";
  const auto stray = dilaunch("checkpoint check " + dir.path());
  EXPECT_EQ(stray.code, 4);
  EXPECT_NE(stray.err.find("model-00009-of-00009.safetensors: no shard"), std::string::npos);
}

TEST(checkpoint_commands, refuse_illegal_configs) {
  const di::testing::temporary_directory dir{"cmd_config"};
  std::string text{engine::preset_config("tiny").value()};
  text.replace(text.find("\"head_dim\": 64"), 14, "\"head_dim\": 60");
  std::ofstream{dir.path() + "/config.json"} << text;
  const auto made = dilaunch("checkpoint make --dry-run --config " + dir.path() + "/config.json");
  EXPECT_EQ(made.code, 2);
  EXPECT_NE(made.err.find("head_dim: expected a multiple of 32"), std::string::npos);
}

TEST(checkpoint_commands, list_every_tensor) {
  const auto made = dilaunch("checkpoint make --preset tiny --dry-run --list");
  EXPECT_EQ(made.code, 0);
  EXPECT_EQ(std::count(made.out.begin(), made.out.end(), '\n'), 1213);
  EXPECT_TRUE(made.out.starts_with("embed.weight BF16 [1024, 256]\n"));
}

TEST(checkpoint_report, plans_the_real_layout_from_headers_alone) {
  const di::testing::temporary_directory dir{"cmd_real"};
  engine::synthetic_options o;
  o.config_text = std::string{engine::preset_config("real").value()};
  o.shards = 44;
  const auto made = engine::write_synthetic_headers(o, dir.path()); // 475 GiB of holes
  ASSERT_TRUE(made.ok()) << made.error().render();
  const auto checked = dilaunch("checkpoint check --ep 64 --redundant-experts 64 " + dir.path());
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_NE(checked.out.find("96085 tensors in 44 files, 475.24 GiB"), std::string::npos)
      << checked.out;
  EXPECT_NE(checked.out.find("7 slots per layer, 3 per draft layer"), std::string::npos)
      << checked.out;
  EXPECT_NE(checked.out.find("Engram        188.83 GiB"), std::string::npos) << checked.out;
}

TEST(checkpoint_report, counts_one_expert_and_the_slots_of_a_rank) {
  const auto real = engine::parse_model_spec(engine::preset_config("real").value()).value();
  const auto sizes = engine::sizes_of(real);
  EXPECT_EQ(sizes.expert, 18800640U);
  const auto m = engine::memory_of_rank(real, 64, 64);
  EXPECT_EQ(m.slots, 7U);
  EXPECT_EQ(m.experts, 18800640ULL * (40 * 7 + 3 * 3));
  EXPECT_EQ(engine::memory_of_rank(real, 1, 1000).slots, 384U) << "never more than experts";
  EXPECT_DOUBLE_EQ(m.kv_per_token, (288 + 68) * (3 * 0.5 + 1));
}

} // namespace
} // namespace di::launch
