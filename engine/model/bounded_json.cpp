// SPDX-License-Identifier: Apache-2.0
#include "engine/model/bounded_json.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace di::engine {
namespace {

using nlohmann::json;

/// Builds the document and stops at the first defect. A method that returns false ends the parse.
class bounded_builder {
public:
  bounded_builder(std::string_view file, const json_limits& limits)
      : file_{file}, limits_{limits} {}

  json take() { return std::move(root_); }
  std::optional<failure>& defect() { return defect_; }

  bool null() { return place(nullptr); }
  bool boolean(bool v) { return place(v); }
  bool number_integer(json::number_integer_t v) { return place(v); }
  bool number_unsigned(json::number_unsigned_t v) { return place(v); }
  bool number_float(json::number_float_t v, const std::string&) { return place(v); }
  bool string(std::string& v) { return place(std::move(v)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& k) {
    key_ = std::move(k);
    if (!open_.back()->contains(key_))
      return true;
    defect_ = fail(ec::duplicate, "{}: key \"{}\" occurs twice in one object", file_, key_);
    return false;
  }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& e) {
    std::string why = e.what(); // "[json.exception.parse_error.101] parse error at ...: why"
    if (const auto at = why.find(": "); at != std::string::npos)
      why.erase(0, at + 2);
    if (why.size() > 200)
      why.resize(200);
    defect_ = fail(ec::bad_format, "{}: bad JSON at byte {}: {}", file_, byte, why);
    return false;
  }

private:
  json* put(json v) {
    if (open_.empty())
      return &(root_ = std::move(v));
    json& top = *open_.back();
    if (top.is_array())
      return &top.emplace_back(std::move(v));
    return &(top[key_] = std::move(v));
  }
  bool place(json v) {
    put(std::move(v));
    return true;
  }
  bool open(json v) {
    if (open_.size() >= limits_.depth_max) {
      defect_ =
          fail(ec::bad_format, "{}: JSON nested deeper than {} levels", file_, limits_.depth_max);
      return false;
    }
    open_.push_back(put(std::move(v)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view file_;
  const json_limits& limits_;
  json root_;
  std::vector<json*> open_; // a parent is never touched while a child is open: pointers stay valid
  std::string key_;
  std::optional<failure> defect_;
};

} // namespace

result<json> parse_bounded_json(std::string_view text, std::string_view file,
                                const json_limits& limits) {
  if (text.size() > limits.bytes_max)
    return fail(ec::limit_exceeded, "{}: {} bytes of JSON, at most {} are read", file, text.size(),
                limits.bytes_max);
  bounded_builder builder{file, limits};
  const bool good = json::sax_parse(text.begin(), text.end(), &builder);
  if (builder.defect())
    return std::move(*builder.defect());
  if (!good)
    return fail(ec::bad_format, "{}: bad JSON", file);
  return builder.take();
}

} // namespace di::engine
