// SPDX-License-Identifier: Apache-2.0
// Where the gateway deviates from the reference encoding, and that strict_reference does not.
// The list: engine/chat/request_rules.hpp and doc/serving.md.
#include "tests/unit/chat/request_helpers.hpp"

namespace di::engine {
namespace {

using testing::accepted, testing::chat_body, testing::messages_body, testing::refused,
    testing::responses_body, testing::strict;

TEST(deviations, max_completion_tokens_counts) {
  const std::string body = chat_body(R"("max_tokens": 5, "max_completion_tokens": 7)");
  EXPECT_EQ(accepted(api::chat, body).max_tokens, 7U);
  EXPECT_EQ(accepted(api::chat, body, strict()).max_tokens, 5U);
}

TEST(deviations, range_errors_name_the_field_that_was_sent) {
  const auto says = [](const request_error& error, const std::string& field) {
    EXPECT_EQ(error.message,
              "Invalid " + field + " value, the valid range of " + field + " is [1, 393216]");
    EXPECT_EQ(error.param, field);
  };
  says(refused(api::chat, chat_body(R"("max_tokens": 0)")), "max_tokens");
  says(refused(api::chat, chat_body(R"("max_tokens": 5, "max_completion_tokens": 0)")),
       "max_completion_tokens");
  says(refused(api::responses, responses_body(R"("max_output_tokens": 400000)")),
       "max_output_tokens");
  EXPECT_EQ(refused(api::responses, responses_body(R"("max_output_tokens": 0)"), strict()).message,
            "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]");
  EXPECT_EQ(
      refused(api::responses, responses_body(R"("max_output_tokens": 5, "min_tokens": 6)")).message,
      "min_tokens (6) is above max_output_tokens (5)");
}

TEST(deviations, more_than_one_choice) {
  EXPECT_EQ(accepted(api::chat, chat_body(R"("n": 4)")).sampling.n, 4U);
  EXPECT_EQ(refused(api::chat, chat_body(R"("n": 17)")).message,
            "Invalid n value, the valid range of n is [1, 16]");
  EXPECT_EQ(refused(api::chat, chat_body(R"("n": 4)"), strict()).message,
            "Invalid n value (currently only n = 1 is supported)");
}

TEST(deviations, effort_may_be_a_number) {
  const std::string body = chat_body(R"("reasoning_effort": 33)");
  EXPECT_NE(joined(accepted(api::chat, body).segments).find("Reasoning Effort: 33 (range"),
            std::string::npos);
  EXPECT_EQ(refused(api::chat, body, strict()).phase, request_error::stage::parse);
  for (const char* const bad : {"0", "101", "1.5", "-1", "true"})
    EXPECT_EQ(refused(api::chat, chat_body(R"("reasoning_effort": )" + std::string{bad})).param,
              "reasoning_effort");
}

TEST(deviations, developer_is_a_system_message) {
  const std::string body =
      R"({"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "developer", "content": "D"},
          {"role": "user", "content": "Hi"}], "reasoning_effort": "none"})";
  EXPECT_EQ(joined(accepted(api::chat, body).segments),
            "<｜begin▁of▁sentence｜><｜System｜>D<｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(refused(api::chat, body, strict()).phase, request_error::stage::parse);
}

std::string call_history(std::string_view arguments, std::string_view reasoning) {
  return R"({"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "", )"
         + std::string{reasoning}
         + R"("tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": )"
         + std::string{arguments} +
         R"(}}]}, {"role": "tool", "tool_call_id": "c", "content": "R"}],
    "tools": [{"type": "function", "function": {"name": "f"}}]})";
}

