// SPDX-License-Identifier: Apache-2.0
// Public bug reports about streamed answers, each with the right behaviour (serving specification,
// section 6; the number of the row is in the name).
#include "tests/support/answer_client.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace di::engine::testing {
namespace {

const tokenizer& tiny() {
  static const tokenizer words =
      tokenizer::load(DI_SOURCE_DIR "/tests/golden/data/tokenizer/tiny/tokenizer.json").value();
  return words;
}

std::vector<token_id> plain_ids(const std::string& text) {
  return tiny().encode(text, encode_mode::plain).value();
}

std::vector<token_id> full_ids(const std::string& text) {
  return tiny().encode(text, encode_mode::full).value();
}

std::shared_ptr<const answer_recipe> make(api protocol, const parse_options& parsing) {
  answer_recipe r;
  r.protocol = protocol;
  r.id = "id";
  r.model = "m";
  r.parsing = parsing;
  return std::make_shared<const answer_recipe>(r);
}

constexpr std::array<api, 4> protocols{api::completions, api::chat, api::responses, api::messages};

TEST(answer_reports, row_11_never_shows_half_a_character) {
  const std::string text = "emoji 😀👩‍🚀 漢字 é";
  for (const api protocol : protocols) {
    answer_stream stream{make(protocol, {}), &tiny()};
    const answer_events events = stream_tokens(stream, plain_ids(text));
    for (const answer_event& e : events)
      EXPECT_EQ(event_data(e).find("\xEF\xBF\xBD"), std::string::npos);
    EXPECT_EQ(client_of(protocol, events).content, text);
    EXPECT_EQ(client_of_final(protocol, stream.final()).content, text);
  }
}

TEST(answer_reports, row_12_leaks_no_part_of_a_stop_string) {
  const std::string text = "The brown fox jumps";
  for (const api protocol : protocols)
    for (const bool reasons : {false, true})
      for (const bool as_json : {false, true}) {
        if (protocol == api::completions && (reasons || as_json))
          continue;
        parse_options p;
        p.stop = {"own fox"};
        p.json = as_json;
        p.begins = reasons ? start_stage::reasoning : start_stage::answer;
        const std::string before = as_json ? "[\"" : "";
        const std::string shown = before + "The br";
        for (std::size_t cut = 0; cut <= text.size(); ++cut) {
          answer_stream stream{make(protocol, p), nullptr};
          std::vector<std::string> parts{before + text.substr(0, cut), text.substr(cut)};
          if (reasons)
            parts.insert(parts.begin(), "brown fox</think>");
          const client_view view = client_of(protocol, stream_text(stream, parts));
          EXPECT_EQ(view.content, shown);
          EXPECT_EQ(view.reasoning, reasons ? "brown fox" : "");
          EXPECT_EQ(view.finish, protocol == api::responses  ? "completed"
                                 : protocol == api::messages ? "stop_sequence"
                                                             : "stop");
          EXPECT_TRUE(stream.ended_by_text().has_value());
        }
      }
}

TEST(answer_reports, row_12_holds_back_only_a_true_prefix) {
  parse_options p;
  p.stop = {"own fox"};
  answer_stream stream{make(api::chat, p), nullptr};
  stream.ready(1, 0);
  const auto shown = [&](const char* text) {
    return client_of(api::chat, stream.push_text(text)).content;
  };
  EXPECT_EQ(shown("The br"), "The br");
  EXPECT_EQ(shown("own "), "");
  EXPECT_EQ(shown("dog o"), "own dog ");
  EXPECT_EQ(client_of(api::chat, stream.finish()).content, "o");
}

TEST(answer_reports, row_12_says_after_how_many_tokens_the_choice_ended) {
  parse_options p;
  p.stop = {"none", "END"};
  const std::vector<token_id> before = plain_ids("one ");
  const std::vector<token_id> end = plain_ids("END");
  std::vector<token_id> ids = before;
  ids.insert(ids.end(), end.begin(), end.end());
  const std::size_t expected = ids.size();
  for (const token_id id : plain_ids(" two"))
    ids.push_back(id);
  for (const std::size_t group : {std::size_t{1}, std::size_t{3}, ids.size()}) {
    answer_stream stream{make(api::messages, p), &tiny()};
    const client_view view = client_of(api::messages, stream_tokens(stream, ids, group));
    EXPECT_EQ(view.content, "one ");
    ASSERT_TRUE(stream.ended_by_text().has_value());
    EXPECT_EQ(stream.ended_by_text()->tokens, expected);
    EXPECT_EQ(stream.ended_by_text()->stop_index, 1);
    EXPECT_EQ(stream.usage().completion, expected);
    EXPECT_EQ(stream.final()["stop_sequence"], "END");
  }
}

TEST(answer_reports, ends_an_answer_with_its_only_call) {
  const std::string head =
      "So:\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
      "name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n";
  const std::string second = "<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  parse_options p;
  p.tool_calls = p.one_call = true;
  for (const api protocol : {api::chat, api::responses, api::messages})
    for (const std::string& end :
         {std::string{"</｜DSML｜"}, std::string{"<｜DSML｜ invoke name=\""}}) {
      const std::string forgets = end.starts_with("</") ? " invoke>\n" : "h\">\n";
      const auto ids = full_ids(head + end + forgets + second);
      for (const std::size_t group : {std::size_t{1}, std::size_t{3}, ids.size()}) {
        answer_stream stream{make(protocol, p), &tiny()};
        const client_view view = client_of(protocol, stream_tokens(stream, ids, group));
        EXPECT_EQ(view.problem, "");
        EXPECT_EQ(view.content, "So:");
        ASSERT_EQ(view.calls.size(), 1U);
        EXPECT_EQ(view.calls[0].name, "f");
        EXPECT_EQ(json::parse(view.calls[0].arguments), (json{{"a", "x"}}));
        EXPECT_EQ(view.finish, protocol == api::responses  ? "completed"
                               : protocol == api::messages ? "tool_use"
                                                           : "tool_calls");
        const client_view whole = client_of_final(protocol, stream.final());
        EXPECT_EQ(whole.calls.size(), 1U);
        EXPECT_EQ(whole.content, view.content);
        EXPECT_EQ(whole.finish, view.finish);
        ASSERT_TRUE(stream.ended_by_text().has_value());
        EXPECT_EQ(stream.ended_by_text()->stop_index, -1);
        EXPECT_EQ(stream.ended_by_text()->tokens, full_ids(head + end).size());
        EXPECT_EQ(stream.usage().completion, full_ids(head + end).size());
      }
    }
}

TEST(answer_reports, row_13_flushes_the_end_through_the_parsers) {
  parse_options p;
  p.begins = start_stage::reasoning;
  p.tool_calls = true;
  p.stop = {"</stop>"};
  const auto view_of = [&](const std::string& text) {
    answer_stream stream{make(api::chat, p), nullptr};
    const client_view view = client_of(api::chat, stream_text(stream, {text}));
    EXPECT_EQ(view, client_of_final(api::chat, stream.final()));
    return view;
  };
  EXPECT_EQ(view_of("r</think>a</sto").content, "a</sto");
  EXPECT_EQ(view_of("r</thi").reasoning, "r</thi");
  EXPECT_EQ(view_of("r</think>a\n\n<｜DSML").content, "a\n\n<｜DSML");
  EXPECT_EQ(
      view_of("r</think>\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
              "name=\"a\" string=\"true\">x</｜DS")
          .calls.at(0)
          .arguments,
      "{\"a\": \"x</｜DS\"}");
}

TEST(answer_reports, row_16_gives_one_entry_of_logprobs_for_each_token) {
  const std::string text = "Hi 😀 there";
  const std::vector<token_id> ids = plain_ids(text);
  std::vector<proto::position_logprobs> logprobs;
  for (std::size_t i = 0; i < ids.size(); ++i)
    logprobs.push_back({-0.25 * static_cast<double>(i + 1), {ids[i], 7}, {-0.5, -1e300}});
  answer_recipe recipe;
  recipe.top_logprobs = 2;
  for (const std::size_t group : {std::size_t{1}, std::size_t{2}, ids.size()}) {
    answer_stream stream{std::make_shared<const answer_recipe>(recipe), &tiny()};
    stream.ready(1, 0);
    json streamed = json::array();
    for (std::size_t i = 0; i < ids.size(); i += group) {
      const std::size_t n = std::min(group, ids.size() - i);
      for (const answer_event& e :
           stream.push(std::span{ids}.subspan(i, n), std::span{logprobs}.subspan(i, n)))
        for (const json& entry : e.data["choices"][0]["logprobs"]["content"])
          streamed.push_back(entry);
    }
    stream.finish();
    ASSERT_EQ(streamed.size(), ids.size());
    EXPECT_EQ(stream.final()["choices"][0]["logprobs"]["content"], streamed);
    std::string bytes;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(streamed[i]["logprob"], logprobs[i].logprob);
      EXPECT_EQ(streamed[i]["top_logprobs"][1]["logprob"], -9999.0);
      for (const json& b : streamed[i]["bytes"])
        bytes += static_cast<char>(b.get<unsigned>());
    }
    EXPECT_EQ(bytes, text);
  }
}

