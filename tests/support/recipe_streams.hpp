// SPDX-License-Identifier: Apache-2.0
// The stored stream vectors of the recipe: model outputs, how they were cut, and the events of the
// reference.
#pragma once

#include "engine/chat/answer.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace di::engine::testing {

inline const std::string recipe_dir = DI_SOURCE_DIR "/tests/golden/data/recipe/";

/// Puts the values of a packed object ([template, value, ...]) back into its template.
inline json unpacked(const json& packed, const json& templates) {
  std::size_t next = 1;
  const auto fill = [&](const auto& self, const json& node) -> json {
    if (node.is_array()) {
      json out = json::array();
      for (const json& v : node)
        out.push_back(self(self, v));
      return out;
    }
    if (!node.is_object())
      return node;
    if (node.size() == 1 && node.contains("$"))
      return packed.at(next++);
    json out = json::object();
    for (const auto& [key, v] : node.items())
      out[key] = self(self, v);
    return out;
  };
  return fill(fill, templates.at(packed.at(0).get<std::size_t>()));
}

/// Rows of one family (chat, responses, messages), unpacked.
inline std::vector<json> stream_rows(const std::string& family) {
  std::ifstream in{recipe_dir + "streams_" + family + ".jsonl"};
  std::vector<json> rows;
  json templates;
  for (std::string line; std::getline(in, line);) {
    json row = json::parse(line);
    if (templates.is_null()) {
      templates = row["templates"];
      continue;
    }
    row["final"] = unpacked(row["final"], templates);
    if (row.contains("finals"))
      for (auto& [split, object] : row["finals"].items())
        object = unpacked(json(object), templates);
    for (json& run : row["runs"])
      for (json& push : run["events"])
        for (json& event : push)
          event = unpacked(json(event), templates);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// What the request of a row says about its answer.
inline answer_recipe recipe_of(const json& row, bool strict) {
  const auto mode = row["mode"].get<std::string>();
  const auto family = row["family"].get<std::string>();
  const auto has = [&](std::string_view part) { return mode.find(part) != std::string::npos; };
  answer_recipe out;
  out.protocol = family == "chat"        ? api::chat
                 : family == "responses" ? api::responses
                                         : api::messages;
  out.id = "id-1";
  out.model = "model-x";
  if (!row["ready"].is_null()) // it comes with the ready chunk
    out.fingerprint = "fp-1";
  out.parsing.strict = strict;
  out.parsing.thinking = has("think") || mode == "prefix-reason" || mode == "prefix-content";
  out.parsing.json = has("json");
  out.parsing.tool_calls = has("+tools") || mode == "required";
  if (mode == "required")
    out.parsing.begins = start_stage::tool_calls;
  else if (mode == "prefix-reason")
    out.parsing.begins = start_stage::reasoning_continuation;
  else if (mode == "prefix-content")
    out.parsing.begins = start_stage::answer_continuation;
  else if (has("think"))
    out.parsing.begins = start_stage::reasoning;
  const json& request = row["request"];
  for (const char* key : {"stop", "stop_sequences"})
    if (request.contains(key) && request[key].is_array())
      out.parsing.stop = request[key].get<std::vector<std::string>>();
    else if (request.contains(key) && request[key].is_string())
      out.parsing.stop = {request[key].get<std::string>()};
  if (request.contains("top_logprobs"))
    out.top_logprobs = request["top_logprobs"].get<std::int32_t>();
  if (out.protocol == api::responses)
    for (const char* key : {"reasoning", "text", "tool_choice", "tools", "top_logprobs"})
      out.echo[key] = row["final"][key];
  return out;
}

/// Pushes one chunk of a run as it is stored.
inline answer_events push_chunk(answer_stream& stream, const json& chunk) {
  if (chunk.is_string())
    return stream.push_text(chunk.get<std::string>());
  const json& ids = chunk.is_object() ? chunk["ids"] : chunk;
  std::vector<proto::position_logprobs> logprobs;
  if (chunk.is_object())
    for (const json& l : chunk["logprobs"]) {
      proto::position_logprobs p;
      p.logprob = l[0].get<double>();
      for (const json& top : l[1]) {
        p.top_tokens.push_back(top[0].get<token_id>());
        p.top_logprobs.push_back(top[1].get<double>());
      }
      logprobs.push_back(std::move(p));
    }
  return stream.push(ids.get<std::vector<token_id>>(), logprobs);
}

inline answer_end end_of(const json& finish) {
  return finish == "Length" ? answer_end::length
         : finish == "Stop" ? answer_end::stop
                            : answer_end::content_filter;
}

} // namespace di::engine::testing
