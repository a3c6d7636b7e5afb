// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/body_reader.hpp"

#include "messaging/base/utf8.hpp"

namespace di::engine {
namespace {

const std::string no_text;
constexpr std::size_t warnings_max = 16;
constexpr std::size_t message_bytes_max = 1500; // [bytes] of one message

} // namespace

std::string shortened(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max)
    return utf8_lossy(text);
  const std::string_view head = text.substr(0, bytes_max);
  return std::string{head.substr(0, utf8_valid_prefix(head))} + "...";
}

std::string body_place::text() const {
  std::string out = parent != nullptr ? parent->text() : std::string{};
  if (out.size() > 200)
    return out;
  if (key.empty())
    return parent == nullptr ? out : out + fmt::format("[{}]", index);
  if (!out.empty())
    out += '.';
  return out + shortened(key, 60);
}

void request_problems::bad_field(const body_place& at, std::string_view what) {
  if (any())
    return;
  std::string where = at.text();
  request_error error;
  error.phase = request_error::stage::parse;
  error.message = where.empty() ? fmt::format("invalid request body: {}", what)
                                : fmt::format("invalid request body: {}: {}", where, what);
  if (!where.empty())
    error.param = std::move(where);
  fail(std::move(error));
}

void request_problems::broken_rule(std::string message, std::string param) {
  request_error error;
  error.message = std::move(message);
  if (!param.empty())
    error.param = std::move(param);
  fail(std::move(error));
}

void request_problems::fail(request_error error) {
  if (any())
    return;
  error.message = shortened(error.message, message_bytes_max);
  error_ = std::move(error);
}

void request_problems::warn(std::string text) {
  if (warnings_.size() < warnings_max)
    warnings_.push_back(shortened(text, 200));
}

std::string found(const json& value) {
  switch (value.type()) {
  case json::value_t::null:
    return "null";
  case json::value_t::boolean:
    return value.get<bool>() ? "true" : "false";
  case json::value_t::number_integer:
  case json::value_t::number_unsigned:
  case json::value_t::number_float:
    return "the number " + prompt_json(value);
  case json::value_t::string:
    return fmt::format("the string \"{}\"", shortened(*value.get_ptr<const std::string*>(), 40));
  case json::value_t::array:
    return "an array";
  case json::value_t::object:
    return "an object";
  case json::value_t::binary:
  case json::value_t::discarded:
    break;
  }
  return "something else";
}

std::optional<std::size_t> one_of(const json& value, const body_place& at,
                                  request_problems& problems,
                                  std::initializer_list<std::string_view> words) {
  if (value.is_string()) {
    std::size_t index = 0;
    for (const std::string_view word : words) {
      if (*value.get_ptr<const std::string*>() == word)
        return index;
      ++index;
    }
  }
  std::string list;
  for (const std::string_view word : words)
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", word);
  problems.bad_field(at, fmt::format("expected one of {}, found {}", list, found(value)));
  return std::nullopt;
}

field_reader::field_reader(const json& value, const body_place& at, request_problems& problems)
    : value_{value.is_object() ? &value : nullptr}, at_{&at}, problems_{&problems} {
  if (value_ == nullptr)
    problems.bad_field(at, fmt::format("expected an object, found {}", found(value)));
}

const json* field_reader::find(std::string_view key) const {
  if (value_ == nullptr)
    return nullptr;
  for (const auto& [name, value] : *value_->get_ptr<const json::object_t*>())
    if (name == key)
      return value.is_null() ? nullptr : &value;
  return nullptr;
}

bool field_reader::has(std::string_view key) const {
  if (value_ != nullptr)
    for (const auto& [name, value] : *value_->get_ptr<const json::object_t*>())
      if (name == key)
        return true;
  return false;
}

const json* field_reader::need(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr && value_ != nullptr)
    problems_->bad_field(place(key), fmt::format("missing field `{}`", key));
  return value;
}

void field_reader::wrong(std::string_view key, std::string_view what) const {
  problems_->bad_field(place(key), what);
}

std::optional<double> field_reader::number(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr)
    return std::nullopt;
  if (value->is_number())
    return value->get<double>();
  wrong(key, fmt::format("expected a number, found {}", found(*value)));
  return std::nullopt;
}

std::optional<std::uint64_t> field_reader::unsigned_integer(std::string_view key,
                                                            std::uint64_t max) const {
  const json* const value = find(key);
  if (value == nullptr)
    return std::nullopt;
  // A value made by a program may be a signed integer.
  const bool counts = value->is_number_unsigned()
                      || (value->is_number_integer() && value->get<std::int64_t>() >= 0);
  if (counts && value->get<std::uint64_t>() <= max)
    return value->get<std::uint64_t>();
  wrong(key, fmt::format("expected an integer from 0 to {}, found {}", max, found(*value)));
  return std::nullopt;
}

std::optional<std::int64_t> field_reader::integer(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr)
    return std::nullopt;
  if (value->is_number_integer()
      && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX))
    return value->get<std::int64_t>();
  wrong(key, fmt::format("expected an integer, found {}", found(*value)));
  return std::nullopt;
}

std::optional<bool> field_reader::boolean(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr)
    return std::nullopt;
  if (value->is_boolean())
    return value->get<bool>();
  wrong(key, fmt::format("expected true or false, found {}", found(*value)));
  return std::nullopt;
}

const std::string* field_reader::text(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr)
    return nullptr;
  if (value->is_string())
    return value->get_ptr<const std::string*>();
  wrong(key, fmt::format("expected a string, found {}", found(*value)));
  return nullptr;
}

const std::string& field_reader::need_text(std::string_view key) const {
  const std::string* const value = need(key) != nullptr ? text(key) : nullptr;
  return value != nullptr ? *value : no_text;
}

const json* field_reader::array(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr || value->is_array())
    return value;
  wrong(key, fmt::format("expected an array, found {}", found(*value)));
  return nullptr;
}

const json* field_reader::object(std::string_view key) const {
  const json* const value = find(key);
  if (value == nullptr || value->is_object())
    return value;
  wrong(key, fmt::format("expected an object, found {}", found(*value)));
  return nullptr;
}

} // namespace di::engine
