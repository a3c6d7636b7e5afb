// SPDX-License-Identifier: Apache-2.0
// From a DI_FIELDS line to bytes and back, and the table that finds both by wire id.
//
// Body: one msgpack array of the fields in their order; nested structs are arrays too. A
// shared_bytes field is not in the body: it becomes the next attachment. A decoder fills the fields
// that an older sender left out at the end with their defaults and refuses fields that it does not
// know, so receivers are upgraded before senders.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/proto/parcel.hpp"
#include "messaging/wire/enum_names.hpp"
#include "messaging/wire/fields.hpp"
#include "messaging/wire/pack.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace di::wire {

/// An encoded message.
struct encoded {
  std::vector<std::byte> body;
  std::vector<shared_bytes> attachments; ///< in field order; empty ones keep their place
};

// --- encoding ---------------------------------------------------------------------------------

class encoder {
public:
  template <class T>
  void put(const T& v) {
    using U = std::remove_cv_t<T>;
    if constexpr (std::is_same_v<U, shared_bytes>) {
      attachments_.push_back(v);
    } else if constexpr (std::is_same_v<U, bool>) {
      out_.boolean(v);
    } else if constexpr (std::is_enum_v<U>) {
      out_.unsigned_int(static_cast<std::uint64_t>(v));
    } else if constexpr (std::is_same_v<U, float>) {
      out_.float32(v);
    } else if constexpr (std::is_same_v<U, double>) {
      out_.float64(v);
    } else if constexpr (std::is_signed_v<U>) {
      out_.signed_int(v);
    } else if constexpr (std::is_unsigned_v<U>) {
      out_.unsigned_int(v);
    } else if constexpr (std::is_same_v<U, std::string>) {
      out_.string(v);
    } else if constexpr (is_strong_id<U> || std::is_same_v<U, wire_id>) {
      put(v.v);
    } else if constexpr (std::is_same_v<U, duration>) {
      out_.signed_int(v.count());
    } else if constexpr (is_optional<U>) {
      v ? put(*v) : out_.nil();
    } else if constexpr (is_string_map<U>) {
      out_.map(v.size());
      for (const auto& [key, value] : v) {
        out_.string(key);
        put(value);
      }
    } else if constexpr (std::is_same_v<U, std::vector<std::int32_t>>) {
      out_.ints(v);
    } else if constexpr (is_vector<U> || is_std_array<U>) {
      if constexpr (!std::is_same_v<typename U::value_type, shared_bytes>) {
        out_.array(v.size());
        for (const auto& element : v) // vector<bool> gives a proxy
          put(static_cast<const typename U::value_type&>(element));
      } else {
        out_.unsigned_int(v.size());
        for (const auto& element : v)
          put(element);
      }
    } else {
      static_assert(has_fields<U>,
                    "this field type has no encoding: see messaging/proto/message.hpp");
      put_fields(v);
    }
  }

  encoded take() { return {out_.take(), std::move(attachments_)}; }

private:
  template <class S>
  void put_fields(const S& s) {
    visit_fields(s, [this](const auto&... f) {
      out_.array((std::size_t{0} + ... + (in_body<std::remove_cvref_t<decltype(f)>> ? 1u : 0u)));
      (put(f), ...);
    });
  }

  writer out_;
  std::vector<shared_bytes> attachments_;
};

// --- decoding ---------------------------------------------------------------------------------

class decoder {
public:
  decoder(std::span<const std::byte> body, std::span<shared_bytes> attachments)
      : in_{body}, attachments_{attachments} {}

