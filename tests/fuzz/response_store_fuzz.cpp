// SPDX-License-Identifier: Apache-2.0
// Bodies of Responses as they are kept: items with ids, pages without loss or repeat, notes that
// come back, a conversation that goes on.
#include "launch/serve/response_store.hpp"
#include "messaging/base/check.hpp"
#include "tests/support/fuzz_driver.hpp"

#include <string>
#include <variant>

namespace {

using di::engine::json;
namespace serve = di::serve;

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::size_t paged(const json& items, bool newest) {
  serve::page_query page{3, newest, {}};
  std::size_t seen = 0;
  while (seen <= items.size()) {
    const auto got = serve::page_of(items, page);
    const auto* const list = std::get_if<json>(&got);
    if (list == nullptr || (*list)["data"].empty())
      break;
    seen += (*list)["data"].size();
    if ((*list)["has_more"] != true)
      break;
    if (!(*list)["last_id"].is_string() || (*list)["last_id"] == "")
      return items.size(); // an item that nobody would have kept
    page.after = (*list)["last_id"].get<std::string>();
  }
  return seen;
}

std::uint64_t run(std::span<const std::byte> input) {
  const std::string_view text{reinterpret_cast<const char*>(input.data()), input.size()};
  if (std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; }) > 200)
    return 0; // bodies are bounded in depth before they come here
  const json body = json::parse(text, nullptr, false);
  if (!body.is_object())
    return 0;
  const auto how = serve::read_keeping(body);
  std::uint64_t signature = 2;
  if (const auto* const no = std::get_if<serve::api_error>(&how)) {
    DI_CHECK(no->status == 400 && no->param && no->message.size() < 1024);
    signature = di::testing::fuzz_signature(no->message);
  }
  const auto kept_how = how.index() == 0 ? std::get<serve::keeping>(how) : serve::keeping{};
  const json items = serve::input_as_items(body.value("input", json{}), 7);
  DI_CHECK(items.is_array());
  serve::stored_response stored{kept_how.store, kept_how.background, kept_how.previous, items};
  const auto back =
      serve::stored_response::from_json(json::parse(dump(stored.to_json()), nullptr, false));
  DI_CHECK(back && back->items.size() == items.size() && back->store == stored.store);
  DI_CHECK(serve::conversation_after(stored, body).size() >= items.size());
  const json echo = serve::repeated_fields(body, kept_how);
  DI_CHECK(echo.is_object() && echo["store"] == kept_how.store && !echo.contains("input"));
  DI_CHECK(paged(items, true) <= items.size() && paged(items, false) <= items.size());
  serve::api_error e;
  e.message = std::string{text.substr(0, 500)};
  serve::count_from_own_items(e, items.size());
  DI_CHECK(e.message.size() <= 500);
  return signature * 31 + items.size() * 7 + serve::custom_tool_names(body).size()
         + serve::unused_fields(body).size() * 131 + echo.size() * 17;
}

} // namespace

DI_FUZZ_MAIN("response_store", run)
