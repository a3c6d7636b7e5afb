// SPDX-License-Identifier: Apache-2.0
// A batch that cannot go on: its GATEWAY ends with a reason, and no line is lost.
#include "actors/serving_boot.hpp"
#include "tests/support/local_office.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <future>
#include <unistd.h>

namespace di::test {
namespace {

using namespace std::chrono_literals;

/// What ends a batch of `prompts` that nobody serves.
struct broken_batch {
  local_office office;
  std::unique_ptr<actors::system> system =
      std::make_unique<actors::system>(actors::system_options{}, office);
  actors::batch_settings settings;
  std::promise<error> ended;
  std::size_t unanswered = 0, of = 0;

  explicit broken_batch(std::string prompts) {
    settings.prompts = std::move(prompts);
    settings.broke_off = [this](std::size_t n, std::size_t m) { unanswered = n, of = m; };
    settings.ended = [this](const error& e) { ended.set_value(e); };
  }
  /// Spawns it, and begins as a settled placement does. @return whether it has ended
  std::optional<error> run() {
    actors::model_outline model;
    model.spec.vocab_size = 100;
    model.spec.max_position_embeddings = 50;
    DI_CHECK(actors::spawn_batch_gateway(*system, model, std::move(settings)).ok());
    envelope begin;
    begin.to = "/gateway/0";
    begin.from = "/test";
    begin.body = parcel::of(proto::start_batch{});
    DI_CHECK(office.post(std::move(begin)).ok());
    auto end = ended.get_future();
    if (end.wait_for(10s) != std::future_status::ready)
      return std::nullopt;
    return end.get();
  }
};

const std::string refused_then_good = "no json\n{\"id\":\"a\",\"prompt_ids\":[1]}\n";

TEST(broken_batch, ends_with_the_reason_why_output_cannot_be_written) {
  broken_batch b{refused_then_good};
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  b.settings.write = actors::descriptor_writer(full);
  const auto end = b.run();
  ::close(full);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, ec::io_error);
  EXPECT_EQ(end->what, "output: write failed: No space left on device");
  EXPECT_EQ(b.unanswered, 2U);
  EXPECT_EQ(b.of, 2U);
}

TEST(broken_batch, ends_as_cancelled_when_the_reader_has_gone) {
  broken_batch b{refused_then_good};
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  b.settings.write = actors::descriptor_writer(ends[1]);
  const auto end = b.run();
  ::close(ends[1]);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, ec::cancelled);
}

TEST(broken_batch, gives_each_prompt_a_line_when_it_is_stopped) {
  broken_batch b{refused_then_good + "{\"prompt_ids\":[2],\"n\":2}\n"};
  std::vector<nlohmann::json> lines;
  b.settings.write = [&](std::string_view line) -> result<void> {
    lines.push_back(nlohmann::json::parse(line));
    if (lines.size() == 1) // it has begun
      b.system->stop("/gateway/0");
    return {};
  };
  const auto end = b.run();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, ec::ok);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["id"], nullptr);
  EXPECT_EQ(lines[0]["line"], 1);
  EXPECT_EQ(lines[1]["id"], "a");
  EXPECT_EQ(lines[1]["error"]["code"], "cancelled");
  EXPECT_EQ(lines[2]["id"], 3);
  EXPECT_EQ(lines[2]["choices"][1]["finish_reason"], "error");
  EXPECT_EQ(b.unanswered, 2U);
  EXPECT_EQ(b.of, 3U);
}

TEST(broken_batch, tells_when_an_actor_of_control_ends) {
  local_office office;
  actors::system system{{}, office};
  std::atomic<int> ended{0};
  actors::control_settings s;
  s.ended = [&](const error& e) { ended += e.code == ec::internal; };
  DI_CHECK(actors::spawn_control_serving(system, {}, s).ok());
  for (const char* path : {"/control/scheduler", "/control/journal", "/control/rebalancer"})
    system.stop(path, {ec::internal, "a bug"});
  EXPECT_TRUE(system.stop_all(10s));
  EXPECT_EQ(ended, 3);
}

} // namespace
} // namespace di::test
