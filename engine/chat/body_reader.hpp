// SPDX-License-Identifier: Apache-2.0
// Reads typed fields of a request body; remembers the first thing that is wrong and where.
#pragma once

#include "engine/chat/json.hpp"
#include "engine/chat/prepared.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::engine {

/// A place in a body, as a chain on the stack; text only when something is wrong there.
struct body_place {
  const body_place* parent = nullptr;
  std::string_view key;  ///< empty: an index
  std::size_t index = 0; ///< of an array

  /// "messages[1].content", at most some 200 bytes; empty for the body itself.
  std::string text() const;
};

/// The first error of a request, and its warnings.
class request_problems {
public:
  /// A field has a wrong type, an unknown word, or is missing.
  void bad_field(const body_place& at, std::string_view what);
  /// A rule of the API is broken. @param param  the field; empty: none
  void broken_rule(std::string message, std::string param = {});
  void fail(request_error error);
  /// Something is ignored. The first 16 are kept.
  void warn(std::string text);

  bool any() const noexcept { return error_.has_value(); }
  request_error take_error() { return std::move(*error_); }
  std::vector<std::string> take_warnings() { return std::move(warnings_); }

private:
  std::optional<request_error> error_;
  std::vector<std::string> warnings_;
};

/// The fields of one object. A field that is null counts as missing. After the first problem values
/// are defaults: check problems().any() at the end. The object must outlive the reader.
class field_reader {
public:
  /// @param value   anything; a problem if it is not an object
  field_reader(const json& value, const body_place& at, request_problems& problems);

  const json* find(std::string_view key) const;
  /// As find(), a problem if it is missing.
  const json* need(std::string_view key) const;
  /// Whether the key stands there, also with null.
  bool has(std::string_view key) const;

  std::optional<double> number(std::string_view key) const;
  std::optional<std::uint64_t> unsigned_integer(std::string_view key,
                                                std::uint64_t max = ~std::uint64_t{0}) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  const std::string* text(std::string_view key) const;
  const std::string& need_text(std::string_view key) const;
  const json* array(std::string_view key) const;
  const json* object(std::string_view key) const;

  body_place place(std::string_view key) const { return {at_, key, 0}; }
  void wrong(std::string_view key, std::string_view what) const;

  request_problems& problems() const { return *problems_; }
  /// Null if the value was no object.
  const json* value() const { return value_; }
  const body_place& at() const { return *at_; }

private:
  const json* value_;
  const body_place* at_;
  request_problems* problems_;
};

/// "a string", "the number 5", "null": what stands at a place, shortened.
std::string found(const json& value);

/// Index of a word in a list; a problem that lists the words if it is none of them, or no string.
std::optional<std::size_t> one_of(const json& value, const body_place& at,
                                  request_problems& problems,
                                  std::initializer_list<std::string_view> words);

/// The text shortened to some bytes at a character border, with "..." if it was longer.
std::string shortened(std::string_view text, std::size_t bytes_max = 100);

} // namespace di::engine
