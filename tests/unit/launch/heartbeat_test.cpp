// SPDX-License-Identifier: Apache-2.0
// Who is silent, and who only was not asked.
#include "launch/heartbeat_core.hpp"

#include <gtest/gtest.h>

namespace di::launch {
namespace {

using std::chrono::milliseconds;
using nodes = std::vector<std::uint32_t>;

} // namespace

TEST(heartbeat, suspects_a_silent_node_and_loses_it_when_its_lease_is_over) {
  heartbeat_core core{{}};
  core.add(1, milliseconds{0});
  core.add(2, milliseconds{0});
  nodes silent, lost;
  std::chrono::nanoseconds suspected_at{}, lost_at{};
  for (milliseconds t{0}; t < milliseconds{1'500}; t += milliseconds{100}) {
    core.heard(1, t);
    const auto found = core.round(t);
    EXPECT_TRUE(found.answered.empty());
    if (!found.silent.empty())
      suspected_at = t;
    if (!found.lost.empty())
      lost_at = t;
    silent.insert(silent.end(), found.silent.begin(), found.silent.end());
    lost.insert(lost.end(), found.lost.begin(), found.lost.end());
  }
  EXPECT_EQ(silent, nodes{2});
  EXPECT_EQ(lost, nodes{2});
  EXPECT_EQ(suspected_at, milliseconds{500});
  EXPECT_EQ(lost_at, milliseconds{1'000});
  EXPECT_EQ(core.nodes(), nodes{1});
}

TEST(heartbeat, takes_back_a_suspicion) {
  heartbeat_core core{{}};
  core.add(1, milliseconds{0});
  for (milliseconds t{0}; t < milliseconds{500}; t += milliseconds{100})
    EXPECT_TRUE(core.round(t).silent.empty());
  EXPECT_EQ(core.round(milliseconds{500}).silent, nodes{1});
  core.heard(1, milliseconds{550});
  EXPECT_EQ(core.round(milliseconds{600}).answered, nodes{1});
  EXPECT_TRUE(core.round(milliseconds{700}).lost.empty());
}

TEST(heartbeat, excuses_nodes_when_this_process_was_not_run) {
  heartbeat_core core{{}};
  core.add(1, milliseconds{0});
  EXPECT_TRUE(core.round(milliseconds{0}).silent.empty());
  const auto found = core.round(milliseconds{30'000});
  EXPECT_TRUE(found.silent.empty());
  EXPECT_TRUE(found.lost.empty());
  EXPECT_EQ(core.silence(1, milliseconds{30'000}), milliseconds{100});
}

TEST(heartbeat, forgets_and_learns_nodes) {
  heartbeat_core core{{}};
  core.add(1, milliseconds{0});
  core.remove(1);
  core.heard(1, milliseconds{10});
  EXPECT_TRUE(core.nodes().empty());
  core.add(1, milliseconds{5'000});
  EXPECT_EQ(core.nodes(), nodes{1});
}

} // namespace di::launch