TEST(answer_reports, row_16_keeps_logprobs_of_reasoning_and_calls_apart) {
  answer_recipe recipe;
  recipe.top_logprobs = 0;
  recipe.parsing.begins = start_stage::reasoning;
  recipe.parsing.tool_calls = true;
  const std::vector<token_id> ids = full_ids(
      "why</think>so\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>");
  const std::vector<proto::position_logprobs> logprobs(ids.size(), {-1.0, {}, {}});
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), &tiny()};
  stream.push(ids, logprobs);
  stream.finish();
  const auto joined = [&](const char* list) {
    std::string out;
    const json final = stream.final();
    for (const json& entry : final["choices"][0]["logprobs"][list])
      out += entry["token"].get<std::string>();
    return out;
  };
  EXPECT_EQ(joined("reasoning_content"), "why");
  EXPECT_EQ(joined("content"), "so");
}

TEST(answer_reports, completions_have_logprobs_of_the_older_shape) {
  answer_recipe recipe;
  recipe.protocol = api::completions;
  recipe.top_logprobs = 1;
  recipe.echo_text = "é ";
  const std::vector<token_id> ids = plain_ids("a b");
  std::vector<proto::position_logprobs> logprobs;
  for (const token_id id : ids)
    logprobs.push_back({-1.5, {id}, {-1.5}});
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), &tiny()};
  stream.push(ids, logprobs);
  stream.finish(answer_end::length);
  const json choice = stream.final()["choices"][0];
  EXPECT_EQ(choice["text"], "é a b");
  EXPECT_EQ(choice["finish_reason"], "length");
  const json& lists = choice["logprobs"];
  EXPECT_EQ(lists["tokens"].size(), ids.size());
  EXPECT_EQ(lists["text_offset"][0], 2); // characters, not bytes
  EXPECT_EQ(lists["token_logprobs"][0], -1.5);
  EXPECT_EQ(lists["top_logprobs"][0], (json{{lists["tokens"][0].get<std::string>(), -1.5}}));
}