  template <class T>
  result<void> get(T& v) {
    if constexpr (std::is_same_v<T, shared_bytes>) {
      if (taken_ < attachments_.size())
        v = std::move(attachments_[taken_++]);
      return {};
    } else if constexpr (std::is_same_v<T, bool>) {
      DI_TRY(v, in_.boolean());
      return {};
    } else if constexpr (std::is_enum_v<T>) {
      return get_enum(v);
    } else if constexpr (std::is_same_v<T, float>) {
      DI_TRY(v, in_.float32());
      return {};
    } else if constexpr (std::is_same_v<T, double>) {
      DI_TRY(v, in_.float64());
      return {};
    } else if constexpr (std::is_signed_v<T>) {
      using lim = std::numeric_limits<T>;
      DI_TRY(const std::int64_t n, in_.signed_int(lim::min(), lim::max()));
      v = static_cast<T>(n);
      return {};
    } else if constexpr (std::is_unsigned_v<T>) {
      DI_TRY(const std::uint64_t n, in_.unsigned_int(std::numeric_limits<T>::max()));
      v = static_cast<T>(n);
      return {};
    } else if constexpr (std::is_same_v<T, std::string>) {
      DI_TRY(v, in_.string());
      return {};
    } else if constexpr (is_strong_id<T> || std::is_same_v<T, wire_id>) {
      return get(v.v);
    } else if constexpr (std::is_same_v<T, duration>) {
      DI_TRY(const std::int64_t n, in_.signed_int(INT64_MIN, INT64_MAX));
      v = duration{n};
      return {};
    } else {
      DI_TRY_VOID(in_.enter());
      DI_TRY_VOID(get_compound(v));
      in_.leave();
      return {};
    }
  }

  /// @errors bad_format if bytes or attachments are left over
  result<void> finish() const {
    if (taken_ != attachments_.size())
      return fail(ec::bad_format, "{} attachments, the message has room for {}",
                  attachments_.size(), taken_);
    return in_.finish();
  }

private:
  template <class E>
  result<void> get_enum(E& v) {
    DI_TRY(const std::uint64_t n, in_.unsigned_int(enum_values - 1));
    const auto value = static_cast<E>(n);
    if (enum_name(value).empty())
      return fail(ec::bad_format, "offset {}: {} is no value of this enum", in_.offset(), n);
    v = value;
    return {};
  }

  template <class T>
  result<void> get_compound(T& v) {
    if constexpr (is_optional<T>)
      return get_optional(v);
    else if constexpr (is_string_map<T>)
      return get_map(v);
    else if constexpr (is_vector<T>)
      return get_vector(v);
    else if constexpr (is_std_array<T>)
      return get_array(v);
    else
      return get_fields(v);
  }

  template <class T>
  result<void> get_optional(T& v) {
    if (in_.take_nil()) {
      v.reset();
      return {};
    }
    return get(v.emplace());
  }

  template <class T>
  result<void> get_map(T& v) {
    DI_TRY(const std::size_t pairs, in_.map());
    v.clear();
    for (std::size_t i = 0; i < pairs; ++i) {
      DI_TRY_VOID(in_.spend(sizeof(typename T::value_type)));
      DI_TRY(std::string key, in_.string());
      // Ascending keys only: one value has one encoding, and a key cannot come twice.
      if (!v.empty() && key <= v.rbegin()->first)
        return fail(ec::bad_format, "offset {}: map key \"{}\" out of order", in_.offset(), key);
      DI_TRY_VOID(get(v.emplace_hint(v.end(), std::move(key), typename T::mapped_type{})->second));
    }
    return {};
  }

  template <class T>
  result<void> get_vector(T& v) {
    using element = typename T::value_type;
    std::size_t count = 0;
    if constexpr (std::is_same_v<element, shared_bytes>) {
      DI_TRY(count, in_.unsigned_int(attachments_.size() - taken_));
    } else {
      DI_TRY(count, in_.array());
    }
    DI_TRY_VOID(in_.spend(count * sizeof(element)));
    v.clear();
    v.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      element one{};
      DI_TRY_VOID(get(one));
      v.push_back(std::move(one));
    }
    return {};
  }

  template <class T>
  result<void> get_array(T& v) {
    DI_TRY(const std::size_t count, in_.array());
    if (count != v.size())
      return fail(ec::bad_format, "offset {}: {} elements, expected {}", in_.offset(), count,
                  v.size());
    for (auto& element : v)
      DI_TRY_VOID(get(element));
    return {};
  }

  template <class S>
  result<void> get_fields(S& s) {
    static_assert(has_fields<S>,
                  "this field type has no encoding: see messaging/proto/message.hpp");
    DI_TRY(std::size_t present, in_.array());
    return visit_fields(s, [&](auto&... f) -> result<void> {
      constexpr std::size_t known =
          (std::size_t{0} + ... + (in_body<std::remove_cvref_t<decltype(f)>> ? 1u : 0u));
      if (present > known)
        return fail(ec::bad_format, "offset {}: {} has {} fields, this build knows {}",
                    in_.offset(), S::message_name(), present, known);
      result<void> outcome;
      // Stops at the first error; fields past `present` keep their defaults.
      [[maybe_unused]] const auto one = [&](auto& field) {
        using U = std::remove_cvref_t<decltype(field)>;
        if constexpr (in_body<U>) {
          if (present == 0)
            return true;
          --present;
        }
        outcome = get(field);
        return outcome.ok();
      };
      (void)(one(f) && ...);
      return outcome;
    });
  }

  reader in_;
  std::span<shared_bytes> attachments_;
  std::size_t taken_ = 0;
};

