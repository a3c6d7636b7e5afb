// SPDX-License-Identifier: Apache-2.0
// answer_recipe as JSON; ids that a replay draws again; streams that go on.
#include "tests/support/answer_client.hpp"

#include <gtest/gtest.h>

#include <set>

namespace di::engine::testing {
namespace {

answer_recipe full_recipe() {
  answer_recipe r;
  r.protocol = api::responses;
  r.id = "resp_1\"\xC3\xA9";
  r.model = "m";
  r.fingerprint = "fp";
  r.created = -5;
  r.parsing = {
      start_stage::reasoning_continuation, true, true, true, {"a", "\n\n"}, true, true, true, true};
  r.include_usage = true;
  r.n = 3;
  r.top_logprobs = 20;
  r.seed = 0xFFFFFFFFFFFFFFFFULL;
  r.echo_text = "once";
  r.custom_tools = {"apply_patch"};
  r.echo = {{"z", 1}, {"a", json::array({nullptr, 2.5})}};
  return r;
}

TEST(answer_recipe, comes_back_from_its_json) {
  const std::string text = full_recipe().to_json();
  const result<answer_recipe> back = answer_recipe::from_json(text);
  ASSERT_TRUE(back.ok()) << back.error().render();
  EXPECT_EQ(back->to_json(), text);
  EXPECT_EQ(back->protocol, api::responses);
  EXPECT_EQ(back->parsing.begins, start_stage::reasoning_continuation);
  EXPECT_EQ(back->parsing.stop, (std::vector<std::string>{"a", "\n\n"}));
  EXPECT_TRUE(back->parsing.one_call);
  EXPECT_EQ(back->seed, 0xFFFFFFFFFFFFFFFFULL);
  EXPECT_EQ(back->echo.dump(), R"({"z":1,"a":[null,2.5]})");
  const answer_recipe plain;
  EXPECT_EQ(answer_recipe::from_json(plain.to_json())->to_json(), plain.to_json());
}

TEST(answer_recipe, reads_notes_that_knew_no_only_call) {
  json note = json::parse(full_recipe().to_json());
  note["parsing"].erase("one_call");
  EXPECT_FALSE(answer_recipe::from_json(note.dump())->parsing.one_call);
  note["parsing"]["one_call"] = 1;
  EXPECT_FALSE(answer_recipe::from_json(note.dump()).ok());
}

TEST(answer_recipe, refuses_other_versions_and_broken_fields) {
  const auto refused = [](const std::string& text) {
    const result<answer_recipe> r = answer_recipe::from_json(text);
    return r.ok() ? std::string{"taken"} : r.error().what;
  };
  EXPECT_NE(refused("").find("no JSON object"), std::string::npos);
  EXPECT_NE(refused("[]").find("no JSON object"), std::string::npos);
  json object = json::parse(full_recipe().to_json());
  object["v"] = 2;
  EXPECT_NE(refused(object.dump()).find("version 2"), std::string::npos);
  const json whole = json::parse(full_recipe().to_json());
  for (const auto& [key, value] : whole.items()) {
    json without = whole;
    without.erase(key);
    EXPECT_NE(refused(without.dump()), "taken") << key;
    json other = whole;
    other[key] = json::array({1});
    EXPECT_NE(refused(other.dump()), "taken") << key;
  }
  object = json::parse(full_recipe().to_json());
  object["n"] = 0;
  EXPECT_NE(refused(object.dump()).find("`n`"), std::string::npos);
  object["n"] = 5'000'000'000;
  EXPECT_NE(refused(object.dump()).find("`n`"), std::string::npos);
}

const std::string two_calls =
    "why</think>Let me\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

answer_recipe tools_recipe(api protocol, const std::string& id, std::uint64_t seed) {
  answer_recipe r;
  r.protocol = protocol;
  r.id = id;
  r.seed = seed;
  r.parsing.begins = start_stage::reasoning;
  r.parsing.thinking = r.parsing.tool_calls = true;
  return r;
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t size = 1;
    while (i + size < text.size() && (static_cast<unsigned char>(text[i + size]) & 0xC0) == 0x80)
      ++size;
    parts.push_back(text.substr(i, size));
    i += size;
  }
  return parts;
}

TEST(answer_stream, draws_the_same_ids_again_and_others_for_others) {
  std::set<std::string> ids;
  for (const auto& [id, seed, choice] : {std::tuple{"a", 1, 0}, std::tuple{"a", 2, 0},
                                         std::tuple{"b", 1, 0}, std::tuple{"a", 1, 1}}) {
    for (int again = 0; again < 2; ++again) {
      answer_stream stream{std::make_shared<const answer_recipe>(
                               tools_recipe(api::chat, id, static_cast<std::uint64_t>(seed))),
                           nullptr, static_cast<std::uint32_t>(choice)};
      const client_view view = client_of(api::chat, stream_text(stream, {two_calls}));
      ASSERT_EQ(view.calls.size(), 2U);
      for (const client_view::call& c : view.calls)
        ids.insert(c.id);
    }
  }
  EXPECT_EQ(ids.size(), 8U);
  EXPECT_TRUE(ids.begin()->starts_with("call_00_"));
  EXPECT_EQ(ids.begin()->size(), 32U);
}

TEST(answer_stream, goes_on_after_any_event) {
  for (const api protocol : {api::chat, api::responses, api::messages}) {
    const auto recipe = std::make_shared<const answer_recipe>(tools_recipe(protocol, "id", 7));
    answer_stream whole{recipe, nullptr};
    const answer_events all = stream_text(whole, parts_of(two_calls));
    EXPECT_EQ(whole.events(), all.size());
    for (std::size_t seen = 0; seen <= all.size(); ++seen) {
      answer_stream again{recipe, nullptr};
      again.skip(seen);
      const answer_events rest = stream_text(again, parts_of(two_calls));
      ASSERT_EQ(rest.size(), all.size() - seen);
      for (std::size_t i = 0; i < rest.size(); ++i)
        EXPECT_EQ(event_data(rest[i]), event_data(all[seen + i]));
      EXPECT_EQ(again.final(), whole.final());
    }
  }
}

TEST(answer_stream, says_what_it_is_before_its_end) {
  answer_stream stream{std::make_shared<const answer_recipe>(tools_recipe(api::responses, "id", 7)),
                       nullptr};
  stream.ready(5, 0);
  stream.push_text("think");
  const json now = stream.final();
  EXPECT_EQ(now["status"], "in_progress");
  EXPECT_EQ(now["output"][0]["content"][0]["text"], "think");
  EXPECT_TRUE(now["usage"].is_null());
  EXPECT_TRUE(now["completed_at"].is_null());
  stream.finish();
  stream.ended_at(99);
  EXPECT_EQ(stream.final()["completed_at"], 99);
}

TEST(answer_stream, shows_failures_in_the_words_of_each_protocol) {
  const answer_failure failure{"api_error", "server_error", "gone"};
  const auto last = [&](api protocol) {
    answer_stream stream{std::make_shared<const answer_recipe>(tools_recipe(protocol, "id", 7)),
                         nullptr};
    stream.ready(5, 0);
    stream.push_text("a</think>b");
    const answer_events events = stream.fail(failure);
    EXPECT_TRUE(stream.ended());
    EXPECT_TRUE(stream.close().empty());
    return events.back();
  };
  EXPECT_EQ(
      event_data(last(api::chat)),
      R"({"error":{"message":"gone","type":"api_error","param":null,"code":"server_error"}})");
  EXPECT_EQ(event_data(last(api::messages)),
            R"({"type":"error","error":{"type":"api_error","message":"gone"}})");
  const answer_event failed = last(api::responses);
  EXPECT_EQ(failed.name, "response.failed");
  EXPECT_EQ(failed.data["response"]["status"], "failed");
  EXPECT_EQ(failed.data["response"]["error"]["message"], "gone");
  EXPECT_EQ(failed.data["response"]["output"][1]["status"], "incomplete");
}

} // namespace
} // namespace di::engine::testing
