// SPDX-License-Identifier: Apache-2.0
// The registry's refusals, each with a sentence that says what to do.
#include "actors/kit.hpp"
#include "actors/registry.hpp"

#include <gtest/gtest.h>

namespace {

struct ping {
  static constexpr di::wire_id wire{0x8201};
  DI_FIELDS(ping)
};
struct pong { // takes ping's number
  static constexpr di::wire_id wire{0x8201};
  DI_FIELDS(pong)
};
struct thief { // takes a number of the bus
  static constexpr di::wire_id wire{0x0001};
  DI_FIELDS(thief)
};

struct low { // outside the users' numbers
  static constexpr di::wire_id wire{0x7FFF};
  DI_FIELDS(low)
};

template <class M>
struct core_of {
  explicit core_of(const di::actor_config& cfg) { (void)cfg.u64("n", 0); }
  void on(const M&) {}
};
template <class M, char Letter>
struct type_of {
  static constexpr char name[2] = {Letter, 0};
  static constexpr std::string_view kind{name, 1};
  using core = core_of<M>;
  using protocol = di::protocol<di::reacts_to<M>>;
};

using first = type_of<ping, 'a'>;
using twin = type_of<ping, 'b'>;
using clash = type_of<pong, 'c'>;

TEST(registry, knows_what_the_program_enrolled) {
  const auto types = di::actors::make_registry();
  ASSERT_TRUE(types.ok());
  EXPECT_TRUE(types.value().find("a").ok());
  EXPECT_TRUE(di::actors::make_registry().value().find("a").ok()); // a second registry as well
}

TEST(registry, lists_known_kinds_for_an_unknown_one) {
  di::actors::registry types;
  EXPECT_EQ(types.find("x").error().render(), "not_found: unknown actor kind 'x'; known are none");
  types.add(di::actor_type_of<first>()).value();
  types.add(di::actor_type_of<twin>()).value();
  EXPECT_EQ(types.find("x").error().render(), "not_found: unknown actor kind 'x'; known are a, b");
}

TEST(registry, refuses_a_kind_twice) {
  di::actors::registry types;
  types.add(di::actor_type_of<first>()).value();
  EXPECT_EQ(types.add(di::actor_type_of<first>()).error().render(),
            "duplicate: actor kind 'a' exists already");
}

TEST(registry, lets_two_kinds_share_a_message_but_not_a_number) {
  di::actors::registry types;
  types.add(di::actor_type_of<first>()).value();
  EXPECT_TRUE(types.add(di::actor_type_of<twin>()).ok());
  EXPECT_EQ(types.add(di::actor_type_of<clash>()).error().render(),
            "duplicate: actor kind 'c': wire id 0x8201 of message pong is taken by ping");
  EXPECT_FALSE(types.find("c").ok()); // no trace left
}

TEST(registry, keeps_the_numbers_of_the_bus) {
  auto types = di::actors::make_registry().value();
  EXPECT_EQ(
      types.add(di::actor_type_of<type_of<thief, 't'>>()).error().render(),
      "duplicate: actor kind 't': wire id 0x0001 of message thief is taken by request_failed");
}

TEST(registry, keeps_our_kinds_and_numbers_for_us) {
  di::actors::registry types;
  auto type = di::actor_type_of<first>();
  type.kind = "rank";
  EXPECT_EQ(types.add(type).error().render(), "duplicate: actor kind 'rank' is built in");
  EXPECT_EQ(
      types.add(di::actor_type_of<type_of<low, 'l'>>()).error().render(),
      "bad_argument: actor kind 'l': message low has wire id 0x7fff; users have 0x8000 and up");
}

TEST(registry, gives_the_codecs_of_all_its_messages) {
  di::actors::registry types;
  types.add(di::actor_type_of<first>()).value();
  const auto codecs = types.codecs();
  EXPECT_NE(codecs->find(ping::wire), nullptr);
  EXPECT_NE(codecs->find(di::proto::step_finished::wire), nullptr);
}

TEST(registry, checks_the_config_when_it_makes_a_core) {
  di::actors::registry types;
  types.add(di::actor_type_of<first>()).value();
  di::actor_context context;
  context.config = di::actor_config{{{"m", "1", "t.yaml:1:2"}}, "a at /x"};
  EXPECT_EQ(types.make("a", context).error().render(),
            "bad_config: t.yaml:1:2: config of a at /x: m: unknown key; known are n");
}

TEST(registry, refuses_files_that_are_no_plugins) {
  di::actors::registry types;
  const auto missing = di::actors::load_plugin("/no/such.so", types);
  EXPECT_EQ(missing.error().code, di::ec::not_found);
  const auto text = di::actors::load_plugin(DI_SOURCE_DIR "/CMakeLists.txt", types);
  EXPECT_EQ(text.error().code, di::ec::bad_format);
  EXPECT_NE(text.error().what.find("CMakeLists.txt"), std::string::npos);
}

} // namespace

using enrolled_type = first;
DI_REGISTER_ACTOR(enrolled_type)