TEST(deviations, arguments_may_be_an_object) {
  const std::string object = call_history(R"({"a": 1})", "");
  const std::string text = call_history(R"("{\"a\": 1}")", "");
  EXPECT_EQ(accepted(api::chat, object).segments, accepted(api::chat, text).segments);
  EXPECT_EQ(refused(api::chat, object, strict()).phase, request_error::stage::parse);
}

TEST(deviations, reasoning_is_reasoning_content) {
  const std::string body = call_history("\"{}\"", R"("reasoning": "because", )");
  EXPECT_NE(joined(accepted(api::chat, body).segments).find("<think>because</think>"),
            std::string::npos);
  EXPECT_EQ(joined(accepted(api::chat, body, strict()).segments).find("because"),
            std::string::npos);
}

TEST(deviations, one_call_may_be_all_that_an_answer_has) {
  const std::string no = R"("parallel_tool_calls": false)";
  const std::string chat = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  const std::string flat = R"("tools": [{"type": "function", "name": "f"}])";
  const std::string messages = R"("tools": [{"name": "f", "input_schema": {"type": "object"}}],
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": )";
  for (const auto& [protocol, body] :
       {std::pair{api::chat, chat_body(chat + ", " + no)},
        std::pair{api::responses, responses_body(flat + ", " + no)},
        std::pair{api::messages, messages_body(messages + "true}")}}) {
    EXPECT_TRUE(accepted(protocol, body).parsing.one_call) << body;
    EXPECT_FALSE(accepted(protocol, body, strict()).parsing.one_call) << body;
  }
  EXPECT_FALSE(accepted(api::chat, chat_body(chat)).parsing.one_call);
  EXPECT_FALSE(accepted(api::chat, chat_body(no)).parsing.one_call);
  EXPECT_FALSE(accepted(api::messages, messages_body(messages + "false}")).parsing.one_call);
}

TEST(deviations, any_forces_a_call_unless_the_model_thinks) {
  const std::string fields = R"("tools": [{"name": "f", "input_schema": {"type": "object"}}],
                                "tool_choice": {"type": "any"})";
  const std::string quiet = messages_body(fields + R"(, "thinking": {"type": "disabled"})");
  EXPECT_EQ(accepted(api::messages, quiet).parsing.begins, start_stage::tool_calls);
  EXPECT_EQ(accepted(api::messages, quiet, strict()).parsing.begins, start_stage::answer);
  const prepared_request thinks = accepted(api::messages, messages_body(fields));
  EXPECT_EQ(thinks.parsing.begins, start_stage::reasoning);
  EXPECT_EQ(thinks.warnings.size(), 1U);
}

