// SPDX-License-Identifier: Apache-2.0
// What must hold before sockets are made: descriptors, private directories, keys, endpoints.
#pragma once

#include "messaging/bus/post_office.hpp"

namespace di::bus {

/// Raises the descriptor limit and checks endpoints and keys.
/// @errors limit_exceeded with the number needed, refused, bad_argument
result<void> check_start(const post_office_options& options);

/// Checks where a peer wants to be reached. @errors bad_argument, refused (tcp without a key)
result<void> check_peer(const peer& p, const post_office_options& options);

/// Raises the soft limit of descriptors to at least `needed`. @errors limit_exceeded: names both
/// numbers
result<void> raise_descriptor_limit(std::size_t needed);

} // namespace di::bus
