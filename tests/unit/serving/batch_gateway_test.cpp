// SPDX-License-Identifier: Apache-2.0
// The batch front end writes what its core ends by itself.
#include "actors/batch_gateway.hpp"

#include <gtest/gtest.h>

namespace di::test {
namespace {

using namespace std::chrono_literals;

TEST(batch_gateway, writes_and_finishes_what_ends_at_its_deadline_though_nobody_answers) {
  actors::batch_parts parts;
  engine::batch_limits limits;
  limits.vocab = 100;
  limits.context_tokens = 50;
  parts.work = engine::read_batch(R"({"id": "late", "prompt_ids": [1], "deadline_ms": 300})",
                                  limits, "/gateway/0", [] { return std::uint64_t{7}; });
  ASSERT_FALSE(parts.work.entries.at(0).refused);
  parts.options.deadline_grace = 200ms;
  std::vector<std::string> lines;
  std::size_t finished = 0;
  parts.write = [&](std::string_view line) -> result<void> {
    lines.emplace_back(line);
    return {};
  };
  parts.finished = [&](const proto::batch_finished& m) { finished += m.failed; };
  actors::batch_gateway_actor gateway{std::move(parts)};
  outbox out;
  ASSERT_TRUE(gateway.on(proto::start_batch{}, {}, out).ok());
  timer deadline{};
  for (const any_effect& e : out.take())
    if (const auto* armed = std::get_if<effect::arm>(&e); armed && armed->after == 500ms)
      deadline = armed->which;
  EXPECT_TRUE(lines.empty());
  ASSERT_TRUE(gateway.on_due(deadline, instant{} + 500ms, out).ok());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("deadline_exceeded"), std::string::npos) << lines[0];
  EXPECT_EQ(finished, 1U);
}

} // namespace
} // namespace di::test
