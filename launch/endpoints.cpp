// SPDX-License-Identifier: Apache-2.0
// Names, ports and keys of a run's sockets.
#include "launch/endpoints.hpp"

#include "launch/process.hpp"
#include "messaging/base/env.hpp"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <array>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace di::launch {
namespace {

incarnation fresh_life() {
  return incarnation{real_env().random() | 1U}; // never 0: that would mean "this process"
}

/// @param slot  0 for control, then 1 + rank, then agents, then gateways: two ports each
result<process_identity> tcp_identity(const topology& t, const std::string& address,
                                      std::uint32_t slot) {
  process_identity p;
  p.life = fresh_life();
  DI_TRY(const auto number, numeric_address(address));
  const auto host = number.find(':') == std::string::npos ? number : fmt::format("[{}]", number);
  const auto endpoint = [&](std::uint32_t which) {
    return t.port_base == 0 ? fmt::format("tcp://{}:*", host)
                            : fmt::format("tcp://{}:{}", host, t.port_base + 2 * slot + which);
  };
  p.control_endpoint = endpoint(0);
  p.bulk_endpoint = endpoint(1);
  DI_TRY(p.keys, bus::make_curve_keys());
  return p;
}

result<process_identity> ipc_identity(const std::string& dir, const std::string& name) {
  process_identity p;
  p.life = fresh_life();
  DI_TRY(const auto e, bus::ipc_endpoints(dir, name, p.life));
  p.control_endpoint = e.control;
  p.bulk_endpoint = e.bulk;
  return p;
}

} // namespace

std::optional<curve_boot> run_identities::curve_of(const process_identity& p) const {
  if (p.keys.public_key.empty())
    return std::nullopt;
  return curve_boot{p.keys.public_key, p.keys.secret_key, allowed};
}

result<run_identities> make_identities(const topology& t, const cluster_plan& plan,
                                       const std::string& dir, std::uint32_t gateways) {
  run_identities ids;
  if (!plan.tcp) {
    DI_TRY(ids.control, ipc_identity(dir, "control0"));
    for (const auto& r : plan.ranks) {
      DI_TRY(auto p, ipc_identity(dir, fmt::format("rank{}", r.rank)));
      ids.ranks.push_back(std::move(p));
    }
    for (std::uint32_t g = 0; g < gateways; ++g) {
      DI_TRY(auto p, ipc_identity(dir, fmt::format("gateway{}", g)));
      ids.gateways.push_back(std::move(p));
    }
    return ids;
  }
  DI_TRY(ids.control, tcp_identity(t, plan.nodes[0].address, 0));
  ids.allowed.push_back(ids.control.keys.public_key);
  for (const auto& r : plan.ranks) {
    DI_TRY(auto p, tcp_identity(t, plan.nodes[r.node].address, 1 + r.rank));
    ids.allowed.push_back(p.keys.public_key);
    ids.ranks.push_back(std::move(p));
  }
  const auto ranks = static_cast<std::uint32_t>(plan.ranks.size());
  for (std::uint32_t g = 0; g < gateways; ++g) {
    DI_TRY(auto p, tcp_identity(t, plan.nodes[0].address, 2 + ranks + g));
    ids.allowed.push_back(p.keys.public_key);
    ids.gateways.push_back(std::move(p));
  }
  return ids;
}

result<process_identity> next_life(const process_identity& before, bool tcp, const std::string& dir,
                                   const std::string& name) {
  if (!tcp)
    return ipc_identity(dir, name);
  auto p = before;
  p.life = fresh_life();
  return p;
}

void remove_sockets(const process_identity& p) {
  constexpr std::string_view scheme = "ipc://";
  for (const auto& endpoint : {p.control_endpoint, p.bulk_endpoint})
    if (endpoint.starts_with(scheme))
      ::unlink(endpoint.c_str() + scheme.size());
}

result<std::string> numeric_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0 || !found)
    return fail(ec::not_found, "address of {}: {}", host, ::gai_strerror(code));
  std::array<char, 64> text{};
  const auto* best = found;
  for (const auto* a = found; a; a = a->ai_next)
    if (a->ai_family == AF_INET) { // IPv4 where there is a choice: ZeroMQ binds it everywhere
      best = a;
      break;
    }
  const int named = ::getnameinfo(best->ai_addr, best->ai_addrlen, text.data(),
                                  static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST);
  ::freeaddrinfo(found);
  if (named != 0)
    return fail(ec::not_found, "address of {}: {}", host, ::gai_strerror(named));
  return std::string{text.data()};
}

result<std::string> own_address_towards(const std::string& numeric) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(numeric.c_str(), "9", &hints, &found); code != 0)
    return fail(ec::not_found, "address {}: {}", numeric, ::gai_strerror(code));
  // Connecting a datagram socket sends nothing; it makes the kernel choose the way.
  const unique_fd fd{::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  std::array<char, 64> text{};
  const bool good =
      fd && ::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0
      && ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0
      && ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(),
                       static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST)
             == 0;
  ::freeaddrinfo(found);
  if (!good)
    return fail(ec::not_found, "no way from this host to {}", numeric);
  return std::string{text.data()};
}

} // namespace di::launch
