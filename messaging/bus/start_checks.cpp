// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/start_checks.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace di::bus {
namespace {

constexpr std::size_t key_characters = 40;

result<void> check_endpoint(const std::string& where) {
  if (where.starts_with("tcp://")) {
    if (where.rfind(':') <= 5)
      return fail(ec::bad_argument, "{} has no port", where);
    return {};
  }
  if (!where.starts_with("ipc:///"))
    return fail(ec::bad_argument, "{} is neither ipc:///path nor tcp://host:port", where);
  const std::string path = where.substr(6);
  if (path.size() > limits::socket_path_bytes_max)
    return fail(ec::limit_exceeded, "socket path {} has {} bytes, at most {} are possible", path,
                path.size(), limits::socket_path_bytes_max);
  return {};
}

/// Binding replaces whatever lies at the path, and unix sockets ask for no key: nobody else may
/// reach the directory.
result<void> check_private(const std::string& where) {
  if (!where.starts_with("ipc://"))
    return {};
  const std::string dir = where.substr(6, where.rfind('/') - 6);
  struct stat s {};
  if (::stat(dir.c_str(), &s) != 0)
    return fail(ec::io_error, "run directory {}: {}", dir, std::strerror(errno));
  if (s.st_uid != ::geteuid() || (s.st_mode & 077) != 0)
    return fail(ec::refused, "run directory {} has owner {} and mode {:o}, expected {} and 700",
                dir, s.st_uid, s.st_mode & 0777, ::geteuid());
  return {};
}

} // namespace

result<void> raise_descriptor_limit(std::size_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return fail(ec::io_error, "cannot read the descriptor limit: {}", std::strerror(errno));
  if (limit.rlim_cur >= needed)
    return {};
  if (limit.rlim_max < needed)
    return fail(ec::limit_exceeded,
                "{} descriptors are needed, the hard limit is {}: raise it (ulimit -Hn) or lower "
                "the number of peers",
                needed, limit.rlim_max);
  limit.rlim_cur = needed;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return fail(ec::limit_exceeded, "cannot raise the descriptor limit to {}: {}", needed,
                std::strerror(errno));
  return {};
}

result<void> check_peer(const peer& p, const post_office_options& options) {
  for (const std::string* where : {&p.control_endpoint, &p.bulk_endpoint}) {
    DI_TRY_VOID(check_endpoint(*where));
    if (where->starts_with("tcp://")
        && (p.curve_key.size() != key_characters
            || options.keys.secret_key.size() != key_characters))
      return fail(ec::refused, "{} at {}: tcp needs CURVE keys on both sides", p.prefix, *where);
  }
  return {};
}

result<void> check_start(const post_office_options& options) {
  if (options.control_endpoint.empty() != options.bulk_endpoint.empty())
    return fail(ec::bad_argument, "{} has one endpoint, two or none are needed", options.prefix);
  if (options.control_endpoint.empty())
    return {};
  if (options.peers == 0 || options.peers > limits::peers_max)
    return fail(ec::limit_exceeded, "{} peers, at most {} are possible", options.peers,
                limits::peers_max);
  for (const std::string* where : {&options.control_endpoint, &options.bulk_endpoint}) {
    DI_TRY_VOID(check_endpoint(*where));
    DI_TRY_VOID(check_private(*where));
    if (where->starts_with("tcp://")
        && (options.keys.public_key.size() != key_characters
            || options.keys.secret_key.size() != key_characters))
      return fail(ec::refused, "{}: tcp needs CURVE keys", *where);
  }
  return raise_descriptor_limit(options.peers * limits::descriptors_per_peer
                                + limits::descriptors_other);
}

result<endpoints> ipc_endpoints(const std::string& dir, std::string_view name, incarnation life) {
  endpoints out{fmt::format("ipc://{}/{}-{:016x}.c.sock", dir, name, life.v),
                fmt::format("ipc://{}/{}-{:016x}.b.sock", dir, name, life.v)};
  DI_TRY_VOID(check_endpoint(out.control));
  return out;
}

} // namespace di::bus
