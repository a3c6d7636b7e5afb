// SPDX-License-Identifier: Apache-2.0
// Clients of the online gateway in the simulator: they outlive it, leave, come back, cancel, and
// hear each index once.
#pragma once

#include "actors/kit.hpp"
#include "chaos/sim_random.hpp"
#include "chaos/sim_world.hpp"
#include "engine/core/stream_gateway_core.hpp"

#include <functional>
#include <string>
#include <vector>

namespace di::sim {

/// The gateway process can die; its next life is begun with the same clients, and those that had
/// a request attach to it again from where they are.
class sim_streams {
public:
  sim_streams(sim_world& world, const std::vector<proto::request_spec>& requests, sim_random r);

  /// What a request's choice must give.
  std::function<const std::vector<token_id>&(request_id, std::uint32_t choice)> reference;

  void begin(sim_process& gateway); ///< a life of the gateway
  void died();                      ///< that life is no more
  bool done() const;
  std::uint64_t tokens() const noexcept { return tokens_; }
  std::string where_they_stand() const;

private:
  friend class stream_client_core;
  enum class state : std::uint8_t {
    unsent,    ///< waits for its time
    following, ///< submitted, or attached
    away,      ///< comes back
    done
  };
  struct client {
    proto::request_spec spec;
    std::uint64_t detached_ms = 0;
    duration submits_after{}, leaves_after{}, cancels_after{}; ///< 0: never
    state is = state::unsent;
    std::vector<std::uint32_t> seen; ///< output index per choice
    std::vector<bool> ended;
    bool submitted = false, cancelled = false;
  };

  void hear(const engine::stream_news::tokens& n);
  void over(client& c);
  client* find(request_id id);

  sim_world& world_;
  std::vector<client> clients_;
  std::uint64_t tokens_ = 0;
};

} // namespace di::sim
