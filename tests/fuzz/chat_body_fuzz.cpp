// SPDX-License-Identifier: Apache-2.0
// Bodies of the four protocols: a small and valid error, or a prompt of known control tokens.
#include "engine/chat/prepare.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <algorithm>
#include <array>

namespace {

using di::engine::api, di::engine::prepare_text, di::engine::prepared_request,
    di::engine::prompt_encoding, di::engine::prompt_segment, di::engine::request_error,
    di::engine::request_rules, di::engine::resolve_max_tokens;

constexpr std::array<std::string_view, 21> control = {"<｜begin▁of▁sentence｜>",
                                                      "<｜end▁of▁sentence｜>",
                                                      "<｜System｜>",
                                                      "<｜User｜>",
                                                      "<｜Assistant｜>",
                                                      "<｜latest_reminder｜>",
                                                      "<think>",
                                                      "</think>",
                                                      "｜DSML｜",
                                                      "<｜deepseek_image｜>",
                                                      "<｜fim▁begin｜>",
                                                      "<｜fim▁hole｜>",
                                                      "<｜fim▁end｜>",
                                                      "<｜ref｜>",
                                                      "<｜/ref｜>",
                                                      "<｜box｜>",
                                                      "<｜/box｜>",
                                                      "<｜point｜>",
                                                      "<｜/point｜>",
                                                      "<｜polygon｜>",
                                                      "<｜/polygon｜>"};

void check_error(const request_error& error) {
  DI_CHECK(error.message.size() < 2048 && !error.message.empty());
  DI_CHECK(di::utf8_valid_prefix(error.message) == error.message.size());
  DI_CHECK(error.status == 400 || error.status == 404 || error.status == 413);
  DI_CHECK(!error.param || di::utf8_valid_prefix(*error.param) == error.param->size());
  DI_CHECK(!error.param || error.param->size() < 1024);
}

// The first byte chooses protocol and rules, the rest is the body.
std::uint64_t run(std::span<const std::byte> input) {
  if (input.empty())
    return 0;
  const auto choice = static_cast<unsigned>(input[0]);
  const std::string_view body{reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1};
  request_rules rules;
  rules.models.push_back({"DeepSeek-V4-Pro", {}, prompt_encoding::v4});
  rules.strict_reference = (choice & 4) != 0;
  rules.constraints = (choice & 8) != 0;
  rules.default_thinking = (choice & 16) != 0;
  rules.any_model = (choice & 32) != 0;
  rules.test_hooks = true;
  const auto outcome = prepare_text(static_cast<api>(choice & 3), body, rules);
  if (const auto* const error = std::get_if<request_error>(&outcome)) {
    check_error(*error);
    return di::testing::fuzz_signature(error->message.substr(0, 160));
  }
  const auto& request = std::get<prepared_request>(outcome);
  DI_CHECK(!request.segments.empty() || !request.prompt_ids.empty());
  std::uint64_t signature = 1;
  bool plain_before = false;
  for (const prompt_segment& segment : request.segments) {
    DI_CHECK(!segment.special
             || std::find(control.begin(), control.end(), segment.text) != control.end());
    DI_CHECK(segment.special || (!segment.text.empty() && !plain_before));
    DI_CHECK(di::utf8_valid_prefix(segment.text) == segment.text.size());
    plain_before = !segment.special;
    signature = signature * 31 + (segment.special ? segment.text.size() : 1);
  }
  const auto tokens = resolve_max_tokens(request, 100, 1000, rules);
  if (const auto* const count = std::get_if<std::uint32_t>(&tokens))
    DI_CHECK(*count >= 1 && *count <= 900);
  else
    check_error(std::get<request_error>(tokens));
  return signature;
}

} // namespace

DI_FUZZ_MAIN("chat_body", run)
