// SPDX-License-Identifier: Apache-2.0
// What is kept with a response, and what becomes of it: the conversation that the next response
// goes on with, the list of its input items, the fields that it repeats. Pure.
#pragma once

#include "engine/chat/json.hpp"
#include "launch/serve/api_error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace di::serve {

/// Lies in the note of a response (session_note::extra).
struct stored_response {
  bool store = true;       ///< false: only its own client may come back to it
  bool background = false; ///< goes on without a client; may be cancelled
  std::string previous;    ///< id of the response before; empty: it began a conversation
  /// [items] its whole input: items of earlier responses and their outputs first. Each has an id.
  engine::json items = engine::json::array();

  engine::json to_json() const;
  /// Nothing if it is none.
  static std::optional<stored_response> from_json(const engine::json& extra);
};

/// What of a body is not of the conversation: how it is kept and what it goes on with.
struct keeping {
  bool store = true, background = false;
  std::string previous; ///< empty: none
};
/// A 400 names the field: of a wrong type, in conflict with another, or of what is not built.
std::variant<keeping, api_error> read_keeping(const engine::json& body);

/// Fields that are taken and change nothing, one sentence each.
std::vector<std::string> unused_fields(const engine::json& body);

/// `input` of a body as items: a text is a message of the user; texts inside messages are parts;
/// items without an id get one.
/// @param seed  of the ids
engine::json input_as_items(const engine::json& input, std::uint64_t seed);

/// Puts items behind others. One whose id is taken gets another: pages go by ids.
void append_items(engine::json& to, const engine::json& more, std::uint64_t seed);

/// The conversation so far: input and output of a response.
/// @param response  the whole object, as far as it got
engine::json conversation_after(const stored_response& stored, const engine::json& response);

/// Fields of the request that its response repeats (answer_recipe::echo).
engine::json repeated_fields(const engine::json& body, const keeping& how);

/// Names of its tools of type custom.
std::vector<std::string> custom_tool_names(const engine::json& body);

/// A page of a list, as queries name it.
struct page_query {
  std::size_t limit = 20; ///< [items] 1 to 100
  bool newest_first = true;
  std::string after; ///< id of the item before the page; empty: from the start
};
/// @param limit, order, after  as given; nullopt: not
std::variant<page_query, api_error> read_page(const std::optional<std::string>& limit,
                                              const std::optional<std::string>& order,
                                              const std::optional<std::string>& after);
/// `{"object":"list","data":[...],"first_id","last_id","has_more"}`; a 400 if `after` is no item.
std::variant<engine::json, api_error> page_of(const engine::json& items, const page_query& page);

/// Message and param of an error name items by their number; those of earlier responses came
/// before what the client sent.
void count_from_own_items(api_error& e, std::size_t earlier);

} // namespace di::serve
