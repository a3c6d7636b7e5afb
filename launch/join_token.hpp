// SPDX-License-Identifier: Apache-2.0
// What an agent must know to join a run: where the launcher is, and keys. A file of mode 0600.
#pragma once

#include "messaging/base/result.hpp"
#include "messaging/bus/post_office.hpp"

#include <string>

namespace di::launch {

struct join_token {
  bus::peer launcher;   ///< its public key is in it
  bus::curve_keys keys; ///< of all agents of this run
};

/// Before a run starts: nothing is at `file`, and its folder can be written to.
/// @errors duplicate, io_error
result<void> check_token_file(const std::string& file);
/// Makes the file; nobody else can read it at any moment. @errors io_error, duplicate (it exists)
result<void> write_token(const std::string& file, const join_token& token);
/// @errors io_error, bad_format, refused (others may read it)
result<join_token> read_token(const std::string& file);

} // namespace di::launch