TEST(deviations, penalties_and_the_engine_own_parameters_are_used) {
  const std::string body = chat_body(
      R"("frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.1, "top_k": 40,
         "min_p": 0.05, "logit_bias": {"17": -100, "4": 2.5}, "stop_token_ids": [1, 2],
         "ignore_eos": true, "min_tokens": 3, "priority": 2, "cache_salt": "s", "user": "u")");
  const prepared_request r = accepted(api::chat, body);
  EXPECT_EQ(r.sampling.frequency_penalty, 0.5);
  EXPECT_EQ(r.sampling.presence_penalty, -1);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(r.sampling.top_k, 40U);
  EXPECT_EQ(r.sampling.min_p, 0.05);
  ASSERT_EQ(r.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(r.sampling.logit_bias[0].token, 17);
  EXPECT_EQ(r.sampling.logit_bias[0].bias, -100);
  EXPECT_EQ(r.sampling.stop_token_ids, (std::vector<token_id>{1, 2}));
  EXPECT_TRUE(r.sampling.ignore_eos);
  EXPECT_EQ(r.sampling.min_tokens, 3U);
  EXPECT_EQ(r.priority, 2);
  EXPECT_EQ(r.cache_salt, "s");
  EXPECT_EQ(r.user, "u");
  const prepared_request reference = accepted(api::chat, body, strict());
  EXPECT_EQ(reference.sampling.frequency_penalty, 0);
  EXPECT_EQ(reference.sampling.top_k, 0U);
  EXPECT_TRUE(reference.sampling.logit_bias.empty());
  EXPECT_TRUE(reference.sampling.stop_token_ids.empty());
}

TEST(deviations, seeds_and_penalties_count_in_all_protocols) {
  for (const api protocol : {api::chat, api::responses, api::messages}) {
    const std::string fields = R"("seed": 5, "presence_penalty": 1)";
    const std::string body = protocol == api::responses ? responses_body(fields)
                             : protocol == api::chat    ? chat_body(fields)
                                                        : messages_body(fields);
    const prepared_request r = accepted(protocol, body);
    EXPECT_TRUE(r.seed_given);
    EXPECT_EQ(r.sampling.seed, 5U);
    EXPECT_EQ(r.sampling.presence_penalty, 1);
    EXPECT_TRUE(r.warnings.empty());
  }
  EXPECT_FALSE(accepted(api::messages, messages_body(R"("seed": 5)"), strict()).seed_given);
}

TEST(deviations, fields_of_other_protocols_are_named) {
  EXPECT_EQ(accepted(api::messages, messages_body(R"("n": 2)")).warnings,
            std::vector<std::string>{"unknown field `n` is ignored"});
  EXPECT_EQ(accepted(api::responses, responses_body(R"("stop": "x")")).warnings,
            std::vector<std::string>{"unknown field `stop` is ignored"});
}

TEST(deviations, an_unknown_model_is_not_found) {
  const std::string body = R"({"model": "gpt", "messages": [{"role": "user", "content": "Hi"}]})";
  const request_error error = refused(api::chat, body);
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_EQ(error.param, "model");
  const request_error reference = refused(api::chat, body, strict());
  EXPECT_EQ(reference.status, 400);
  EXPECT_EQ(reference.code, "invalid_request_error");
  EXPECT_FALSE(reference.param);
}

TEST(deviations, repeated_keys_are_refused) {
  const std::string body = chat_body(R"("top_p": 5, "top_p": 1)");
  EXPECT_NE(refused(api::chat, body).message.find("the key \"top_p\" occurs twice"),
            std::string::npos);
  accepted(api::chat, body, strict());
}

TEST(deviations, definitions_of_strict_tools_are_kept) {
  const std::string body = chat_body(
      R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters":
         {"type": "object", "properties": {"o": {"$ref": "#/$defs/o"}},
          "$defs": {"o": {"type": "object", "properties": {"x": {"type": "integer"}}}}}}}])");
  EXPECT_NE(joined(accepted(api::chat, body).segments)
                .find(R"("required": ["o"], "$defs": {"o": {"type": "object", "properties": )"
                      R"({"x": {"type": "integer"}}, "additionalProperties": false, )"
                      R"("required": ["x"]}}}})"),
            std::string::npos);
  EXPECT_EQ(joined(accepted(api::chat, body, strict()).segments).find("$defs\": {"),
            std::string::npos);
}

TEST(deviations, unknown_fields_are_named) {
  const std::string body = chat_body(R"("foo": 1, "metadata": {}, "functions": [])");
  const prepared_request r = accepted(api::chat, body);
  EXPECT_EQ(r.warnings, (std::vector<std::string>{"unknown field `foo` is ignored",
                                                  "unknown field `functions` is ignored"}));
  EXPECT_TRUE(accepted(api::chat, body, strict()).warnings.empty());
  request_rules strict_fields;
  strict_fields.strict_fields = true;
  EXPECT_EQ(refused(api::chat, body, strict_fields).param, "foo");
}

