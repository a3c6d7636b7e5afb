// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/strict_schema.hpp"

#include "engine/chat/body_reader.hpp"

#include <algorithm>
#include <initializer_list>

namespace di::engine {
namespace {

/// Normalises one schema; the first problem ends it.
class strict_writer {
public:
  std::string problem;

  // The depth is bounded by what parse_chat_json accepts.
  json node(const json& in) {
    json out = json::object();
    if (!problem.empty())
      return out;
    if (!in.is_object())
      return refuse(fmt::format("A schema must be an object, found {}.", found(in)));
    if (const auto ref = in.find("$ref"); ref != in.end()) {
      if (!ref->is_string())
        return refuse("`$ref` must be a string.");
      out["$ref"] = *ref;
      return out;
    }
    if (const auto any = in.find("anyOf"); any != in.end() && !in.contains("type"))
      return any_of(in, *any);
    const auto type = in.find("type");
    if (type == in.end())
      return refuse("A schema needs one of `type`, `anyOf`, `$ref`.");
    out["type"] = *type;
    if (type->is_array()) {
      for (const json& one : *type)
        if (!one.is_string())
          return refuse("`type` must be a string or a list of strings.");
      return out;
    }
    return typed(in, *type, std::move(out));
  }

private:
  json refuse(std::string why) {
    if (problem.empty())
      problem = std::move(why);
    return json::object();
  }

  static void keep(const json& in, json& out, std::initializer_list<const char*> keys) {
    for (const char* const key : keys)
      if (const auto value = in.find(key); value != in.end())
        out[key] = *value;
  }

  json any_of(const json& in, const json& any) {
    if (!any.is_array() || any.empty())
      return refuse("`anyOf` must be a list with at least one schema.");
    json out = json::object();
    json& list = out["anyOf"] = json::array();
    for (const json& one : any)
      list.push_back(node(one));
    keep(in, out, {"description"});
    return out;
  }

  json typed(const json& in, const json& type, json out) {
    if (type == "string") {
      if (const auto format = in.find("format"); format != in.end())
        if (const bool known = *format == "email" || *format == "hostname" || *format == "ipv4"
                               || *format == "ipv6" || *format == "uuid";
            !known)
          return refuse(fmt::format("The format of a string may be email, hostname, ipv4, ipv6 or "
                                    "uuid, found {}.",
                                    found(*format)));
      keep(in, out, {"pattern", "format", "enum", "description"});
    } else if (type == "integer" || type == "number") {
      keep(in, out,
           {"description", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
            "multipleOf"});
    } else if (type == "boolean" || type == "null") {
      keep(in, out, {"description"});
    } else if (type == "array") {
      const auto items = in.find("items");
      if (items == in.end())
        return refuse("An array needs `items`.");
      out["items"] = node(*items);
      keep(in, out, {"description"});
    } else if (type == "object") {
      object(in, out);
    } else {
      return refuse(fmt::format("Unknown type: {}.", found(type)));
    }
    return out;
  }

  void object(const json& in, json& out) {
    const auto properties = in.find("properties");
    if (properties == in.end() || !properties->is_object() || properties->empty()) {
      refuse("An object with no properties is not allowed.");
      return;
    }
    if (const auto more = in.find("additionalProperties"); more != in.end() && *more != false) {
      refuse("additionalProperties must be false.");
      return;
    }
    json names = json::array();
    json& shown = out["properties"] = json::object();
    for (const auto& [key, value] : properties->items()) {
      shown.get_ptr<json::object_t*>()->push_back({key, node(value)});
      names.push_back(key);
    }
    required(in, names);
    out["additionalProperties"] = false;
    out["required"] = std::move(names);
    keep(in, out, {"description"});
  }

  void required(const json& in, json& names) {
    const auto listed = in.find("required");
    if (listed == in.end())
      return;
    if (!listed->is_array()) {
      refuse("`required` must be a list.");
      return;
    }
    // Each is compared with all: a schema of many properties is bounded by sorting both.
    std::vector<std::string> a, b;
    for (const json& name : names)
      a.push_back(name.get<std::string>());
    for (const json& name : *listed) {
      if (!name.is_string()) {
        refuse("`required` must be a list of strings.");
        return;
      }
      b.push_back(name.get<std::string>());
    }
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    b.erase(std::unique(b.begin(), b.end()), b.end());
    if (a != b)
      refuse("Required properties must match all properties in the object");
    else
      names = *listed;
  }
};

} // namespace

std::variant<json, std::string> strict_schema(const json& schema, bool keep_definitions) {
  strict_writer writer;
  json out = writer.node(schema);
  if (keep_definitions && schema.is_object())
    for (const char* const key : {"$defs", "definitions"})
      if (const auto definitions = schema.find(key);
          definitions != schema.end() && definitions->is_object()) {
        json& kept = out[key] = json::object();
        for (const auto& [name, value] : definitions->items())
          kept.get_ptr<json::object_t*>()->push_back({name, writer.node(value)});
      }
  if (!writer.problem.empty())
    return shortened(writer.problem, 300);
  return out;
}

} // namespace di::engine
