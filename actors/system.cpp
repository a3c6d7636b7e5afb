// SPDX-License-Identifier: Apache-2.0
// Life of the actors of a process on CAF's scheduler.
#include "actors/system.hpp"

#include "actors/shell.hpp"
#include "messaging/base/log.hpp"
#include "messaging/proto/topic.hpp"

#include <caf/actor_system_config.hpp>

#include <algorithm>
#include <condition_variable>

namespace di::actors {
namespace {

std::string_view name_of(mail_kind k) {
  switch (k) {
  case mail_kind::tell:
    return "tell";
  case mail_kind::request:
    return "request";
  case mail_kind::reply:
    return "reply";
  case mail_kind::failure:
    return "failure";
  }
  return "?";
}

void log_mail(const wire::codec_table* codecs, const address& self, bool incoming,
              const envelope& mail) {
  log::debug(incoming ? "mail_received" : "mail_sent",
             {{"actor", self},
              {incoming ? "from" : "to", incoming ? mail.from : mail.to},
              {"kind", name_of(mail.kind)},
              {"request", mail.request},
              {"body", codecs ? codecs->print(mail.body) : std::string{mail.body.name()}}});
}

} // namespace

struct system::state {
  struct entry {
    address path;
    std::uint64_t number = 0; ///< tells lives of one path apart
    caf::actor shell;
  };

  state(system_options o, bus::post_office& p) : options{std::move(o)}, office{p} {
    // No middleman, no files: the wire is ours, and command line and environment must not matter.
    config.set("scheduler.policy", options.testing ? caf::atom("testing") : caf::atom("sharing"));
    config.set("scheduler.max-threads", static_cast<std::size_t>(std::max(1U, options.threads)));
    host = std::make_unique<caf::actor_system>(config);
    if (!options.trace)
      options.trace = [codecs = options.codecs](const address& self, bool incoming,
                                                const envelope& mail) {
        if (log::enabled(log::level::debug))
          log_mail(codecs.get(), self, incoming, mail);
      };
  }

  /// Its number, or 0 if no actor may start any more.
  std::uint64_t note(const address& path, const caf::actor& shell) {
    const std::lock_guard lock{guard};
    if (closing)
      return 0;
    actors.push_back({path, ++spawned, shell});
    return spawned;
  }

  void forget(std::uint64_t number) {
    const std::lock_guard lock{guard};
    std::erase_if(actors, [&](const entry& e) { return e.number == number; });
    changed.notify_all();
  }

  system_options options;
  bus::post_office& office;
  metrics counters;
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> host;
  mutable std::mutex guard;
  std::condition_variable changed;
  std::vector<entry> actors; ///< in order of spawning
  std::uint64_t spawned = 0;
  bool closing = false; ///< a supervisor must not restart what stop_all() ends
};

system::system(system_options options, bus::post_office& office)
    : state_{std::make_shared<state>(std::move(options), office)} {
}

system::~system() {
  if (state_->options.testing) {
    for (const auto& path : paths())
      stop(path);
  } else {
    stop_all(std::chrono::seconds{5});
  }
  state_->host.reset(); // waits for the actors, which still use the rest
}

result<void> system::spawn(const address& path, std::unique_ptr<core_handle> core,
                           spawn_options options) {
  driver_options driver{path,
                        &state_->office,
                        &state_->counters,
                        state_->options.trace,
                        state_->options.testing,
                        options.progress};
  const auto shell =
      spawn_shell(*state_->host, std::move(driver), std::move(core), options.detached);
  const auto bound =
      state_->office.bind(path, [shell](envelope mail) { mail_to_shell(shell, std::move(mail)); });
  if (!bound) {
    stop_shell(shell, bound.error());
    return bound;
  }
  const auto undo = [&](const error& why) {
    state_->office.unbind(path, why);
    stop_shell(shell, why);
    return fail(why);
  };
  for (const auto& fact : options.listen) {
    envelope mail;
    mail.to = topic_address;
    mail.from = path;
    mail.body = parcel::of(proto::subscribe{fact, path});
    if (const auto sent = state_->office.post(std::move(mail)); !sent)
      return undo(sent.error());
  }
  const auto number = state_->note(path, shell);
  if (number == 0)
    return undo({ec::unavailable, "all actors of this process are being stopped"});
  if (options.life > 1)
    log::info("actor_restarted", {{"actor", path}, {"life", options.life}});
  on_shell_end(shell, [state = std::weak_ptr{state_}, number, path,
                       ended = std::move(options.ended)](const error& reason) {
    const auto level = reason.code == ec::ok ? log::level::debug : log::level::warn;
    if (log::enabled(level))
      log::write(level, "actor_ended", {{"actor", path}, {"reason", reason.render()}});
    if (ended)
      ended(reason);
    // Last: who waits in stop_all() may destroy what `ended` uses.
    if (const auto alive = state.lock())
      alive->forget(number);
  });
  begin_shell(shell);
  return {};
}

result<void> system::spawn(const registry& types, std::string_view kind, const address& path,
                           std::vector<config_entry> config, spawn_options options) {
  const actor_context context{path, options.life,
                              actor_config{std::move(config), fmt::format("{} at {}", kind, path)},
                              &state_->office};
  DI_TRY(auto core, types.make(kind, context));
  return spawn(path, std::move(core), std::move(options));
}

void system::stop(const address& path, const error& reason) {
  const std::lock_guard lock{state_->guard};
  for (const auto& e : state_->actors)
    if (e.path == path)
      stop_shell(e.shell, reason);
}

bool system::closing() const {
  const std::lock_guard lock{state_->guard};
  return state_->closing;
}

bool system::stop_all(duration limit) {
  std::unique_lock lock{state_->guard};
  state_->closing = true;
  for (auto e = state_->actors.rbegin(); e != state_->actors.rend(); ++e)
    stop_shell(e->shell, {ec::ok, "stopped"});
  return state_->changed.wait_for(lock, limit, [&] { return state_->actors.empty(); });
}

std::vector<address> system::paths() const {
  const std::lock_guard lock{state_->guard};
  std::vector<address> all;
  for (const auto& e : state_->actors)
    all.push_back(e.path);
  return all;
}

metrics& system::counters() noexcept {
  return state_->counters;
}

bus::post_office& system::office() noexcept {
  return state_->office;
}

caf::actor_system& system::host() noexcept {
  return *state_->host;
}

} // namespace di::actors