TEST(deviations, constraints_that_are_not_enforced_are_named) {
  const std::string f = R"("name": "f", "strict": true)";
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "string"}},
      "required": ["a"], "additionalProperties": false})";
  const std::string chat_tool = R"("tools": [{"type": "function", "function": {"name": "e"}},
      {"type": "function", "function": {)"
                                + f + R"(, "parameters": )" + schema + "}}]";
  const std::string quiet = R"(, "thinking": {"type": "disabled"}, "tool_choice": )";
  const struct {
    api protocol;
    std::string body;
    std::string field; ///< that the warning names
  } cases[] = {
      {api::chat, chat_body(chat_tool), "tools[1].strict"},
      {api::responses,
       responses_body(R"("tools": [{"type": "function", )" + f + R"(, "parameters": )" + schema
                      + "}]"),
       "tools[0].strict"},
      {api::messages, messages_body(R"("tools": [{)" + f + R"(, "input_schema": )" + schema + "}]"),
       "tools[0].strict"},
      {api::responses, responses_body(R"("tools": [{"type": "custom", "name": "p", "format":
          {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}}])"),
       "tools[0].format"},
      {api::chat,
       chat_body(R"("tools": [{"type": "function", "function": {"name": "e"}}])" + quiet
                 + R"("required")"),
       "tool_choice"},
      {api::chat,
       chat_body(R"("tools": [{"type": "function", "function": {"name": "e"}}])" + quiet
                 + R"({"type": "function", "function": {"name": "e"}})"),
       "tool_choice"},
      {api::chat, chat_body(R"("chat_template_kwargs": {"thinking": false})"),
       "chat_template_kwargs"},
      {api::chat, chat_body(R"("extra_body": {"guided_json": {}})"), "extra_body"},
  };
  request_rules strict_fields, constraints;
  strict_fields.strict_fields = true;
  constraints.constraints = true;
  for (const auto& it : cases) {
    const auto warnings = accepted(it.protocol, it.body).warnings;
    ASSERT_EQ(warnings.size(), 1U) << it.body;
    EXPECT_NE(warnings[0].find(it.field), std::string::npos) << warnings[0];
    EXPECT_TRUE(accepted(it.protocol, it.body, strict()).warnings.empty()) << it.body;
    EXPECT_EQ(refused(it.protocol, it.body, strict_fields).param, it.field);
    const bool unknown = it.field == "chat_template_kwargs" || it.field == "extra_body";
    EXPECT_EQ(accepted(it.protocol, it.body, constraints).warnings.size(), unknown ? 1U : 0U);
  }
}

TEST(deviations, constrained_output_is_refused_by_type) {
  const std::string schema =
      R"({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}})";
  for (const std::string& field :
       {R"("response_format": )" + schema,
        std::string{R"("response_format": {"type": "regex", "regex": "a"})"},
        std::string{R"("guided_json": {})"}, std::string{R"("guided_regex": "a")"},
        std::string{R"("guided_choice": ["a"])"}, std::string{R"("guided_grammar": "x")"},
        std::string{R"("structured_outputs": {})"}, std::string{R"("ebnf": "x")"}}) {
    const request_error error = refused(api::chat, chat_body(field));
    EXPECT_EQ(error.status, 400) << field;
    EXPECT_EQ(error.code, "unsupported_parameter") << field;
    EXPECT_TRUE(error.param) << field;
  }
  EXPECT_EQ(refused(api::responses,
                    responses_body(R"("text": {"format": {"type": "json_schema", "name": "n",
                                      "schema": {"type": "object"}}})"))
                .code,
            "unsupported_parameter");
  EXPECT_EQ(refused(api::messages, messages_body(R"("output_config": {"format":
                                   {"type": "json_schema", "schema": {"type": "object"}}})"))
                .code,
            "unsupported_parameter");
  request_rules able;
  able.constraints = true;
  EXPECT_EQ(
      accepted(api::chat, chat_body(R"("response_format": )" + schema), able).constraint->schema,
      R"({"type":"object"})");
  EXPECT_TRUE(
      accepted(api::chat, chat_body(R"("response_format": {"type": "json_object"})")).parsing.json);
}

TEST(deviations, a_prompt_that_fills_the_context_is_too_long) {
  const prepared_request r = accepted(api::chat, chat_body(""));
  const auto full = resolve_max_tokens(r, 10, 10);
  ASSERT_TRUE(std::holds_alternative<request_error>(full));
  EXPECT_EQ(std::get<request_error>(full).code, "context_length_exceeded");
  EXPECT_EQ(std::get<std::uint32_t>(resolve_max_tokens(r, 10, 10, strict())), 1U);
  EXPECT_EQ(std::get<std::uint32_t>(resolve_max_tokens(r, 10, 100)), 90U);
  request_rules few;
  few.max_tokens_max = 20;
  EXPECT_EQ(std::get<std::uint32_t>(resolve_max_tokens(r, 10, 100, few)), 20U);
  EXPECT_EQ(std::get<request_error>(resolve_max_tokens(r, 11, 10, strict())).code,
            "invalid_request_error");
}

} // namespace
} // namespace di::engine
