// SPDX-License-Identifier: Apache-2.0
// From a method and a path to the handler of a route; what belongs to every request: ids, keys,
// errors for what does not exist, CORS.
#pragma once

#include "launch/serve/service.hpp"
#include "messaging/http/server.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace di::serve {

/// Runs on the thread of the connection; must answer the call, now or later.
using route_handler = std::function<void(call_ptr)>;

struct route_options {
  dialect shape = dialect::openai;
  bool guarded = true; ///< needs a key if the gateway has a keys file
  served_route metric = served_route::other;
};

/// The routes of one listener. Filled before the server starts, then immutable: any thread.
///
/// HEAD is answered where GET is. OPTIONS is answered everywhere (browsers ask before they send).
/// An unknown path is a 404, a known one with another method a 405 with `Allow`, both as JSON in
/// the dialect of the path.
class router {
public:
  explicit router(service& home) : home_{home} {}

  /// @param pattern  "/v1/models/{id}": a name in braces takes one segment of the path, `{id...}`
  ///                 at the end all that is left; the handler finds them in call::captures
  void add(std::string method, std::string_view pattern, route_handler handler,
           route_options options = {});

  /// http::callbacks::handler
  void handle(http::request asked, http::exchange_ptr client) const;
  /// http::callbacks::format: what the server refuses by itself, as JSON.
  http::answer format(const http::refusal& r) const;
  /// http::callbacks::check_head: a missing key, an unknown path or a wrong method is refused
  /// before the body is read.
  std::optional<http::answer> check_head(const http::request& head) const;
  /// All three.
  http::callbacks callbacks() const;

private:
  struct route {
    std::string method, name; ///< name: "POST /v1/messages"
    std::vector<std::string> segments;
    route_handler handler;
    route_options options;
  };
  struct match {
    const route* found = nullptr;
    std::string allowed; ///< methods of the path, comma separated; empty: no such path
    std::vector<std::string> captures;
  };
  match find(std::string_view method, std::string_view path) const;
  /// Why this head cannot be served; nullopt: it can.
  std::optional<api_error> objection(const http::request& head, const match& m,
                                     std::shared_ptr<const key_grant>& who) const;
  call_ptr make_call(http::request asked, http::exchange_ptr client, const match& m) const;
  http::answer refusal_answer(const http::request* asked, const api_error& e,
                              std::string_view allowed) const;

  service& home_;
  std::vector<route> routes_;
};

/// Dialect of a path, known or not: Anthropic below /v1/messages and /anthropic.
dialect dialect_of(std::string_view path) noexcept;

/// All routes of the public listener but those of Responses (routes_responses.hpp).
void add_public_routes(router& to, service& home);

} // namespace di::serve
