// SPDX-License-Identifier: Apache-2.0
// Fields, items and pages of stored responses.
#include "launch/serve/response_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace di::serve {
namespace {

using engine::json;

constexpr std::size_t page_max = 100;
constexpr std::size_t metadata_max = 16, metadata_key_max = 64, metadata_value_max = 512;

const json* given(const json& body, std::string_view key) {
  const auto at = body.find(key);
  return at == body.end() || at->is_null() ? nullptr : &*at;
}

std::optional<api_error> read_flag(const json& body, std::string_view key, bool& into) {
  const json* const value = given(body, key);
  if (value == nullptr)
    return std::nullopt;
  if (!value->is_boolean())
    return bad_field(std::string{key}, fmt::format("{} is true or false", key));
  into = value->get<bool>();
  return std::nullopt;
}

std::optional<api_error> check_metadata(const json& body) {
  const json* const metadata = given(body, "metadata");
  if (metadata == nullptr)
    return std::nullopt;
  if (!metadata->is_object() || metadata->size() > metadata_max)
    return bad_field("metadata",
                     fmt::format("metadata is an object of at most {} texts", metadata_max));
  for (const auto& [key, value] : metadata->items())
    if (key.size() > metadata_key_max || !value.is_string()
        || value.get_ref<const std::string&>().size() > metadata_value_max)
      return bad_field("metadata",
                       fmt::format("metadata has keys of at most {} bytes and texts of at most {}",
                                   metadata_key_max, metadata_value_max));
  return std::nullopt;
}

std::string_view id_prefix(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> all{
      {{"reasoning", "rs"},
       {"function_call", "fc"},
       {"function_call_output", "fco"},
       {"custom_tool_call", "ctc"},
       {"custom_tool_call_output", "ctco"}}};
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == type; });
  return at == all.end() ? std::string_view{"msg"} : at->second;
}

// A message whose content is a text, as clients read items: a list of parts.
void spread_content(json& item) {
  const auto content = item.find("content");
  if (content == item.end() || !content->is_string())
    return;
  const bool said = item.value("role", std::string{}) == "assistant";
  json part{{"type", said ? "output_text" : "input_text"}, {"text", *content}};
  if (said)
    part["annotations"] = json::array();
  *content = json::array({std::move(part)});
}

json as_item(const json& input, std::uint64_t seed, std::size_t index) {
  if (!input.is_object())
    return input; // refused by whoever reads it as a prompt
  json item{{"type", "message"}};
  item.update(input);
  const std::string type = item["type"].is_string() ? item["type"].get<std::string>() : "";
  if (const json* const id = given(item, "id"); id == nullptr || !id->is_string())
    item["id"] = fmt::format("{}_{:016x}{:04x}", id_prefix(type), seed, index);
  if (type == "message") {
    if (item.contains("role") && !item["role"].is_string())
      return input;
    if (!given(item, "status"))
      item["status"] = "completed";
    spread_content(item);
  }
  return item;
}

} // namespace

json stored_response::to_json() const {
  json out{{"store", store}, {"background", background}};
  if (!previous.empty())
    out["previous"] = previous;
  if (!items.empty())
    out["items"] = items;
  return out;
}

std::optional<stored_response> stored_response::from_json(const json& extra) {
  if (!extra.is_object() || !extra.contains("store") || !extra["store"].is_boolean())
    return std::nullopt;
  stored_response s;
  s.store = extra["store"].get<bool>();
  const auto background = extra.find("background");
  s.background = background != extra.end() && *background == true;
  if (const json* const previous = given(extra, "previous"); previous && previous->is_string())
    s.previous = previous->get<std::string>();
  if (const json* const items = given(extra, "items"); items && items->is_array())
    s.items = *items;
  return s;
}

std::variant<keeping, api_error> read_keeping(const json& body) {
  keeping k;
  for (auto no : {read_flag(body, "store", k.store), read_flag(body, "background", k.background)})
    if (no)
      return *no;
  if (auto no = check_metadata(body))
    return *no;
  if (k.background && !k.store)
    return bad_field("background", "a background response must be stored: store is false");
  if (const json* const previous = given(body, "previous_response_id")) {
    if (!previous->is_string())
      return bad_field("previous_response_id", "previous_response_id is the id of a response");
    k.previous = previous->get<std::string>();
  }
  for (const std::string_view field : {"conversation", "prompt"})
    if (given(body, field))
      return bad_field(std::string{field},
                       fmt::format("{} is not supported; send input, and previous_response_id to "
                                   "go on with a stored response",
                                   field));
  return k;
}

std::vector<std::string> unused_fields(const json& body) {
  std::vector<std::string> out;
  if (const json* const how = given(body, "truncation"); how != nullptr && *how != "disabled")
    out.emplace_back("truncation is not supported: a conversation that is too long is refused");
  for (const char* const field : {"context_management", "max_tool_calls"})
    if (given(body, field))
      out.push_back(fmt::format("{} is ignored", field));
  return out;
}

