// SPDX-License-Identifier: Apache-2.0
// Which sockets each process of a run binds, and with which keys.
#pragma once

#include "launch/boot.hpp"
#include "launch/plan.hpp"
#include "messaging/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace di::launch {

/// Sockets and keys of one process.
struct process_identity {
  incarnation life;
  std::string control_endpoint, bulk_endpoint;
  bus::curve_keys keys; ///< empty on ipc
};

/// Identities of all processes of one run.
struct run_identities {
  process_identity control;
  std::vector<process_identity> ranks;
  std::vector<process_identity> gateways;
  std::vector<std::string> allowed; ///< public keys of all

  /// Keys for the boot configuration of one process; none on ipc.
  std::optional<curve_boot> curve_of(const process_identity& p) const;
};

/// One node: ipc sockets in `dir`. Several: tcp at the nodes' addresses, from port_base on (0: any
/// free port), with fresh CURVE keys.
/// @param gateways  processes of this role, all at the first node
/// @errors not_found: an address has no number; internal: no CURVE
result<run_identities> make_identities(const topology& t, const cluster_plan& plan,
                                       const std::string& dir, std::uint32_t gateways = 0);

/// The next life of a process: same ports and keys on tcp, fresh socket names on ipc.
/// @param name  of its sockets, e.g. rank3 @errors limit_exceeded
result<process_identity> next_life(const process_identity& before, bool tcp, const std::string& dir,
                                   const std::string& name);

/// Takes away the socket files of a process that has ended, if it had any.
void remove_sockets(const process_identity& p);

/// Numeric form of a host name or address, for binding. @errors not_found
result<std::string> numeric_address(const std::string& host);

/// Address of this host on the way to another one. @errors not_found
result<std::string> own_address_towards(const std::string& numeric);

} // namespace di::launch