/// Encodes a message or a struct with a DI_FIELDS line.
template <class M>
encoded encode(const M& m) {
  encoder out;
  out.put(m);
  return out.take();
}

/// @errors bad_format, limit_exceeded; the message is named. Attachments are moved out.
template <class M>
result<M> decode(std::span<const std::byte> body, std::span<shared_bytes> attachments = {}) {
  M m{};
  decoder in{body, attachments};
  result<void> outcome = in.get(m);
  if (outcome)
    outcome = in.finish();
  if (!outcome)
    return fail(outcome.error().code, "{}: {}", M::message_name(), outcome.error().what);
  return m;
}

// --- table ------------------------------------------------------------------------------------

/// What the bus can do with one message type.
struct codec {
  wire_id id;
  std::string_view name;
  std::string_view doc;
  std::string_view fields; ///< as written in DI_FIELDS
  bool bulk = false;       ///< has attachments: travels on the bulk socket
  encoded (*encode)(const void* body) = nullptr;
  result<parcel> (*decode)(std::span<const std::byte> body,
                           std::span<shared_bytes> attachments) = nullptr;
  std::string (*print)(const void* body) = nullptr;
};

/// The codec of one message type.
template <message M>
codec codec_of();

/// Wire id -> codec. Filled at start, then only read; reading is thread-safe.
class codec_table {
public:
  /// @errors duplicate if another type has this wire id (the same type twice is fine)
  result<void> add(const codec& c);
  template <message M>
  result<void> add() {
    return add(codec_of<M>());
  }
  template <message... Ms>
  result<void> add_all(type_list<Ms...>) {
    result<void> outcome;
    (void)((outcome = add<Ms>()).ok() && ...);
    return outcome;
  }

  /// Null if unknown.
  const codec* find(wire_id id) const noexcept;
  /// @errors unknown_message
  result<encoded> encode(const parcel& p) const;
  /// @errors unknown_message, bad_format, limit_exceeded
  result<parcel> decode(wire_id id, std::span<const std::byte> body,
                        std::span<shared_bytes> attachments) const;
  /// "step_finished{step=3, tokens=[1, 2]}"; unknown ones print as their id.
  std::string print(const parcel& p) const;
  /// All codecs by ascending wire id.
  std::vector<const codec*> all() const;

private:
  std::unordered_map<std::uint16_t, codec> by_id_;
};

/// Table of all built-in messages (proto/catalog.hpp); the caller adds user types.
codec_table builtin_codecs();

} // namespace di::wire

#include "messaging/wire/text.hpp"

namespace di::wire {

template <message M>
codec codec_of() {
  codec c;
  c.id = M::wire;
  c.name = M::message_name();
  c.doc = message_doc<M>();
  c.fields = M::message_fields();
  c.bulk = has_attachments<M>();
  c.encode = [](const void* body) { return wire::encode(*static_cast<const M*>(body)); };
  c.decode = [](std::span<const std::byte> body,
                std::span<shared_bytes> attachments) -> result<parcel> {
    DI_TRY(M m, wire::decode<M>(body, attachments));
    return parcel::of(std::move(m));
  };
  c.print = [](const void* body) { return to_text(*static_cast<const M*>(body)); };
  return c;
}

} // namespace di::wire