TEST(answer_reports, completions_show_markers_and_keep_line_feeds) {
  answer_stream stream{make(api::completions, {}), nullptr};
  const std::string text = "\n\na</think>b\n<｜DSML｜ calls>";
  EXPECT_EQ(client_of(api::completions, stream_text(stream, {text})).content, text);
  parse_options p;
  p.stop = {"END"};
  p.include_stop = true;
  answer_stream stops{make(api::completions, p), nullptr};
  EXPECT_EQ(client_of(api::completions, stream_text(stops, {"a EN", "D b"})).content, "a END");
}

TEST(answer_reports, row_18_shows_no_markup_when_markers_come_byte_by_byte) {
  const std::string command = "cd x && make 2>&1";
  const std::string text = "why</think>Look\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"bash\">\n"
                           "<｜DSML｜ parameter name=\"command\" string=\"true\">"
                           + command
                           + "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  parse_options p;
  p.begins = start_stage::reasoning;
  p.tool_calls = p.thinking = true;
  for (const api protocol : {api::chat, api::responses, api::messages}) {
    for (const bool by_token : {false, true}) {
      answer_stream stream{make(protocol, p), &tiny()};
      std::vector<std::string> parts;
      for (std::size_t i = 0; i < text.size(); ++i) {
        if (parts.empty() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
          parts.emplace_back();
        parts.back() += text[i];
      }
      const client_view view = client_of(protocol, by_token ? stream_tokens(stream, full_ids(text))
                                                            : stream_text(stream, parts));
      EXPECT_EQ(view.problem, "");
      EXPECT_EQ(view.reasoning, "why");
      EXPECT_EQ(view.content, "Look");
      ASSERT_EQ(view.calls.size(), 1U);
      EXPECT_EQ(json::parse(view.calls[0].arguments)["command"], command);
      const client_view whole = client_of_final(protocol, stream.final());
      EXPECT_EQ(json::parse(whole.calls.at(0).arguments), json::parse(view.calls[0].arguments));
      EXPECT_EQ(whole.content, view.content);
    }
  }
}

TEST(answer_reports, row_23_messages_count_the_prompt_once_and_mix_no_blocks) {
  parse_options p;
  p.begins = start_stage::reasoning;
  p.tool_calls = p.thinking = true;
  answer_stream stream{make(api::messages, p), nullptr};
  const answer_events first = stream.ready(100, 64);
  const json& usage = first[0].data["message"]["usage"];
  EXPECT_EQ(usage["input_tokens"], 36);
  EXPECT_EQ(usage["cache_read_input_tokens"], 64);
  EXPECT_EQ(first[1].data["content_block"]["type"], "thinking");
  const answer_events rest = stream.push_text("why</think>so");
  EXPECT_EQ(rest[0].data["delta"]["type"], "thinking_delta");
  EXPECT_EQ(rest[1].data["delta"]["type"], "signature_delta");
  EXPECT_EQ(rest[2].name, "content_block_stop");
  EXPECT_EQ(rest[3].data["index"], 1);
  const answer_events last = stream.finish(answer_end::length);
  EXPECT_EQ(last[1].data["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(last[1].data["usage"]["output_tokens"], 1);
  EXPECT_EQ(last[2].name, "message_stop");
}

TEST(answer_reports, row_24_responses_send_every_done_event_with_the_same_ids) {
  parse_options p;
  p.begins = start_stage::reasoning;
  p.tool_calls = p.thinking = true;
  answer_stream stream{make(api::responses, p), nullptr};
  const answer_events events =
      stream_text(stream, {"why</think>so\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n",
                           "</｜DSML｜ invoke>\n</｜DSML｜ calls>"});
  EXPECT_EQ(client_of(api::responses, events).problem, ""); // gapless, ids fit, all done
  const json final = stream.final();
  EXPECT_EQ(events.back().data["response"], final);
  std::size_t done = 0;
  for (const answer_event& e : events)
    if (e.name == "response.output_item.done") {
      EXPECT_EQ(e.data["item"], final["output"][done++]);
    }
  EXPECT_EQ(done, 3U);
  const auto count = [&](std::string_view name) {
    return std::count_if(events.begin(), events.end(),
                         [&](const answer_event& e) { return e.name == name; });
  };
  EXPECT_EQ(count("response.output_text.done"), 1);
  EXPECT_EQ(count("response.reasoning_text.done"), 1);
  EXPECT_EQ(count("response.function_call_arguments.done"), 1);
  EXPECT_EQ(count("response.content_part.done"), 2);
}

TEST(answer_reports, row_25_chat_usage_comes_once_behind_all_choices_and_only_when_asked) {
  for (const bool asked : {false, true}) {
    answer_recipe recipe;
    recipe.n = 2;
    recipe.include_usage = asked;
    const auto shared = std::make_shared<const answer_recipe>(recipe);
    answer_stream a{shared, nullptr, 0};
    answer_stream b{shared, nullptr, 1};
    answer_events events = stream_text(a, {"one", " two"});
    const answer_events more = stream_text(b, {"three"}, answer_end::length);
    events.insert(events.end(), more.begin(), more.end());
    for (const answer_event& e : events) {
      EXPECT_EQ(e.data.contains("usage"), asked);
      EXPECT_TRUE(!asked || e.data["usage"].is_null());
    }
    const std::array<const answer_stream*, 2> both{&a, &b};
    const answer_events last = last_events(*shared, both);
    ASSERT_EQ(last.size(), asked ? 1U : 0U);
    if (asked) {
      EXPECT_TRUE(last[0].data["choices"].empty());
      EXPECT_EQ(last[0].data["usage"]["prompt_tokens"], 11);
      EXPECT_EQ(last[0].data["usage"]["completion_tokens"], 3);
    }
    const json whole = whole_answer(*shared, both);
    EXPECT_EQ(whole["choices"][1]["index"], 1);
    EXPECT_EQ(whole["choices"][1]["message"]["content"], "three");
    EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");
    EXPECT_EQ(whole["usage"]["total_tokens"], 14);
  }
}

TEST(answer_reports, responses_show_custom_tools_by_their_text) {
  answer_recipe recipe;
  recipe.protocol = api::responses;
  recipe.id = "resp_1";
  recipe.parsing.tool_calls = true;
  recipe.custom_tools = {"apply_patch"};
  answer_stream stream{std::make_shared<const answer_recipe>(recipe), nullptr};
  const answer_events events = stream_text(
      stream, {"<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"apply_patch\">\n<｜DSML｜ parameter "
               "name=\"input\" string=\"true\">*** Begin</｜DSML｜ parameter>\n</｜DSML｜ "
               "invoke>\n</｜DSML｜ calls>"});
  const json final = stream.final();
  const json& item = final["output"][0];
  EXPECT_EQ(item["type"], "custom_tool_call");
  EXPECT_EQ(item["id"], "ctc_resp_1_0");
  EXPECT_EQ(item["input"], "*** Begin");
  EXPECT_EQ(events[events.size() - 3].name, "response.custom_tool_call_input.done");
}

} // namespace
} // namespace di::engine::testing
