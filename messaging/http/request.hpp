// SPDX-License-Identifier: Apache-2.0
// One HTTP request as the handler gets it, and header lists.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::http {

/// Header fields in the order of arrival; names keep their spelling and compare without case.
class header_list {
public:
  header_list() = default;
  header_list(std::initializer_list<std::pair<std::string, std::string>> fields)
      : fields_{fields} {}

  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  /// Replaces all fields of that name by one.
  void set(std::string_view name, std::string value);
  void remove(std::string_view name);
  /// Value of the first field of that name; empty if there is none.
  std::string_view get(std::string_view name) const;
  std::optional<std::string_view> find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name).has_value(); }
  /// True if one of the comma-separated words of the fields of that name is `token`, without case.
  bool has_token(std::string_view name, std::string_view token) const;
  std::size_t count(std::string_view name) const;

  std::size_t size() const noexcept { return fields_.size(); }
  bool empty() const noexcept { return fields_.empty(); }
  auto begin() const noexcept { return fields_.begin(); }
  auto end() const noexcept { return fields_.end(); }

private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

/// ASCII comparison without case, as for header names.
bool same_name(std::string_view a, std::string_view b) noexcept;

/// A character of names and methods (RFC 9110 5.6.2).
bool token_char(char c) noexcept;

/// Without the blanks and tabs around it.
std::string_view trimmed(std::string_view text) noexcept;

/// Percent-decodes; nullopt if an escape is broken. `plus_is_blank`: as in queries.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_blank = false);

/// A whole request: it reaches the handler only when all of its body is there.
struct request {
  std::string method; ///< as sent: "GET", "POST" ...
  std::string target; ///< as sent, e.g. "/v1/models/a%20b?x=1"
  std::string path;   ///< decoded, without query, e.g. "/v1/models/a b"; "*" for OPTIONS *
  std::string query;  ///< as sent, without '?'
  unsigned minor = 1; ///< HTTP/1.<minor>
  header_list headers;
  header_list trailers;     ///< of a chunked body
  std::string body;         ///< without transfer coding
  bool length_given = true; ///< false: neither Content-Length nor Transfer-Encoding
  std::string peer;         ///< address without port, e.g. "127.0.0.1"
  std::uint16_t peer_port = 0;
  bool tls = false;
  std::uint64_t connection = 0;                  ///< number of the connection in this server
  std::uint64_t number = 0;                      ///< of the request on its connection, from 1
  std::chrono::steady_clock::time_point arrived; ///< its first byte
  std::chrono::steady_clock::time_point read;    ///< its last byte

  /// Decoded value of the first `name=` in the query; nullopt if it is not there.
  std::optional<std::string> parameter(std::string_view name) const;
};

} // namespace di::http
