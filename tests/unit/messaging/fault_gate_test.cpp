// SPDX-License-Identifier: Apache-2.0
// Rules of faults, and what they do to frames.
#include "messaging/base/probe.hpp"
#include "messaging/bus/fault_gate.hpp"

#include <gtest/gtest.h>

namespace di::bus {
namespace {

TEST(fault_rules, read_back_as_they_were_written) {
  const std::string text = "link from=/rank/3 to=/rank/* drop=1 duplicate=0.5 corrupt=0.25 "
                           "delay_us=20000 jitter_us=7\n"
                           "point process=/rank/3 name=rank.step_drawn probability=1 skip=20 "
                           "times=1 signal=9\n"
                           "ballast process=/control bytes=4096\n";
  const auto rules = parse_fault_rules(text);
  ASSERT_TRUE(rules.ok()) << rules.error().what;
  EXPECT_EQ(to_text(*rules), text);
  EXPECT_EQ(rules->links.at(0).delay_us, 20'000U);
  EXPECT_EQ(rules->points.at(0).signal, 9);
}

TEST(fault_rules, name_the_line_that_is_wrong) {
  EXPECT_NE(parse_fault_rules("\nlink from=/a to=/b drop=much\n").error().what.find("line 2: drop"),
            std::string::npos);
  EXPECT_NE(parse_fault_rules("link from=/a\n").error().what.find("to is missing"),
            std::string::npos);
  EXPECT_NE(parse_fault_rules("bend from=/a\n").error().what.find("unknown rule bend"),
            std::string::npos);
  EXPECT_NE(parse_fault_rules("link from=/a to=/b dorp=1\n").error().what.find("dorp"),
            std::string::npos);
}

TEST(fault_gate, touches_only_its_own_direction) {
  fault_gate gate{"/rank/5", ""};
  gate.put_in_force(*parse_fault_rules("link from=/rank/3 to=/rank/5 drop=1\n"
                                       "link from=/rank/7 to=/rank/6 drop=1\n"));
  EXPECT_TRUE(gate.judge("/rank/3#00000000000000aa", 800).drop);
  EXPECT_FALSE(gate.judge("/rank/33#00000000000000aa", 800).drop);
  EXPECT_FALSE(gate.judge("/rank/7#00000000000000aa", 800).drop);
  gate.put_in_force({});
  EXPECT_FALSE(gate.touches_links());
}

TEST(fault_gate, turns_bits_within_the_frame_and_doubles_it) {
  fault_gate gate{"/control", ""};
  gate.put_in_force(*parse_fault_rules("link from=/rank/* to=/control corrupt=1 duplicate=1\n"));
  for (int i = 0; i < 100; ++i) {
    const auto v = gate.judge("/rank/1#0000000000000001", 24);
    EXPECT_TRUE(v.twice);
    ASSERT_TRUE(v.flip.has_value());
    EXPECT_LT(*v.flip, 24U);
  }
}

TEST(fault_gate, hands_held_frames_out_in_the_order_of_their_times) {
  fault_gate gate{"/control", ""};
  const auto frame = [](std::int64_t due, std::string id) {
    fault_gate::held h;
    h.due = {due};
    h.routing_id = std::move(id);
    return h;
  };
  gate.hold(frame(30, "c"));
  gate.hold(frame(10, "a"));
  gate.hold(frame(10, "b"));
  EXPECT_EQ(gate.next_due(), instant{10});
  EXPECT_FALSE(gate.take_due({9}).has_value());
  EXPECT_EQ(gate.take_due({20})->routing_id, "a");
  EXPECT_EQ(gate.take_due({20})->routing_id, "b");
  EXPECT_FALSE(gate.take_due({20}).has_value());
  EXPECT_TRUE(gate.touches_links()); // one is still held
}

TEST(fault_gate, arms_points_once_and_disarms_them) {
  probe::reset();
  fault_gate gate{"/rank/2", ""};
  const auto rules = *parse_fault_rules("point process=/rank/2 name=here times=1\n"
                                        "point process=/rank/1 name=there times=1\n");
  gate.put_in_force(rules);
  EXPECT_TRUE(fault_point("here"));
  gate.put_in_force(rules); // still the same: does not begin again
  EXPECT_FALSE(fault_point("here"));
  EXPECT_FALSE(fault_point("there"));
  gate.put_in_force({});
  gate.put_in_force(rules);
  EXPECT_TRUE(fault_point("here"));
  probe::reset();
}

} // namespace
} // namespace di::bus