json input_as_items(const json& input, std::uint64_t seed) {
  json all = json::array(), items = json::array();
  if (input.is_string())
    all.push_back(as_item(json{{"role", "user"}, {"content", input}}, seed, 0));
  else if (input.is_array())
    for (const json& one : input)
      all.push_back(as_item(one, seed, all.size()));
  append_items(items, all, seed);
  return items;
}

void append_items(json& to, const json& more, std::uint64_t seed) {
  const auto id_of = [](const json& item) {
    const json* const id = item.is_object() ? given(item, "id") : nullptr;
    return id != nullptr && id->is_string() ? id->get<std::string>() : std::string{};
  };
  std::set<std::string> taken;
  for (const json& item : to)
    taken.insert(id_of(item));
  for (const json& item : more) {
    to.push_back(item);
    std::string id = id_of(item);
    while (!id.empty() && !taken.insert(id).second)
      id = fmt::format("{}_{:016x}", id.substr(0, 40), seed++);
    if (!id.empty())
      to.back()["id"] = id;
  }
}

json conversation_after(const stored_response& stored, const json& response) {
  json items = stored.items;
  if (const json* const output = given(response, "output"); output && output->is_array())
    for (const json& one : *output)
      items.push_back(one);
  return items;
}

json repeated_fields(const json& body, const keeping& how) {
  json echo = json::object();
  for (const char* const key :
       {"instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls",
        "presence_penalty", "frequency_penalty", "prompt_cache_key", "safety_identifier",
        "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"})
    if (const json* const value = given(body, key))
      echo[key] = *value;
  if (const json* const text = given(body, "text"); text && text->is_object()) {
    echo["text"] = {{"format", {{"type", "text"}}}, {"verbosity", nullptr}};
    echo["text"].update(*text);
  }
  if (const json* const reasoning = given(body, "reasoning"); reasoning && reasoning->is_object()) {
    echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
    echo["reasoning"].update(*reasoning);
  }
  echo["store"] = how.store;
  echo["background"] = how.background;
  if (!how.previous.empty())
    echo["previous_response_id"] = how.previous;
  return echo;
}

std::vector<std::string> custom_tool_names(const json& body) {
  std::vector<std::string> names;
  if (const json* const tools = given(body, "tools"); tools && tools->is_array())
    for (const json& tool : *tools)
      if (tool.is_object() && tool.value("type", json{}) == "custom"
          && tool.value("name", json{}).is_string())
        names.push_back(tool["name"].get<std::string>());
  return names;
}

std::variant<page_query, api_error> read_page(const std::optional<std::string>& limit,
                                              const std::optional<std::string>& order,
                                              const std::optional<std::string>& after) {
  page_query page;
  if (limit) {
    const char* const end = limit->data() + limit->size();
    const auto [at, wrong] = std::from_chars(limit->data(), end, page.limit);
    if (limit->empty() || wrong != std::errc{} || at != end || page.limit == 0
        || page.limit > page_max)
      return bad_field("limit", fmt::format("limit is a number from 1 to {}", page_max));
  }
  if (order && *order != "asc" && *order != "desc")
    return bad_field("order", "order is asc or desc");
  page.newest_first = !order || *order == "desc";
  page.after = after.value_or("");
  return page;
}

std::variant<json, api_error> page_of(const json& items, const page_query& page) {
  std::vector<const json*> all;
  for (const json& item : items)
    all.push_back(&item);
  if (page.newest_first)
    std::reverse(all.begin(), all.end());
  const auto id_of = [](const json& item) {
    const json* const id = item.is_object() ? given(item, "id") : nullptr;
    return id != nullptr && id->is_string() ? id->get<std::string>() : std::string{};
  };
  auto from = all.begin();
  if (!page.after.empty()) {
    from = std::find_if(all.begin(), all.end(),
                        [&](const json* item) { return id_of(*item) == page.after; });
    if (from == all.end())
      return bad_field("after", "after names no item of this response");
    ++from;
  }
  const auto left = static_cast<std::size_t>(all.end() - from);
  json data = json::array();
  for (std::size_t i = 0; i < std::min(left, page.limit); ++i)
    data.push_back(*from[static_cast<std::ptrdiff_t>(i)]);
  json out{{"object", "list"}, {"data", json::array()}};
  out["first_id"] = data.empty() ? json(nullptr) : json(id_of(data.front()));
  out["last_id"] = data.empty() ? json(nullptr) : json(id_of(data.back()));
  out["has_more"] = left > data.size();
  out["data"] = std::move(data);
  return out;
}

void count_from_own_items(api_error& e, std::size_t earlier) {
  constexpr std::string_view mark = "input[";
  const auto shift = [&](std::string& text) {
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at)) {
      at += mark.size();
      std::size_t number = 0;
      const char* const begin = text.data() + at;
      const auto [end, wrong] = std::from_chars(begin, text.data() + text.size(), number);
      if (wrong == std::errc{} && number >= earlier)
        text.replace(at, static_cast<std::size_t>(end - begin), std::to_string(number - earlier));
    }
  };
  shift(e.message);
  if (e.param)
    shift(*e.param);
}

} // namespace di::serve
