// SPDX-License-Identifier: Apache-2.0
// Lines of `dilaunch run`: every field, every mistake, and the lines that come out.
#include "engine/core/batch_io.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>

namespace di::engine {
namespace {

std::string mistake(std::string_view line) {
  std::string id;
  const auto read = parse_batch_line(line, id);
  return read ? "" : read.error().render();
}

TEST(batch_io, reads_every_field) {
  std::string id;
  const auto read = parse_batch_line(
      R"({"id":"a","prompt":"x","special_tokens":true,"max_tokens":5,"temperature":0.5,"top_p":0.9,
          "top_k":-1,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,
          "repetition_penalty":1.5,"logit_bias":{"7":-100,"8":2.5},"logprobs":2,
          "seed":18446744073709551615,"n":3,"stop":["a","b"],"stop_token_ids":[4],
          "include_stop_str_in_output":true,"ignore_eos":true,"min_tokens":2,"forced_ids":[1,2]})",
      id);
  ASSERT_TRUE(read) << read.error().render();
  EXPECT_EQ(id, "\"a\"");
  EXPECT_EQ(read->prompt, "x");
  EXPECT_TRUE(read->special_tokens);
  const proto::sampling_params& s = read->sampling;
  EXPECT_EQ(s.max_tokens, 5U);
  EXPECT_EQ(s.min_tokens, 2U);
  EXPECT_EQ(s.n, 3U);
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 0U);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.repetition_penalty, 1.5);
  ASSERT_EQ(s.logit_bias.size(), 2U);
  EXPECT_EQ(s.logit_bias[1].token, 8);
  EXPECT_EQ(s.logprobs, 2);
  EXPECT_EQ(s.seed, ~std::uint64_t{0});
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_token_ids, std::vector<token_id>{4});
  EXPECT_TRUE(s.include_stop);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.forced_ids, (std::vector<token_id>{1, 2}));
}

