// SPDX-License-Identifier: Apache-2.0
// Binding, URLs, and the check of files before any process starts.
#include "launch/gateway_sockets.hpp"

#include "launch/serve/api_keys.hpp"
#include "launch/serve/settings_of.hpp"
#include "messaging/http/server.hpp"

#include <fmt/format.h>

#include <filesystem>

namespace di::launch {
namespace {

constexpr const char* operators_host = "127.0.0.1";

place place_of(const topology& t, const char* key) {
  return t.blame({key}, place{1, 1, 0});
}

std::string url_of(bool tls, const std::string& host, std::uint32_t port) {
  const bool any = host == "0.0.0.0" || host == "::" || host == "*";
  const auto name = any ? this_machine().host_name : host;
  const bool brackets = name.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", brackets ? "[" : "", name,
                     brackets ? "]" : "", port);
}

} // namespace

result<std::vector<int>> listening_sockets::bind(const topology& t, const char* key,
                                                 const std::string& host, std::uint32_t& port) {
  const auto found = http::listen_on(host, static_cast<std::uint16_t>(port));
  if (!found.ok()) {
    const bool no_name = found.error().code == ec::bad_argument;
    return fail(error{ec::bad_config, located(t, place_of(t, no_name ? "gateway.bind" : key),
                                              fmt::format("{}: {}", no_name ? "gateway.bind" : key,
                                                          found.error().what))});
  }
  for (const int fd : found->descriptors)
    owned_.emplace_back(fd);
  port = found->port;
  return found->descriptors;
}

result<serve_options> listening_sockets::open(const topology& t) {
  const auto& g = t.gateway;
  serve_options o;
  o.gateways.resize(g.replicas);
  for (std::uint32_t i = 0; i < g.replicas; ++i) {
    auto& own = o.gateways[i];
    if (i > 0 && g.share_port) {
      own = {o.gateways[0].http, {}, o.gateways[0].http_port};
      continue;
    }
    own.http_port = g.http_port == 0 ? 0 : g.http_port + i;
    DI_TRY(own.http, bind(t, "cluster.ports.http", g.bind, own.http_port));
    o.urls.push_back(url_of(g.tls(), g.bind, own.http_port));
  }
  o.admin_port = g.admin_port;
  DI_TRY(o.gateways[0].admin, bind(t, "cluster.ports.admin", operators_host, o.admin_port));
  o.admin_url = url_of(false, operators_host, o.admin_port);
  return o;
}

result<void> check_gateway_ports(const topology& t, const cluster_plan& plan) {
  if (!plan.tcp || t.port_base == 0)
    return {};
  const auto ports = 2 * (2 + static_cast<std::uint32_t>(plan.ranks.size()) + t.gateway.replicas);
  const auto last = t.port_base + ports - 1;
  const auto refuse = [&](const char* key, const std::string& what) {
    return fail(
        error{ec::bad_config, located(t, t.blame({key, "cluster.ports.base"}, place{1, 1, 0}),
                                      fmt::format("{}: {}", key, what))});
  };
  if (last > 65535 || ports > t.port_range)
    return refuse(last > 65535 ? "cluster.ports.base" : "cluster.ports.range",
                  fmt::format("with {} gateways {} ports are needed from {} on, up to {}",
                              t.gateway.replicas, ports, t.port_base, last));
  const auto inside = [&](std::uint32_t port) { return port >= t.port_base && port <= last; };
  if (inside(t.gateway.http_port) || inside(t.gateway.admin_port))
    return refuse(inside(t.gateway.http_port) ? "cluster.ports.http" : "cluster.ports.admin",
                  fmt::format("ports {} to {} are those between nodes (cluster.ports.base)",
                              t.port_base, last));
  return {};
}

result<void> check_serving_files(const topology& t) {
  const auto& g = t.gateway;
  const auto at = [&](const char* key, const error& e) {
    return fail(
        error{ec::bad_config, located(t, place_of(t, key), fmt::format("{}: {}", key, e.what))});
  };
  if (!g.keys_file.empty()) {
    serve::api_keys keys{g.keys_file};
    if (const auto read = keys.reload(); !read.ok())
      return at("gateway.keys_file", read.error());
  }
  if (g.tls()) { // a server that serves nobody reads them as the real one will
    auto o = serve::http_options_of(g);
    o.host = operators_host;
    http::callbacks none;
    none.handler = [](const http::request&, const http::exchange_ptr&) {};
    if (const auto tried = http::server::start(std::move(o), std::move(none)); !tried.ok())
      return at("gateway.tls.cert", tried.error());
  }
  std::error_code ignored;
  if (t.tokenizer_path.empty()
      && !std::filesystem::exists(t.model_path + "/tokenizer.json", ignored))
    return fail(error{ec::bad_config, located(t, place_of(t, "model.path"),
                                              "model.path: there is no tokenizer.json, which "
                                              "serving needs; write model.tokenizer")});
  return {};
}

} // namespace di::launch
