// SPDX-License-Identifier: Apache-2.0
// CAF side of every actor: one mailbox type (envelope), a wake-up for timers, an orderly end.
#include "actors/shell.hpp"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>

#include <deque>

namespace di::actors {
namespace {

struct begin_order {};
struct wake_up {
  std::uint64_t generation = 0;
};
struct stop_order {
  error reason;
};

} // namespace
} // namespace di::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(di::envelope)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(di::actors::begin_order)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(di::actors::wake_up)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(di::actors::stop_order)

namespace di::actors {
namespace {

const caf::atom_value category = caf::atom("di");

caf::error to_caf(const di::error& e) {
  return {static_cast<std::uint8_t>(e.code), category, caf::make_message(e.what)};
}

di::error from_caf(const caf::error& e) {
  if (!e) // an empty error may not be asked for its category
    return {ec::ok, "ended normally"};
  if (e.category() == category && e.context().match_elements<std::string>())
    return {static_cast<ec>(e.code()), e.context().get_as<std::string>(0)};
  return {ec::internal, "CAF exit reason " + caf::to_string(e)};
}

class shell_actor : public caf::event_based_actor {
public:
  shell_actor(caf::actor_config& config, driver_options options, std::unique_ptr<core_handle> core)
      : caf::event_based_actor{config},
        office_{options.office},
        path_{options.self},
        driver_{std::make_unique<core_driver>(std::move(options), std::move(core))} {
    // The core's own exceptions end in its handle; this is for what is left.
    set_exception_handler([](std::exception_ptr& p) -> caf::error {
      try {
        std::rethrow_exception(p);
      } catch (const std::exception& e) {
        return to_caf({ec::internal, std::string{"exception: "} + e.what()});
      } catch (...) {
        return to_caf({ec::internal, "exception of unknown type"});
      }
    });
  }

  caf::behavior make_behavior() override {
    return {[this](const envelope& mail) {
              if (!begun_)
                early_.push_back(mail);
              else
                settle(driver_->on(mail, now()));
            },
            [this](const wake_up& w) {
              if (w.generation != generation_)
                return; // replaced by an earlier one
              wake_at_.reset();
              settle(driver_->on_wake(now()));
            },
            [this](const begin_order&) { begin(); },
            [this](const stop_order& order) { end(order.reason); }};
  }

  void on_exit() override {
    // The path is free before anyone learns of the end, so that a successor can take it.
    if (bound_)
      office_->unbind(path_, reason_);
    driver_.reset();
    early_.clear();
  }

  const char* name() const override { return "di.shell"; }

private:
  instant now() {
    return {std::chrono::duration_cast<std::chrono::nanoseconds>(clock().now().time_since_epoch())
                .count()};
  }

  void begin() {
    begun_ = bound_ = true;
    settle(driver_->start(now()));
    while (!ended_ && !early_.empty()) {
      const envelope mail = std::move(early_.front());
      early_.pop_front();
      settle(driver_->on(mail, now()));
    }
  }

  void settle(const result<void>& outcome) {
    if (!outcome)
      return end(outcome.error());
    const auto next = driver_->next_wake();
    if (!next || (wake_at_ && *wake_at_ <= *next))
      return;
    wake_at_ = next;
    const auto wait = std::max(duration{}, *next - now());
    delayed_send(this, wait, wake_up{++generation_});
  }

  void end(const error& reason) {
    ended_ = true;
    reason_ = reason;
    quit(reason.code == ec::ok ? caf::error{} : to_caf(reason));
  }

  bus::post_office* office_;
  di::address path_;
  std::unique_ptr<core_driver> driver_;
  std::deque<envelope> early_;
  std::optional<instant> wake_at_;
  std::uint64_t generation_ = 0;
  bool begun_ = false, bound_ = false, ended_ = false;
  error reason_{ec::internal, "killed"};
};

} // namespace

caf::actor spawn_shell(caf::actor_system& host, driver_options options,
                       std::unique_ptr<core_handle> core, bool detached) {
  if (detached)
    return host.spawn<shell_actor, caf::detached>(std::move(options), std::move(core));
  return host.spawn<shell_actor>(std::move(options), std::move(core));
}

void begin_shell(const caf::actor& shell) {
  caf::anon_send(shell, begin_order{});
}

void mail_to_shell(const caf::actor& shell, envelope mail) {
  caf::anon_send(shell, std::move(mail));
}

void stop_shell(const caf::actor& shell, const error& reason) {
  caf::anon_send(shell, stop_order{reason});
}

void on_shell_end(const caf::actor& shell, std::function<void(const error&)> ended) {
  caf::actor_cast<caf::abstract_actor*>(shell)->attach_functor(
      [ended = std::move(ended)](const caf::error& reason) { ended(from_caf(reason)); });
}

} // namespace di::actors
