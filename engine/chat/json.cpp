// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/json.hpp"

#include "messaging/base/utf8.hpp"

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <vector>

namespace di::engine {
namespace {

using object_pairs = std::vector<std::pair<const std::string, json>>;

/// Goes through a text and tells where it is, which the parser itself only does for syntax errors.
class watched_iterator {
public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  watched_iterator(const char* at, const char*& seen) : at_{at}, seen_{&seen} {}
  reference operator*() const { return *at_; }
  watched_iterator& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  watched_iterator operator++(int) {
    const watched_iterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const watched_iterator& a, const watched_iterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const watched_iterator& a, const watched_iterator& b) {
    return a.at_ != b.at_;
  }

private:
  const char* at_;
  const char** seen_;
};

/// Builds the document and stops at the first defect. A method that returns false ends the parse.
class chat_json_builder {
public:
  chat_json_builder(std::string_view text, const chat_json_limits& limits)
      : limits_{limits}, begin_{text.data()}, seen_{text.data()} {}

  const char*& seen() { return seen_; }

  json take() { return std::move(root_); }
  std::optional<failure>& defect() { return defect_; }

  bool null() { return place(nullptr); }
  bool boolean(bool v) { return place(v); }
  // The lexer gives numbers with a minus sign here and all others to number_unsigned.
  bool number_integer(json::number_integer_t v) { return v == 0 ? place(-0.0) : place(v); }
  bool number_unsigned(json::number_unsigned_t v) { return place(v); }
  bool number_float(json::number_float_t v, const std::string&) { return place(v); }
  bool string(std::string& v) { return place(std::move(v)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& k) {
    level& top = open_.back();
    key_ = std::move(k);
    replaced_ = known(top, key_);
    if (replaced_ == nullptr || limits_.repeated == repeated_keys::keep_last)
      return true;
    defect_ =
        fail(ec::duplicate, "invalid JSON at byte {}: the key \"{}\" occurs twice in one object",
             byte(), utf8_lossy(std::string_view{key_}.substr(0, 40)));
    return false;
  }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& e) {
    // "[json.exception.parse_error.101] parse error at ...: why; last read: ..."
    std::string why = e.what();
    if (const auto at = why.find("] "); at != std::string::npos)
      why.erase(0, at + 2);
    if (const auto at = why.find(": "); at != std::string::npos && why.starts_with("parse error"))
      why.erase(0, at + 2);
    if (const auto at = why.find("; last read"); at != std::string::npos)
      why.resize(at);
    if (why.size() > 120)
      why.resize(120);
    defect_ = fail(ec::bad_format, "invalid JSON at byte {}: {}", byte == 0 ? 0 : byte - 1,
                   utf8_lossy(why));
    return false;
  }

private:
  struct level {
    json* value;
    std::unordered_map<std::string, std::size_t> many; // places of all keys, if more than a few
  };
  static constexpr std::size_t few = 16; // [keys] up to which a search is cheaper than a table

  std::size_t byte() const {
    const auto read = static_cast<std::size_t>(seen_ - begin_);
    return read == 0 ? 0 : read - 1; // the last byte that was read
  }

  // The value that the key of the open object has already; remembers the key if it has none.
  static json* known(level& top, const std::string& key) {
    object_pairs& pairs = *top.value->get_ptr<json::object_t*>();
    if (top.many.empty()) {
      for (auto& pair : pairs)
        if (pair.first == key)
          return &pair.second;
      if (pairs.size() < few)
        return nullptr;
      for (const auto& pair : pairs)
        top.many.emplace(pair.first, top.many.size());
    }
    const auto [place, fresh] = top.many.emplace(key, pairs.size());
    return fresh ? nullptr : &pairs[place->second].second;
  }

