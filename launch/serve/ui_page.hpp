// SPDX-License-Identifier: Apache-2.0
// The live page as it is served.
#pragma once

#include <string_view>

namespace di::serve {

/// launch/serve/ui.html.
std::string_view ui_page() noexcept;

} // namespace di::serve
