// SPDX-License-Identifier: Apache-2.0
// Bodies of the four protocols: a small and valid error, or a prompt of known control tokens.
#include "engine/chat/prepare.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using di::engine::api, di::engine::prepare_text, di::engine::prepared_request, di::engine::json,
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

void collect(json& value, std::vector<json*>& out) {
  out.push_back(&value);
  if (value.is_structured())
    for (json& item : value)
      collect(item, out);
}

// A well-formed body in which values are replaced, copied elsewhere, or left out: each three bytes
// of the input are one such change of the body that stands in the corpus.
std::string changed_body(json body, std::span<const std::byte> changes) {
  static const json values = json::parse(
      R"([null, true, -1, 0, 1, 2.5, 1e300, 18446744073709551615, "", "x", "none", "text", "user",
          "assistant", "tool", "system", "function", "c", "c1", "f", [], {}, [[]], [{}], {"type": "x"},
          {"type": "text", "text": "t"}, {"type": "object"}, "data:image/gif;base64,", "required"])");
  for (std::size_t at = 0; at + 3 <= changes.size() && at < 48; at += 3) {
    std::vector<json*> nodes;
    collect(body, nodes);
    if (nodes.size() > 2000)
      break;
    const auto byte = [&](std::size_t i) { return std::to_integer<std::size_t>(changes[at + i]); };
    json& node = *nodes[(byte(0) + 256 * (byte(1) >> 4)) % nodes.size()];
    const json from =
        (byte(1) & 8) != 0 ? *nodes[byte(2) * 7 % nodes.size()] : values[byte(2) % values.size()];
    switch (byte(1) & 3) {
    case 0:
    case 1:
      node = from;
      break;
    case 2:
      if (node.is_array())
        node.push_back(from);
      else
        node = json::array({from, from});
      break;
    case 3:
      if (node.is_structured() && !node.empty())
        node.erase(std::next(node.begin(), static_cast<std::ptrdiff_t>(byte(2) % node.size())));
      break;
    }
  }
  return body.dump();
}

const std::vector<json>& known_bodies() {
  static const std::vector<json> bodies = [] {
    std::vector<json> out;
    for (const char* const name : {"completion", "completion_ids", "chat", "chat_forced",
                                   "chat_prefix", "responses", "messages", "chat_v4"}) {
      std::ifstream in{std::string{DI_SOURCE_DIR "/tests/fuzz/corpus/chat_body/"} + name + ".json"};
      const std::string text{std::istreambuf_iterator<char>{in}, {}};
      out.push_back(json::parse(text.substr(1)));
    }
    return out;
  }();
  return bodies;
}

// The first byte chooses protocol and rules, the rest is the body; or changes of a known one.
std::uint64_t run(std::span<const std::byte> input) {
  if (input.size() < 2)
    return 0;
  const auto choice = static_cast<unsigned>(input[0]);
  std::string body{reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1};
  if ((choice & 128) != 0)
    body =
        changed_body(known_bodies()[std::to_integer<std::size_t>(input[1]) % 8], input.subspan(2));
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
    return di::testing::fuzz_signature(error->message.substr(0, 160)) + (choice & 3);
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