  json* put(json v) {
    if (open_.empty())
      return &(root_ = std::move(v));
    json& top = *open_.back().value;
    if (top.is_array()) {
      auto& items = *top.get_ptr<json::array_t*>();
      return &items.emplace_back(std::move(v));
    }
    if (replaced_ != nullptr)
      return &(*replaced_ = std::move(v));
    object_pairs& pairs = *top.get_ptr<json::object_t*>();
    return &pairs.emplace_back(std::move(key_), std::move(v)).second;
  }
  bool place(json v) {
    if (++values_ > limits_.values_max) {
      defect_ = fail(ec::limit_exceeded, "invalid JSON at byte {}: more than {} values", byte(),
                     limits_.values_max);
      return false;
    }
    put(std::move(v));
    return true;
  }
  bool open(json v) {
    if (open_.size() >= limits_.depth_max) {
      defect_ = fail(ec::bad_format, "invalid JSON at byte {}: nested deeper than {} levels",
                     byte(), limits_.depth_max);
      return false;
    }
    if (++values_ > limits_.values_max)
      return place(nullptr);
    open_.push_back({put(std::move(v)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const chat_json_limits& limits_;
  const char* begin_;
  const char* seen_;
  json root_;
  std::vector<level> open_; // a parent is never touched while a child is open: pointers stay valid
  std::string key_;
  json* replaced_ = nullptr; // the value that a repeated key replaces
  std::size_t values_ = 0;
  std::optional<failure> defect_;
};

void write_string(std::string& out, const std::string& text) {
  out += '"';
  out += json_escaped(text);
  out += '"';
}

/// The shortest digits of a finite number: sign, digits without a point, and the power of ten of
/// the first digit.
struct shortest_digits {
  bool negative = false;
  std::string digits;
  int exponent = 0;
};

shortest_digits digits_of(double value) {
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text{buffer, static_cast<std::size_t>(end.ptr - buffer)};
  shortest_digits out;
  out.negative = text.front() == '-';
  if (out.negative)
    text.remove_prefix(1);
  const auto e = text.find('e');
  for (const char c : text.substr(0, e))
    if (c != '.')
      out.digits += c;
  auto power = text.substr(e + 1);
  if (power.front() == '+')
    power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), out.exponent);
  return out;
}

/// Plain notation with at least one decimal.
void write_plain(std::string& out, const shortest_digits& number) {
  const auto& digits = number.digits;
  if (number.exponent < 0) {
    out += "0.";
    out.append(static_cast<std::size_t>(-number.exponent - 1), '0');
    out += digits;
    return;
  }
  const auto whole = static_cast<std::size_t>(number.exponent) + 1;
  if (digits.size() <= whole) {
    out += digits;
    out.append(whole - digits.size(), '0');
    out += ".0";
    return;
  }
  out.append(digits, 0, whole);
  out += '.';
  out.append(digits, whole);
}

struct float_style {
  int plain_from, plain_below; // powers of ten between which plain notation is used
  bool python;                 // sign and two digits in the exponent
};

void write_float(std::string& out, double value, const float_style& style) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const shortest_digits number = digits_of(value);
  if (number.negative)
    out += '-';
  if (value == 0 || (number.exponent >= style.plain_from && number.exponent < style.plain_below))
    return write_plain(out, number);
  out += number.digits.front();
  if (number.digits.size() > 1) {
    out += '.';
    out.append(number.digits, 1);
  }
  if (style.python)
    out += fmt::format("e{}{:02}", number.exponent < 0 ? '-' : '+', std::abs(number.exponent));
  else
    out += fmt::format("e{:+}", number.exponent);
}

struct text_style {
  std::string_view comma, colon;
  float_style floats;
};

// Depth is bounded by what parse_chat_json accepts.
void write_value(std::string& out, const json& value, const text_style& style) {
  switch (value.type()) {
  case json::value_t::object: {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : *value.get_ptr<const json::object_t*>()) {
      if (!first)
        out += style.comma;
      first = false;
      write_string(out, key);
      out += style.colon;
      write_value(out, item, style);
    }
    out += '}';
    return;
  }
  case json::value_t::array: {
    out += '[';
    bool first = true;
    for (const json& item : *value.get_ptr<const json::array_t*>()) {
      if (!first)
        out += style.comma;
      first = false;
      write_value(out, item, style);
    }
    out += ']';
    return;
  }
  case json::value_t::string:
    return write_string(out, *value.get_ptr<const std::string*>());
  case json::value_t::boolean:
    out += value.get<bool>() ? "true" : "false";
    return;
  case json::value_t::number_integer:
    out += fmt::format("{}", value.get<std::int64_t>());
    return;
  case json::value_t::number_unsigned:
    out += fmt::format("{}", value.get<std::uint64_t>());
    return;
  case json::value_t::number_float:
    return write_float(out, value.get<double>(), style.floats);
  case json::value_t::null:
  case json::value_t::binary:
  case json::value_t::discarded:
    out += "null";
    return;
  }
}

} // namespace

result<json> parse_chat_json(std::string_view text, const chat_json_limits& limits) {
  if (text.size() > limits.bytes_max)
    return fail(ec::limit_exceeded, "{} bytes of JSON, at most {} are read", text.size(),
                limits.bytes_max);
  // The parser takes a NUL for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    return fail(ec::bad_format, "invalid JSON at byte {}: a NUL byte", nul);
  chat_json_builder builder{text, limits};
  const char* const end = text.data() + text.size();
  const bool good = json::sax_parse(watched_iterator{text.data(), builder.seen()},
                                    watched_iterator{end, builder.seen()}, &builder);
  if (builder.defect())
    return std::move(*builder.defect());
  if (!good)
    return fail(ec::bad_format, "invalid JSON");
  return builder.take();
}

std::string prompt_json(const json& value, exponent_form exponents) {
  std::string out;
  if (exponents == exponent_form::python)
    write_value(out, value, {", ", ": ", {-4, 16, true}});
  else
    write_value(out, value, {", ", ": ", {-5, 16, false}});
  return out;
}

std::string constraint_json(const json& value) {
  std::string out;
  write_value(out, value, {",", ":", {-5, 16, false}});
  return out;
}

std::string json_escaped(std::string_view text) {
  static constexpr char hex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size() + 8);
  for (const char c : text) {
    switch (c) {
    case '"':
      out += "\\\"";
      break;
    case '\\':
      out += "\\\\";
      break;
    case '\b':
      out += "\\b";
      break;
    case '\f':
      out += "\\f";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\t':
      out += "\\t";
      break;
    default:
      if (static_cast<unsigned char>(c) < 0x20) {
        out += "\\u00";
        out += hex[(static_cast<unsigned char>(c) >> 4) & 15];
        out += hex[static_cast<unsigned char>(c) & 15];
      } else {
        out += c;
      }
    }
  }
  return out;
}

} // namespace di::engine
