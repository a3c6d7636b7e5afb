// SPDX-License-Identifier: Apache-2.0
// What a client of each protocol makes of a stream: deltas joined, and checked on the way.
#pragma once

#include "engine/chat/answer.hpp"

#include <string>
#include <vector>

namespace di::engine::testing {

/// What a client has at the end, or what a whole answer says.
struct client_view {
  struct call {
    std::string id;
    std::string name;
    std::string arguments;
    friend bool operator==(const call&, const call&) = default;
  };
  std::string reasoning;
  std::string content;
  std::vector<call> calls;
  std::string finish;  ///< finish_reason, status or stop_reason
  std::string problem; ///< the first thing that is wrong with the stream itself
  friend bool operator==(const client_view&, const client_view&) = default;
};

namespace detail {

inline std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

inline void take_chat(const json& data, client_view& out) {
  for (const json& choice : data["choices"]) {
    const json& delta = choice["delta"];
    out.reasoning += text_of(delta, "reasoning_content");
    out.content += text_of(delta, "content");
    if (delta.contains("tool_calls"))
      for (const json& c : delta["tool_calls"]) {
        const auto index = c["index"].get<std::size_t>();
        if (c.contains("id")) {
          if (index != out.calls.size())
            out.problem = "index of a new call";
          out.calls.push_back({text_of(c, "id"), text_of(c["function"], "name"), {}});
        }
        if (index + 1 != out.calls.size())
          out.problem = "index of a call";
        else
          out.calls.back().arguments += text_of(c["function"], "arguments");
      }
    if (choice["finish_reason"].is_string())
      out.finish = text_of(choice, "finish_reason");
  }
}

inline void take_responses(const json& data, std::size_t index, client_view& out,
                           std::string& open) {
  if (data["sequence_number"] != index)
    out.problem = "sequence_number";
  const auto type = text_of(data, "type");
  if (data.contains("item_id") && data["item_id"] != open)
    out.problem = "item_id";
  if (type == "response.output_item.added") {
    if (!open.empty())
      out.problem = "item added before the last one was done";
    open = text_of(data["item"], "id");
    if (data["item"]["type"] == "function_call")
      out.calls.push_back({text_of(data["item"], "call_id"), text_of(data["item"], "name"), {}});
  } else if (type == "response.output_item.done") {
    if (data["item"]["id"] != open)
      out.problem = "id of the item done";
    open.clear();
  } else if (type == "response.output_text.delta") {
    out.content += text_of(data, "delta");
  } else if (type == "response.reasoning_text.delta") {
    out.reasoning += text_of(data, "delta");
  } else if (type == "response.function_call_arguments.delta") {
    out.calls.back().arguments += text_of(data, "delta");
  } else if (type == "response.completed" || type == "response.incomplete") {
    if (!open.empty())
      out.problem = "an item was never done";
    out.finish = text_of(data["response"], "status");
  }
}

inline void take_messages(const json& data, client_view& out, std::string& open) {
  const auto type = text_of(data, "type");
  if (type == "content_block_start") {
    if (!open.empty())
      out.problem = "block opened inside another";
    open = text_of(data["content_block"], "type");
    if (open == "tool_use")
      out.calls.push_back(
          {text_of(data["content_block"], "id"), text_of(data["content_block"], "name"), {}});
  } else if (type == "content_block_stop") {
    if (open.empty())
      out.problem = "block closed twice";
    open.clear();
  } else if (type == "content_block_delta") {
    const json& delta = data["delta"];
    const bool fits = delta["type"] == "thinking_delta" || delta["type"] == "signature_delta"
                          ? open == "thinking"
                      : delta["type"] == "text_delta" ? open == "text"
                                                      : open == "tool_use";
    if (!fits)
      out.problem = "delta of another block";
    out.reasoning += text_of(delta, "thinking");
    out.content += text_of(delta, "text");
    if (delta["type"] == "input_json_delta")
      out.calls.back().arguments += text_of(delta, "partial_json");
  } else if (type == "message_delta") {
    if (!open.empty())
      out.problem = "a block was never closed";
    out.finish = text_of(data["delta"], "stop_reason");
  }
}

} // namespace detail

/// Joins a stream. `first`: index of the first event (of a stream that goes on).
inline client_view client_of(api protocol, const answer_events& events) {
  client_view out;
  std::string open;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const json& data = events[i].data;
    if (protocol == api::completions) {
      for (const json& choice : data["choices"]) {
        out.content += choice["text"].get<std::string>();
        if (choice["finish_reason"].is_string())
          out.finish = choice["finish_reason"].get<std::string>();
      }
    } else if (protocol == api::chat) {
      detail::take_chat(data, out);
    } else {
      if (events[i].name != data["type"])
        out.problem = "name of an event";
      if (protocol == api::responses)
        detail::take_responses(data, i, out, open);
      else
        detail::take_messages(data, out, open);
    }
  }
  return out;
}

/// The same from a whole answer. Arguments of Messages are parsed there: they are written again.
inline client_view client_of_final(api protocol, const json& final) {
  client_view out;
  if (protocol == api::completions) {
    out.content = final["choices"][0]["text"].get<std::string>();
    out.finish = final["choices"][0]["finish_reason"].get<std::string>();
  } else if (protocol == api::chat) {
    const json& message = final["choices"][0]["message"];
    out.reasoning = detail::text_of(message, "reasoning_content");
    out.content = detail::text_of(message, "content");
    if (message.contains("tool_calls"))
      for (const json& c : message["tool_calls"])
        out.calls.push_back({detail::text_of(c, "id"), detail::text_of(c["function"], "name"),
                             detail::text_of(c["function"], "arguments")});
    out.finish = detail::text_of(final["choices"][0], "finish_reason");
  } else if (protocol == api::responses) {
    for (const json& item : final["output"]) {
      if (item["type"] == "reasoning")
        out.reasoning += item["content"][0]["text"].get<std::string>();
      else if (item["type"] == "message")
        out.content += item["content"][0]["text"].get<std::string>();
      else
        out.calls.push_back({detail::text_of(item, "call_id"), detail::text_of(item, "name"),
                             detail::text_of(item, "arguments")});
    }
    out.finish = detail::text_of(final, "status");
  } else {
    for (const json& block : final["content"]) {
      out.reasoning += detail::text_of(block, "thinking");
      out.content += detail::text_of(block, "text");
      if (block["type"] == "tool_use")
        out.calls.push_back(
            {detail::text_of(block, "id"), detail::text_of(block, "name"), block["input"].dump()});
    }
    out.finish = detail::text_of(final, "stop_reason");
  }
  return out;
}

/// All events of a text that comes in these parts.
inline answer_events stream_text(answer_stream& stream, const std::vector<std::string>& parts,
                                 answer_end why = answer_end::stop) {
  answer_events all = stream.ready(11, 4);
  const auto add = [&all](answer_events more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  };
  for (const std::string& part : parts)
    add(stream.push_text(part));
  add(stream.finish(why));
  add(stream.close());
  return all;
}

/// The same of tokens, `group` at a time.
inline answer_events stream_tokens(answer_stream& stream, std::span<const token_id> ids,
                                   std::size_t group = 1, answer_end why = answer_end::stop) {
  answer_events all = stream.ready(11, 4);
  const auto add = [&all](answer_events more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  };
  for (std::size_t i = 0; i < ids.size(); i += group)
    add(stream.push(ids.subspan(i, std::min(group, ids.size() - i))));
  add(stream.finish(why));
  add(stream.close());
  return all;
}

} // namespace di::engine::testing
