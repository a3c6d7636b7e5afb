// SPDX-License-Identifier: Apache-2.0
// `dilaunch chat`: talks to a server from the terminal.
#pragma once

namespace CLI {
class App;
}

namespace di::launch {

/// Adds the command. It sets `exit_code`: 0 done, 2 bad arguments, 3 no answer or an error of the
/// server, 130 cancelled by Ctrl-C with a pipe as input.
void add_chat_command(CLI::App& app, int& exit_code);

} // namespace di::launch
