// SPDX-License-Identifier: Apache-2.0
// doc/protocol.md, made from the catalog: `dilaunch --print-protocol` prints it, a test compares
// it.
#pragma once

#include <string>

namespace di::wire {

/// The whole document, as Markdown.
std::string render_protocol();

} // namespace di::wire
