// SPDX-License-Identifier: Apache-2.0
// States of readiness, and the probe that asks for them.
#include "launch/serve/readiness.hpp"

#include "messaging/proto/keeper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace di::serve {
namespace {

/// The own request. Its desk holds it until its end.
class proof final : public actors::stream_listener {
public:
  explicit proof(std::shared_ptr<readiness> state) : state_{std::move(state)} {}

  void opened() override {}
  void known(request_id, bool) override { over_ = true; }
  void tokens(const proto::tokens_released& m) override {
    if (m.end.reason == proto::finish_reason::none)
      return;
    over_ = true;
    if (m.end.reason == proto::finish_reason::error)
      state_->not_proved(fmt::format("the first token did not come: {}", m.end.what));
    else
      state_->proved();
  }
  void ended(const proto::choice_end& why, std::uint32_t) override {
    over_ = true;
    state_->not_proved(fmt::format("the first token did not come: {}", why.what));
  }
  bool over() const { return over_; }

private:
  std::shared_ptr<readiness> state_;
  std::atomic<bool> over_ = false;
};

/// In tags of questions to KEEPER.
constexpr std::uint64_t of_keeper = std::uint64_t{1} << 63;

} // namespace

readiness::readiness(std::uint32_t ranks, bool recovering) : recovering_{recovering} {
  now_.ranks = ranks;
  settle(std::unique_lock{guard_});
}

health_state readiness::health() const {
  const std::lock_guard lock{guard_};
  return now_;
}

void readiness::processes(std::uint32_t ready, std::uint32_t all, std::string missing) {
  std::unique_lock lock{guard_};
  now_.progress = all == 0 ? 0 : static_cast<double>(ready) / all;
  missing_ = missing.empty()
                 ? std::string{}
                 : fmt::format("{} of {} processes are ready; missing: {}", ready, all, missing);
  settle(std::move(lock));
}

void readiness::control_answered(std::uint32_t ranks_ready) {
  std::unique_lock lock{guard_};
  reachable_ = true;
  now_.ranks_ready = ranks_ready;
  settle(std::move(lock));
}

void readiness::control_silent(std::string why) {
  std::unique_lock lock{guard_};
  reachable_ = false;
  silence_ = "the control process does not answer: " + std::move(why);
  settle(std::move(lock));
}

void readiness::proved() {
  std::unique_lock lock{guard_};
  proved_ = true;
  settle(std::move(lock));
}

void readiness::not_proved(std::string why) {
  std::unique_lock lock{guard_};
  doubt_ = std::move(why);
  settle(std::move(lock));
}

void readiness::drain() {
  std::unique_lock lock{guard_};
  now_.draining = true;
  settle(std::move(lock));
}

void readiness::contract(std::string id) {
  const std::lock_guard lock{guard_};
  now_.contract = std::move(id);
}

bool readiness::wants_proof() const {
  const std::lock_guard lock{guard_};
  return !proved_ && !recovering_ && !now_.draining && reachable_ && now_.ranks_ready > 0;
}

void readiness::settle(std::unique_lock<std::mutex> lock) {
  const bool usable = reachable_ && now_.ranks_ready > 0;
  const bool shown = proved_ || (recovering_ && usable);
  now_.started = now_.started || shown;
  if (now_.started)
    now_.progress = 1;
  now_.ready = now_.started && usable && !now_.draining;
  now_.phase = now_.draining  ? "draining"
               : now_.ready   ? "serving"
               : now_.started ? "recovering"
               : usable       ? "proving"
                              : "loading";
  now_.why = now_.ready          ? ""
             : now_.draining     ? "the server is being stopped"
             : usable            ? doubt_
             : reachable_        ? "no rank may be used now"
             : now_.started      ? silence_
             : !missing_.empty() ? missing_
                                 : silence_;
  const bool tell = now_.ready && !std::exchange(told_once_, told_once_ || now_.ready);
  lock.unlock();
  if (tell && told_)
    told_();
}

void probe_core::on_due(timer which, instant, outbox& out) {
  out.request("/control/scheduler", proto::get_schedule{}, ++asked_, options_.timeout);
  out.request("/control/keeper", proto::get_keeper{}, asked_ | of_keeper, options_.timeout);
  out.arm(which, options_.state->health().ready ? options_.period : options_.period_short);
}

void probe_core::on_answer(std::uint64_t tag, const result<parcel>& answer, instant, outbox&) {
  source& from = (tag & of_keeper) != 0 ? keeper_ : scheduler_;
  tag &= ~of_keeper;
  if (tag <= from.answered)
    return; // a newer question has its answer
  const auto* schedule = answer ? answer->as<proto::schedule>() : nullptr;
  const auto* keeper = answer ? answer->as<proto::keeper_state>() : nullptr;
  from.silent = schedule == nullptr && keeper == nullptr;
  if (from.silent)
    return options_.state->control_silent(answer ? "another answer" : answer.error().what);
  from.answered = tag;
  // A dead rank stays in the view until another view is made: the last one does for long.
  from.ranks = static_cast<std::uint32_t>(
      schedule != nullptr
          ? static_cast<std::ptrdiff_t>(schedule->ranks.size())
          : std::count_if(keeper->ranks.begin(), keeper->ranks.end(),
                          [](const proto::kept_rank& r) { return r.state == "member"; }));
  if (scheduler_.silent || keeper_.silent)
    return;
  options_.state->control_answered(std::min(scheduler_.ranks, keeper_.ranks));
  prove();
}

void probe_core::prove() {
  if (!options_.state->wants_proof() || (proof_ && !static_cast<const proof&>(*proof_).over()))
    return;
  actors::stream_order order;
  order.spec.prompt = {options_.token};
  order.spec.sampling.max_tokens = 1;
  order.spec.sampling.temperature = 0;
  order.spec.sampling.ignore_eos = true;
  order.spec.deadline_ms = 30'000;
  proof_ = std::make_shared<proof>(options_.state);
  options_.desk->submit(std::move(order), proof_);
}

std::unique_ptr<core_handle> make_probe(probe_options options) {
  return wrap_core<probe>(std::move(options));
}

} // namespace di::serve
