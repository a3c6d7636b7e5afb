// SPDX-License-Identifier: Apache-2.0
// The items of a Responses request, turned into messages.
#pragma once

#include "engine/chat/request_draft.hpp"

namespace di::engine {

/// Collects the items of `input` in order; finish() closes what is open.
///
/// Reasoning waits for the assistant message or call behind it; a message and the calls that follow
/// make one assistant message.
class responses_items {
public:
  responses_items(request_draft& draft, const request_context& context)
      : draft_{draft}, context_{context} {}

  /// One item of `input`. @param at  its place
  void add(const json& item, const body_place& at, std::size_t index);
  void finish();

private:
  void message(const field_reader& fields, std::size_t index);
  void reasoning(const field_reader& fields);
  void call(const field_reader& fields, bool custom);
  void output(const field_reader& fields, std::size_t index);
  void content(const field_reader& fields, std::string_view key, std::size_t index,
               chat_message& message);
  void part(const json& value, const body_place& at, std::size_t index, std::size_t part_index,
            chat_message& message);
  chat_message& open_assistant();
  void flush_reasoning();

  request_draft& draft_;
  const request_context& context_;
  std::optional<std::string> reasoning_;
  bool assistant_open_ = false; // calls go to the last message
};

/// Every call has an output in the outputs that directly follow, and vice versa.
void check_outputs(const request_draft& draft, const request_context& context);

} // namespace di::engine
