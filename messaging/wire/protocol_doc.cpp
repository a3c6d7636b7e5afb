// SPDX-License-Identifier: Apache-2.0
#include "messaging/wire/protocol_doc.hpp"

#include "messaging/proto/catalog.hpp"
#include "messaging/wire/enum_names.hpp"
#include "messaging/wire/fields.hpp"
#include "messaging/wire/text.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <set>
#include <string_view>

namespace di::wire {
namespace {

/// Last word of a type's name: "di::proto::finish_reason" -> "finish_reason".
template <class T>
std::string type_word() {
  std::string_view text = __PRETTY_FUNCTION__; // "... [with T = di::rank_tag; std::string = ...]"
  constexpr std::string_view label = "T = ";
  text.remove_prefix(text.find(label) + label.size());
  text = text.substr(0, text.find_first_of(";]"));
  if (const std::size_t colon = text.rfind(':'); colon != std::string_view::npos)
    text.remove_prefix(colon + 1);
  return std::string{text};
}

template <class T>
struct tag_of;
template <class Tag, class Int>
struct tag_of<strong_id<Tag, Int>> {
  using type = Tag;
};

/// Collects what messages are made of while their fields are named.
class describer {
public:
  template <class T>
  std::string name() {
    if constexpr (std::is_same_v<T, shared_bytes>) {
      return "attachment";
    } else if constexpr (std::is_same_v<T, bool>) {
      return "bool";
    } else if constexpr (std::is_enum_v<T>) {
      note_enum<T>();
      return fmt::format("[{0}](#{0})", type_word<T>());
    } else if constexpr (std::is_same_v<T, float>) {
      return "float32";
    } else if constexpr (std::is_same_v<T, double>) {
      return "float64";
    } else if constexpr (std::is_integral_v<T>) {
      return fmt::format("{}{}", std::is_signed_v<T> ? "i" : "u", 8 * sizeof(T));
    } else if constexpr (std::is_same_v<T, std::string>) {
      return "string";
    } else if constexpr (std::is_same_v<T, wire_id>) {
      return "wire id (u16)";
    } else if constexpr (is_strong_id<T>) {
      std::string tag = type_word<typename tag_of<T>::type>();
      if (tag.ends_with("_tag"))
        tag.resize(tag.size() - 4);
      return fmt::format("{} ({})", tag, name<typename T::value_type>());
    } else if constexpr (std::is_same_v<T, duration>) {
      return "time in ns (i64)";
    } else if constexpr (is_optional<T>) {
      return name<typename T::value_type>() + " or nil";
    } else if constexpr (is_string_map<T>) {
      return "map of string to " + name<typename T::mapped_type>();
    } else if constexpr (is_vector<T>) {
      return "list of " + name<typename T::value_type>();
    } else if constexpr (is_std_array<T>) {
      return fmt::format("{} x {}", std::tuple_size_v<T>, name<typename T::value_type>());
    } else {
      note_struct<T>();
      return fmt::format("[{0}](#{0})", T::message_name());
    }
  }

  template <class S>
  std::string field_table() {
    S sample{};
    field_names names{S::message_fields()};
    std::string rows;
    [[maybe_unused]] const auto one = [&](const auto& field) {
      using T = std::remove_cvref_t<decltype(field)>;
      const std::string_view field_name = names.next();
      rows += fmt::format("| {} | {} |\n", field_name, name<T>());
    };
    visit_fields(sample, [&](const auto&... f) { (one(f), ...); });
    return rows.empty() ? "No fields.\n" : "| field | type |\n|---|---|\n" + rows;
  }

  template <class M>
  void add() {
    const wire_id id = M::wire;
    messages_[id.v] =
        fmt::format("### {:#06x} {} ({})\n\n{}\n\n{}\n", id.v, M::message_name(),
                    has_attachments<M>() ? "bulk" : "control", message_doc<M>(), field_table<M>());
  }

  std::string render() const;

private:
  template <class E>
  void note_enum() {
    std::string& text = enums_[type_word<E>()];
    if (!text.empty())
      return;
    for (std::size_t n = 0; n < enum_values; ++n)
      if (const std::string_view word = enum_name(static_cast<E>(n)); !word.empty())
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, word);
  }

  template <class S>
  void note_struct() {
    const std::string key{S::message_name()};
    if (!structs_.try_emplace(key).second)
      return; // also ends the recursion of a type that holds its own kind
    std::string table = field_table<S>();
    structs_[key] = std::move(table);
  }

  std::map<std::uint16_t, std::string> messages_;
  std::map<std::string, std::string> structs_;
  std::map<std::string, std::string> enums_;
};

constexpr std::string_view protocol_names[] = {
    "bus",       "gateway",    "scheduler", "rank",       "expert_shard", "journal", "membership",
    "directory", "supervisor", "telemetry", "rebalancer", "kv_agent",     "node",    "topic"};

constexpr std::string_view head =
    R"(# Protocol

Generated from messaging/proto/catalog.hpp by `dilaunch --print-protocol`; do not edit.

Every message has a wire id: high byte protocol, low byte message; 0x80 and up belong to users. A body is one
msgpack array of the fields in their order; nested structures are arrays too, enums travel as numbers, ids as
their number. An `attachment` is not in the body: it travels as a raw frame of its own, in field order. A
sender may leave fields out at the end, the receiver then takes their defaults; fields beyond those it knows
are refused, so receivers are upgraded first. Messages with attachments use the bulk socket, all others the
control socket. The frame around a body is described in messaging/wire/frame.hpp.

)";

std::string describer::render() const {
  std::string out{head};
  int protocol = -1;
  for (const auto& [id, text] : messages_) {
    if (id >> 8 != protocol) {
      protocol = id >> 8;
      const auto n = static_cast<std::size_t>(protocol);
      out += fmt::format("## {:#04x} {}\n\n", protocol,
                         n < std::size(protocol_names) ? protocol_names[n] : "unnamed");
    }
    out += text;
  }
  out += "## Structures\n\n";
  for (const auto& [name, text] : structs_)
    out += fmt::format("### {}\n\n{}\n", name, text);
  out += "## Enums\n\n";
  for (const auto& [name, text] : enums_)
    out += fmt::format("### {}\n\n{}\n\n", name, text);
  out.pop_back();
  return out;
}

template <class... Ms>
void add_all(describer& d, type_list<Ms...>) {
  (d.add<Ms>(), ...);
}

} // namespace

std::string render_protocol() {
  describer d;
  add_all(d, proto::catalog{});
  return d.render();
}

} // namespace di::wire
