// SPDX-License-Identifier: Apache-2.0
// Where the shell of KV_AGENT is instantiated, once.
#include "actors/kv_agent.hpp"

namespace di::actors {

std::unique_ptr<core_handle> make_kv_agent(engine::kv_agent_options options) {
  return wrap_core<kv_agent>(options);
}

} // namespace di::actors
