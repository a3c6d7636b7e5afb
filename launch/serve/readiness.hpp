// SPDX-License-Identifier: Apache-2.0
// Whether clients may come: what a gateway process learns of the start of the run, of the control
// process, and from a request of its own.
#pragma once

#include "actors/kit.hpp"
#include "actors/stream_gateway.hpp"
#include "launch/serve/health_source.hpp"
#include "messaging/proto/scheduler.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace di::serve {

///   loading   --all processes ready, a placement is settled--> proving (a request of its own)
///   proving   --one token came--> serving
///   serving   <--control answers | does not--> recovering
///   any       --drain()--> draining, for good
///
/// Any thread.
class readiness final : public health_source {
public:
  /// @param recovering  an earlier life of this gateway has served: nothing is left to prove
  readiness(std::uint32_t ranks, bool recovering);

  health_state health() const override;

  /// So many of so many processes of the run are ready. @param missing  names of the others
  void processes(std::uint32_t ready, std::uint32_t all, std::string missing);
  /// Control answered: so many ranks may be used.
  void control_answered(std::uint32_t ranks_ready);
  void control_silent(std::string why);
  /// The own request got its token, or did not.
  void proved();
  void not_proved(std::string why);
  void drain();
  void contract(std::string id);

  /// Whether the own request should be sent now.
  bool wants_proof() const;
  /// Called once, when it is ready for the first time, on the thread that made it so. Set before
  /// anything is told.
  void on_ready(std::function<void()> told) { told_ = std::move(told); }

private:
  void settle(std::unique_lock<std::mutex> lock);

  const bool recovering_;
  mutable std::mutex guard_;
  health_state now_;
  bool reachable_ = false, proved_ = false, told_once_ = false;
  std::string missing_ = "the processes are starting", silence_ = "control has not answered yet",
              doubt_ = "the first token has not come yet";
  std::function<void()> told_;
};

struct probe_options {
  std::shared_ptr<readiness> state;
  std::shared_ptr<actors::gateway_desk> desk;
  token_id token = 0;                                     ///< the prompt of the own request
  duration period = std::chrono::seconds{1};              ///< while all is well
  duration period_short = std::chrono::milliseconds{200}; ///< else
  duration timeout = std::chrono::seconds{2};             ///< of one question
};

/// Asks SCHEDULER and KEEPER now and then, and sends the own request once there are ranks.
class probe_core {
public:
  explicit probe_core(probe_options options) : options_{std::move(options)} {}

  void start(instant now, outbox& out) { on_due({1, 0}, now, out); }
  void on_due(timer which, instant now, outbox& out);
  void on_answer(std::uint64_t tag, const result<parcel>& answer, instant now, outbox& out);

private:
  void prove();

  probe_options options_;
  struct source {
    std::uint64_t answered = 0; ///< tag of the newest answer
    std::uint32_t ranks = 0;    ///< [ranks] that it has
    bool silent = true;         ///< its newest question failed, or has no answer yet
  };
  std::uint64_t asked_ = 0; ///< the newest tag
  source scheduler_, keeper_;
  std::shared_ptr<actors::stream_listener> proof_; ///< of the own request that is under way
};

struct probe {
  static constexpr auto kind = "gateway_probe";
  using core = probe_core;
  using protocol = di::protocol<>;
};

/// For <prefix>/probe.
std::unique_ptr<core_handle> make_probe(probe_options options);

} // namespace di::serve
