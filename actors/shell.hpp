// SPDX-License-Identifier: Apache-2.0
// The CAF actor around any core. Included by shell.cpp and system.cpp only: everyone else spawns
// through system.hpp and pays for no CAF header.
#pragma once

#include "actors/core_driver.hpp"

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/error.hpp>

namespace di::actors {

/// Spawns the shell. It keeps mail back until begin_shell().
caf::actor spawn_shell(caf::actor_system& host, driver_options options,
                       std::unique_ptr<core_handle> core, bool detached);
/// Lets it start its core and work off what has come in.
void begin_shell(const caf::actor& shell);
/// Hands it an envelope. Any thread; neither blocks nor throws.
void mail_to_shell(const caf::actor& shell, envelope mail);
/// Ends it with a reason, after the mail that it has.
void stop_shell(const caf::actor& shell, const error& reason);
/// Calls `ended` once when the shell is gone, at once if it is gone already.
void on_shell_end(const caf::actor& shell, std::function<void(const error&)> ended);

} // namespace di::actors
