// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/message_blocks.hpp"

#include <unordered_set>

namespace di::engine {
namespace {

enum class block_kind : std::uint8_t {
  text,
  image,
  document,
  thinking,
  server_tool_use,
  tool_use,
  tool_result,
  web_search_result,
  tool_addition
};

std::optional<content_part> read_image(const field_reader& block, const std::string& path,
                                       const request_context& context) {
  const json* const source = block.need("source");
  if (source == nullptr)
    return std::nullopt;
  const body_place at = block.place("source");
  const field_reader fields{*source, at, context.problems};
  const json* const type = fields.need("type");
  if (type == nullptr)
    return std::nullopt;
  const auto word =
      one_of(*type, fields.place("type"), context.problems, {"base64", "url", "file"});
  if (!word)
    return std::nullopt;
  prompt_image image;
  image.detail = "high";
  image.path = path;
  if (*word == 0) {
    const json* const media = fields.need("media_type");
    if (media == nullptr
        || !one_of(*media, fields.place("media_type"), context.problems,
                   {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"}))
      return std::nullopt;
    image.kind = "data_url";
    image.source =
        fmt::format("data:{};base64,{}", media->get<std::string>(), fields.need_text("data"));
  } else if (*word == 1) {
    image.source = fields.need_text("url");
    image.kind = "url"; // checked with the rules
  } else {
    image.kind = "file";
  }
  return content_part{{}, std::move(image)};
}

content_part read_document(const field_reader& block, const request_context& context) {
  const json* const source = block.need("source");
  if (source == nullptr)
    return {};
  const body_place at = block.place("source");
  const field_reader fields{*source, at, context.problems};
  const std::string* media = fields.text("media_type");
  if (media == nullptr)
    media = fields.text("type");
  return {fmt::format("[Unsupported document type: {}]", media != nullptr ? *media : "unknown"),
          {}};
}

// Content of a tool result: nothing, a string, or blocks.
void read_result_content(const field_reader& block, const std::string& path,
                         const request_context& context, chat_message& result) {
  const json* const content = block.find("content");
  if (content == nullptr)
    return;
  if (content->is_string()) {
    result.parts.push_back({*content->get_ptr<const std::string*>(), {}});
    return;
  }
  if (!content->is_array())
    return block.wrong("content",
                       fmt::format("expected a string or a list, found {}", found(*content)));
  const body_place list = block.place("content");
  for (std::size_t i = 0; i < content->size() && !context.problems.any(); ++i) {
    const body_place at{&list, {}, i};
    const field_reader fields{(*content)[i], at, context.problems};
    const json* const type = fields.need("type");
    if (type == nullptr)
      return;
    const auto word = one_of(*type, fields.place("type"), context.problems,
                             {"text", "image", "document", "search_result", "tool_reference"});
    if (!word)
      return;
    if (*word == 0)
      result.parts.push_back({fields.need_text("text"), {}});
    else if (*word == 1) {
      if (auto part = read_image(fields, path, context))
        result.parts.push_back(std::move(*part));
    } else if (*word == 2)
      result.parts.push_back(read_document(fields, context));
    else
      result.parts.push_back({fmt::format("[Unsupported {}]", type->get<std::string>()), {}});
  }
}

void append_reasoning(const std::string& text, chat_message& message) {
  if (message.reasoning)
    message.reasoning->append("\n\n").append(text);
  else
    message.reasoning = text;
}

void read_block(const json& value, const body_place& at, const std::string& path,
                const request_context& context, message_blocks& out) {
  const field_reader block{value, at, context.problems};
  const json* const type = block.need("type");
  if (type == nullptr)
    return;
  const auto word = one_of(*type, block.place("type"), context.problems,
                           {"text", "image", "document", "thinking", "server_tool_use", "tool_use",
                            "tool_result", "web_search_tool_result", "tool_addition"});
  if (!word)
    return;
  const auto kind = static_cast<block_kind>(*word);
  out.others = out.others || kind != block_kind::tool_result;
  switch (kind) {
  case block_kind::text:
    out.message.parts.push_back({block.need_text("text"), {}});
    return;
  case block_kind::image:
    if (auto part = read_image(block, path, context))
      out.message.parts.push_back(std::move(*part));
    return;
  case block_kind::document:
    out.message.parts.push_back(read_document(block, context));
    return;
  case block_kind::thinking:
    out.thinking_of_user = out.thinking_of_user || out.message.role != chat_role::assistant;
    return append_reasoning(block.need_text("thinking"), out.message);
  case block_kind::tool_use: {
    call_of_history call;
    call.id = block.need_text("id");
    call.name = block.need_text("name");
    const json* const input = block.find("input");
    call.object = input != nullptr ? *input : json::object();
    // What is no object is shown as its text.
    if (!call.object->is_object())
      call.arguments = constraint_json(*call.object);
    out.message.calls.push_back(std::move(call));
    return;
  }
  case block_kind::tool_result: {
    chat_message result;
    result.role = chat_role::tool;
    result.call_id = block.need_text("tool_use_id");
    read_result_content(block, path, context, result);
    out.results.push_back(std::move(result));
    out.leading_results += out.others ? 0 : 1;
    return;
  }
  case block_kind::server_tool_use:
  case block_kind::web_search_result:
  case block_kind::tool_addition:
    context.problems.warn(
        fmt::format("{}: blocks of type {} are ignored", path, type->get<std::string>()));
    return;
  }
}

std::string listed(const std::vector<std::string_view>& ids) {
  std::string out;
  for (const std::string_view id : ids) {
    if (out.size() > 500)
      return out + ", ...";
    out += fmt::format("{}{}", out.empty() ? "" : ", ", shortened(id, 100));
  }
  return out;
}

// Every tool_use has its result in the next message, in front of other blocks, and vice versa.
void check_pairs(const std::vector<message_blocks>& all, std::size_t i,
                 const request_context& context) {
  constexpr std::string_view needs =
      "`tool_use` ids were found without `tool_result` blocks immediately after";
  constexpr std::string_view each =
      "Each `tool_use` block must have a corresponding `tool_result` block in the next message.";
  const std::vector<call_of_history> none;
  const auto& calls = i > 0 ? all[i - 1].message.calls : none;
  const auto& results = all[i].results;
  const std::size_t leading = all[i].leading_results;
  std::unordered_set<std::string_view> asked;
  for (const call_of_history& call : calls)
    asked.insert(call.id);
  std::unordered_set<std::string_view> answered;
  for (std::size_t k = 0; k < leading; ++k)
    answered.insert(results[k].call_id);
  std::vector<std::string_view> missing;
  for (const call_of_history& call : calls)
    if (!answered.contains(call.id))
      missing.push_back(call.id);
  if (!missing.empty())
    return context.problems.broken_rule(
        leading == 0 ? fmt::format("messages.{}: {}: {}. {}", i, needs, listed(missing), each)
                     : fmt::format("messages.{}:{}: {}. {}", i - 1, needs, listed(missing), each),
        fmt::format("messages.{}", i));
  for (std::size_t k = 0; k < results.size(); ++k)
    if (asked.erase(results[k].call_id) == 0)
      return context.problems.broken_rule(
          fmt::format("unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` "
                      "blocks: {}. Each `tool_result` block must have a corresponding `tool_use` "
                      "block in the previous message.",
                      i, k, shortened(results[k].call_id, 100)),
          fmt::format("messages.{}", i));
}

} // namespace

message_blocks read_message_blocks(const json& value, const body_place& at, std::size_t index,
                                   const request_context& context) {
  message_blocks out;
  const field_reader fields{value, at, context.problems};
  const json* const role = fields.need("role");
  if (role == nullptr)
    return out;
  const auto word =
      one_of(*role, fields.place("role"), context.problems, {"user", "assistant", "system"});
  if (!word)
    return out;
  out.message.role = *word == 0   ? chat_role::user
                     : *word == 1 ? chat_role::assistant
                                  : chat_role::system;
  const json* const content = fields.need("content");
  if (content == nullptr)
    return out;
  if (content->is_string()) {
    out.others = true;
    out.message.parts.push_back({*content->get_ptr<const std::string*>(), {}});
    return out;
  }
  if (!content->is_array()) {
    fields.wrong("content", fmt::format("expected a string or a list, found {}", found(*content)));
    return out;
  }
  out.empty_list = content->empty();
  const body_place list = fields.place("content");
  for (std::size_t i = 0; i < content->size() && !context.problems.any(); ++i)
    read_block((*content)[i], body_place{&list, {}, i},
               fmt::format("messages.{}.content[{}]", index, i), context, out);
  return out;
}

void check_blocks(std::vector<message_blocks>& all, const request_context& context) {
  if (all.empty())
    context.problems.broken_rule("messages: at least one message is required", "messages");
  for (std::size_t i = 0; i < all.size() && !context.problems.any(); ++i) {
    const std::string here = fmt::format("messages.{}", i);
    if (all[i].empty_list)
      return context.problems.broken_rule(
          fmt::format("{}: all messages must have non-empty content", here), here);
    if (all[i].thinking_of_user)
      return context.problems.broken_rule(
          fmt::format("{}.content: thinking blocks may only be in `assistant` messages", here),
          here);
    const bool assistant = all[i].message.role == chat_role::assistant;
    if (assistant ? !all[i].results.empty() : !all[i].message.calls.empty())
      return context.problems.broken_rule(
          fmt::format("{}.content: {} blocks may only be in `{}` messages", here,
                      assistant ? "tool_result" : "tool_use", assistant ? "user" : "assistant"),
          here);
    check_pairs(all, i, context);
    auto check_images = [&](chat_message& message) {
      for (content_part& part : message.parts)
        if (part.image && part.image->kind == "file")
          context.problems.broken_rule(
              fmt::format("{}: file_id is not supported. Pass the image as "
                          "a base64 data url instead.",
                          part.image->path),
              part.image->path);
        else if (part.image)
          part.image->kind = image_kind(part.image->source, part.image->path, context.problems);
    };
    check_images(all[i].message);
    for (chat_message& result : all[i].results)
      check_images(result);
  }
  if (context.problems.any() || all.empty() || all.back().message.calls.empty())
    return;
  std::vector<std::string_view> ids;
  for (const call_of_history& call : all.back().message.calls)
    ids.push_back(call.id);
  context.problems.broken_rule(
      fmt::format("messages.{}:`tool_use` ids were found without `tool_result` blocks immediately "
                  "after: {}. Each `tool_use` block must have a corresponding `tool_result` block "
                  "in the next message.",
                  all.size() - 1, listed(ids)),
      fmt::format("messages.{}", all.size() - 1));
}

} // namespace di::engine