TEST(batch_io, reads_how_a_request_competes_with_others) {
  std::string id;
  const auto read = parse_batch_line(
      R"({"prompt_ids":[1],"priority":-10,"deadline_ms":1500,"tenant":"acme"})", id);
  ASSERT_TRUE(read) << read.error().render();
  EXPECT_EQ(read->priority, -10);
  EXPECT_EQ(read->deadline_ms, 1'500U);
  EXPECT_EQ(read->tenant, "acme");
  const auto spec =
      prepare_request(*read, request_id{1}, {nullptr, 10, 100}, [] { return std::uint64_t{1}; });
  ASSERT_TRUE(spec) << spec.error().render();
  EXPECT_EQ(spec->priority, -10);
  EXPECT_EQ(spec->deadline_ms, 1'500U);
  EXPECT_EQ(spec->tenant, "acme");
  const auto wrong = [](const std::string& field) {
    return mistake("{\"prompt_ids\":[1]," + field + "}");
  };
  EXPECT_EQ(wrong("\"priority\":11"), "bad_argument: priority: 11 lies outside [-10, 10]");
  EXPECT_EQ(wrong("\"priority\":\"high\""),
            "bad_argument: priority: expected a whole number, found string");
  EXPECT_EQ(wrong("\"deadline_ms\":0"),
            "bad_argument: deadline_ms: 0 lies outside [1, 2592000000]");
  EXPECT_EQ(wrong("\"deadline_ms\":1.5"),
            "bad_argument: deadline_ms: expected a whole number, found 1.5");
  EXPECT_EQ(wrong("\"tenant\":\"\""), "bad_argument: tenant: 0 bytes; 1 to 64");
  EXPECT_EQ(wrong("\"tenant\":\"" + std::string(65, 'x') + "\""),
            "bad_argument: tenant: 65 bytes; 1 to 64");
  EXPECT_EQ(wrong("\"tenant\":3"), "bad_argument: tenant: expected a string, found number");
}

TEST(batch_io, takes_short_forms) {
  std::string id;
  const auto read =
      parse_batch_line(R"({"id":12,"prompt_ids":[1],"stop":"x","logprobs":true})", id);
  ASSERT_TRUE(read);
  EXPECT_EQ(id, "12");
  EXPECT_EQ(read->sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(read->sampling.logprobs, 0);
  EXPECT_FALSE(read->has_seed);
}

TEST(batch_io, names_the_field_of_a_mistake) {
  EXPECT_EQ(mistake(R"({"prompt":5})"), "bad_argument: prompt: expected a string, found number");
  EXPECT_EQ(mistake(R"({"prompt":"a","temperature":"hot"})"),
            "bad_argument: temperature: expected a number, found string");
  EXPECT_EQ(mistake(R"({"prompt":"a","max_tokens":-1})"),
            "bad_argument: max_tokens: -1 lies outside [0, 2147483647]");
  EXPECT_EQ(mistake(R"({"prompt":"a","n":1.5})"),
            "bad_argument: n: expected a whole number, found 1.5");
  EXPECT_EQ(mistake(R"({"prompt":"a","logit_bias":{"x":1}})"),
            "bad_argument: logit_bias: \"x\" is no token id");
  EXPECT_EQ(mistake(R"({"prompt":"a","stop":[1]})"),
            "bad_argument: stop[0]: expected a string, found number");
  EXPECT_EQ(mistake(R"({"prompt_ids":[1,null]})"),
            "bad_argument: prompt_ids[1]: expected a whole number, found null");
  EXPECT_EQ(mistake(R"({"prompt":"a","prompt_ids":[1]})"),
            "bad_argument: prompt and prompt_ids: give one of them");
  EXPECT_EQ(mistake(R"({})"), "bad_argument: prompt: there is neither prompt nor prompt_ids");
  EXPECT_TRUE(mistake(R"({"prompt":"a","temprature":1})")
                  .starts_with("bad_argument: temprature: unknown key"));
  EXPECT_EQ(mistake(R"({"prompt":"a","prompt":"b"})"),
            "bad_format: the key \"prompt\" stands twice");
  EXPECT_EQ(mistake(R"([1])"), "bad_format: expected an object, found array");
  EXPECT_EQ(mistake(R"({"prompt":"a)"), "bad_format: no JSON at column 13");
  EXPECT_TRUE(mistake(std::string(100'000, '[')).starts_with("bad_format"));
}

TEST(batch_io, checks_ranges_and_context_and_draws_a_seed) {
  batch_limits limits;
  limits.vocab = 100;
  limits.context_tokens = 50;
  const auto all = read_batch(R"({"id":1,"prompt_ids":[1,2,3]}
{"id":2,"prompt_ids":[1],"temperature":3}

{"id":3,"prompt_ids":[100]}
{"id":4,"prompt_ids":[1],"max_tokens":50}
{"id":5,"prompt":"text"}
{"id":6,"prompt_ids":[1],"seed":-1,"max_tokens":49}
{"id":7,"prompt_ids":[]})",
                              limits, "/gateway/0", [] { return 77; });
  ASSERT_EQ(all.entries.size(), 7U);
  ASSERT_EQ(all.requests.size(), 2U);
  EXPECT_EQ(all.requests[0].sampling.seed, 77U);
  EXPECT_EQ(all.requests[0].sampling.max_tokens, 47U); // what the context leaves
  EXPECT_EQ(all.requests[0].gateway, "/gateway/0");
  EXPECT_EQ(all.requests[1].sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(all.entries[1].refused->what, "temperature: 3 lies outside [0, 2]");
  EXPECT_EQ(all.entries[2].line, 4U);
  EXPECT_EQ(all.entries[2].refused->what, "prompt_ids[0]: token id 100 lies outside [0, 100)");
  EXPECT_EQ(all.entries[3].refused->code, ec::context_exceeded);
  EXPECT_EQ(all.entries[4].refused->what, "prompt: the model has no tokenizer; give prompt_ids");
  EXPECT_EQ(all.entries[6].refused->what, "prompt: has no tokens, at least 1");
}

TEST(batch_io, takes_a_salt_for_the_prefix_cache) {
  batch_limits limits;
  limits.vocab = 100;
  limits.context_tokens = 50;
  const std::string lines = R"({"prompt_ids":[1],"prefix_salt":"mine"}
{"prompt_ids":[1]}
{"prompt_ids":[1],"prefix_salt":5}
{"prompt_ids":[1],"prefix_salt":")"
                            + std::string(257, 'x') + "\"}";
  const auto all = read_batch(lines, limits, "/gateway/0", [] { return 77; });
  ASSERT_EQ(all.requests.size(), 2U);
  EXPECT_EQ(all.requests[0].prefix_salt, "mine");
  EXPECT_EQ(all.requests[1].prefix_salt, "");
  EXPECT_EQ(all.entries[2].refused->code, ec::bad_argument);
  EXPECT_EQ(all.entries[3].refused->what, "prefix_salt: 257 bytes; at most 256");
}

TEST(batch_io, lets_a_line_say_how_it_is_computed) {
  batch_limits limits;
  limits.vocab = 100;
  limits.context_tokens = 50;
  limits.drafts = 5;
  limits.defaults = {proto::prefix_mode::exact, proto::prefill_mode::compact, 140};
  const auto all = read_batch(
      R"({"prompt_ids":[1]}
{"prompt_ids":[1],"speculation":"off","prefix":"off","prefill":"full"}
{"prompt_ids":[1],"speculation":"varlen","prefix":"bounded"}
{"prompt_ids":[1],"speculation":"fixed:5"}
{"prompt_ids":[1],"speculation":"fixed:6"}
{"prompt_ids":[1],"speculation":"fixed:0"}
{"prompt_ids":[1],"speculation":5}
{"prompt_ids":[1],"prefix":"on"}
{"prompt_ids":[1],"prefill":"mask"})",
      limits, "/gateway/0", [] { return 77; });
  ASSERT_EQ(all.requests.size(), 4U);
  const proto::request_spec &plain = all.requests[0], &off = all.requests[1];
  EXPECT_TRUE(plain.speculate);
  EXPECT_EQ(plain.drafts, 0); // as the rank is set
  EXPECT_EQ(plain.prefix, proto::prefix_mode::exact);
  EXPECT_EQ(plain.prefill, proto::prefill_mode::compact);
  EXPECT_EQ(plain.keep_rows, 140U);
  EXPECT_FALSE(off.speculate);
  EXPECT_EQ(off.prefix, proto::prefix_mode::off);
  EXPECT_EQ(off.prefill, proto::prefill_mode::full);
  EXPECT_EQ(off.keep_rows, 0U);
  EXPECT_EQ(all.requests[2].drafts, -1);
  EXPECT_EQ(all.requests[2].prefix, proto::prefix_mode::bounded);
  EXPECT_EQ(all.requests[3].drafts, 5);
  EXPECT_EQ(all.entries[4].refused->what, "speculation: fixed:6, but the model makes 5 drafts");
  EXPECT_EQ(all.entries[5].refused->what,
            "speculation: fixed:0 is not known; choose off, fixed:N (N from 1 to 16) or varlen");
  EXPECT_EQ(all.entries[6].refused->what, "speculation: expected a string, found number");
  EXPECT_EQ(all.entries[7].refused->what,
            "prefix: \"on\" is not known; choose off, exact or bounded");
  EXPECT_EQ(all.entries[8].refused->what, "prefill: \"mask\" is not known; choose full or compact");

  limits.drafts = 0; // a model without draft layers
  const auto none = read_batch("{\"prompt_ids\":[1],\"speculation\":\"varlen\"}\n"
                               "{\"prompt_ids\":[1],\"speculation\":\"off\"}",
                               limits, "/gateway/0", [] { return 77; });
  ASSERT_EQ(none.requests.size(), 1U);
  EXPECT_EQ(none.entries[0].refused->what,
            "speculation: varlen, but the model has no draft layers; write off");
}

TEST(batch_io, renders_one_choice_flat_and_several_as_a_list) {
  batch_entry entry;
  entry.line = 3;
  entry.id = "\"x\"";
  entry.prompt_tokens = 2;
  entry.sampling.seed = 9;
  entry.sampling.logprobs = 1;
  collected_choice c;
  c.tokens = {5, 6, 7};
  c.logprobs = {{-1.5, {5}, {-1.5}}, {-0.25, {6}, {-0.25}}, {-0.125, {7}, {-0.125}}};
  c.end.reason = proto::finish_reason::stop;
  c.end.kept_tokens = 2; // a stop string cut the third
  const std::vector<collected_choice> one{c}, two{c, c};
  const auto flat = nlohmann::json::parse(render_completion(entry, one, nullptr, {}));
  EXPECT_EQ(flat["id"], "x");
  EXPECT_EQ(flat["ids"], (std::vector<int>{5, 6}));
  EXPECT_EQ(flat["output_tokens"], 2); // as many as ids
  EXPECT_EQ(flat["finish_reason"], "stop");
  EXPECT_EQ(flat["logprobs"].size(), 2U);
  EXPECT_EQ(flat["logprobs"][1]["logprob"], -0.25);
  EXPECT_EQ(flat["seed"], 9);
  EXPECT_TRUE(flat.contains("timings"));
  const auto list = nlohmann::json::parse(render_completion(entry, two, nullptr, {}));
  EXPECT_EQ(list["choices"].size(), 2U);
  EXPECT_EQ(list["choices"][1]["index"], 1);
  EXPECT_EQ(list["output_tokens"], 4);
  entry.refused = error{ec::bad_argument, "n: 0"};
  const auto refused = nlohmann::json::parse(render_refusal(entry));
  EXPECT_EQ(refused["error"]["message"], "line 3: n: 0");
  EXPECT_EQ(refused["id"], "x");
  entry.id.clear();
  EXPECT_EQ(nlohmann::json::parse(render_refusal(entry))["id"], nullptr);
}

TEST(batch_io, survives_any_line) {
  const std::string good =
      R"({"id":"a","prompt":"x","logit_bias":{"7":-100},"stop":["a","b"],"seed":12,"n":3})";
  std::mt19937 random{11};
  batch_limits limits;
  limits.vocab = 100;
  limits.context_tokens = 50;
  int fine = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string line = good;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) {
      const std::size_t at = random() % line.size();
      if (random() % 3 == 0)
        line.erase(at, 1 + random() % 5);
      else
        line[at] = static_cast<char>(random() % 256);
      if (line.empty())
        line.assign(1, '{');
    }
    const auto all = read_batch(line, limits, "/gateway/0", [] { return 1; });
    for (const batch_entry& entry : all.entries) {
      fine += !entry.refused;
      if (entry.refused) {
        EXPECT_TRUE(nlohmann::json::accept(render_refusal(entry)));
      }
    }
  }
  EXPECT_EQ(fine, 0); // without a tokenizer no prompt is taken
}

} // namespace
} // namespace di::engine
