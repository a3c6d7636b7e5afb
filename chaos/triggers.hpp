// SPDX-License-Identifier: Apache-2.0
// When the faults of a plan strike: time since the batch began, and what the log says.
#pragma once

#include "chaos/plan.hpp"
#include "chaos/run_log.hpp"
#include "launch/poll_loop.hpp"

#include <functional>
#include <string>
#include <vector>

namespace di::chaos {

/// Each fault strikes once its trigger has come, and again as `times` and `every` say. Used by one
/// thread.
class triggers {
public:
  using strike = std::function<void(std::size_t number, bool in_step)>;

  /// @param p  lives longer than this
  triggers(const plan& p, launch::poll_loop& loop, strike what);

  void see(const log_event& e);
  /// No more from now on: the run has ended.
  void stop() noexcept { stopped_ = true; }
  /// Faults that have not struck as often as they should.
  std::size_t waiting() const noexcept;

private:
  struct state {
    bool fired = false;
    std::uint32_t struck = 0; ///< so often
    std::uint32_t left = 0;   ///< strikes that wait for their trigger to come again
  };
  bool comes(const fault& f, const log_event& e) const;
  /// Strikes again whenever all ranks are there again.
  void see_whole(std::size_t number, const log_event& e);
  void fire(std::size_t number);
  void strike_later(std::size_t number, nanoseconds in, std::uint32_t left);

  const plan& plan_;
  launch::poll_loop& loop_;
  strike strike_;
  std::vector<state> states_;
  std::int64_t members_max_ = 0; ///< of a view so far
  bool began_ = false, stopped_ = false;
};

} // namespace di::chaos
