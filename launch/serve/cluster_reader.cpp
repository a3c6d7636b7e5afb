// SPDX-License-Identifier: Apache-2.0
// Rounds of questions.
#include "launch/serve/cluster_reader.hpp"

#include "messaging/base/env.hpp"
#include "messaging/proto/bus.hpp"

namespace di::serve {

struct cluster_reader::desk : std::enable_shared_from_this<desk> {
  struct round {
    cluster_reading found;
    std::size_t open = 0;
    done_fn done;
  };

  desk(bus::post_office& o, address p) : office{o}, path{std::move(p)} {}

  template <message M>
  void ask(std::uint64_t number, const address& to, M m) {
    envelope mail;
    mail.to = to;
    mail.from = path;
    mail.kind = mail_kind::request;
    mail.request = office.number();
    mail.deadline = real_env().now() + timeout;
    mail.body = parcel::of(std::move(m));
    {
      const std::lock_guard lock{guard};
      questions[mail.request] = {number, to};
    }
    const auto request = mail.request;
    if (const auto sent = office.post(std::move(mail)); !sent.ok()) {
      envelope failed;
      failed.request = request;
      failed.body = parcel::of(proto::request_failed{sent.error().code, sent.error().what});
      deliver(failed);
    }
  }

  void deliver(const envelope& mail) {
    std::unique_lock lock{guard};
    const auto found = questions.find(mail.request);
    if (found == questions.end())
      return;
    const auto [number, to] = std::move(found->second);
    questions.erase(found);
    const auto at = rounds.find(number);
    if (at == rounds.end())
      return;
    auto& r = at->second.found;
    if (const auto* k = mail.body.as<proto::keeper_state>())
      r.keeper = *k;
    else if (const auto* s = mail.body.as<proto::schedule>())
      r.schedule = *s;
    else if (const auto* j = mail.body.as<proto::journal_state>())
      r.journal = *j;
    else if (const auto* c = mail.body.as<proto::snapshot>())
      r.counters = *c;
    else if (const auto* h = mail.body.as<proto::expert_heat>())
      r.heat = *h;
    else if (const auto* f = mail.body.as<proto::request_failed>(); f && to == keeper)
      r.missing = error{f->code, f->what}.render();
    finish_part(at, lock);
  }

  /// One question of a round is over.
  void finish_part(std::map<std::uint64_t, round>::iterator at,
                   std::unique_lock<std::mutex>& lock) {
    if (--at->second.open > 0)
      return;
    const round whole = std::move(at->second);
    rounds.erase(at);
    lock.unlock();
    whole.done(whole.found);
  }

  static constexpr const char* keeper = "/control/keeper";
  bus::post_office& office;
  address path;
  std::mutex guard;
  std::map<std::uint64_t, round> rounds;
  std::map<std::uint64_t, std::pair<std::uint64_t, address>> questions; ///< number -> round, to
  std::uint64_t last = 0;
};

result<std::unique_ptr<cluster_reader>> cluster_reader::open(bus::post_office& office,
                                                             address path) {
  auto d = std::make_shared<desk>(office, path);
  DI_TRY_VOID(office.bind(path, [d](const envelope& mail) { d->deliver(mail); }));
  return std::unique_ptr<cluster_reader>{new cluster_reader{std::move(d)}};
}

cluster_reader::~cluster_reader() {
  desk_->office.unbind(desk_->path, {ec::ok, ""});
}

void cluster_reader::read(bool with_heat, done_fn done) {
  std::uint64_t number = 0;
  {
    std::unique_lock lock{desk_->guard};
    if (desk_->rounds.size() >= rounds_max) {
      lock.unlock();
      cluster_reading nothing;
      nothing.missing = "too many questions at a time";
      return done(std::move(nothing));
    }
    number = ++desk_->last;
    auto& r = desk_->rounds[number];
    r.done = std::move(done);
    r.open = 1; // no answer is the last before all are asked
    r.open += with_heat ? 5 : 4;
  }
  desk_->ask(number, desk::keeper, proto::get_keeper{});
  desk_->ask(number, "/control/scheduler", proto::get_schedule{});
  desk_->ask(number, "/control/journal", proto::get_journal{});
  desk_->ask(number, "/control/telemetry", proto::get_snapshot{});
  if (with_heat)
    desk_->ask(number, "/control/rebalancer", proto::get_heat{});
  std::unique_lock lock{desk_->guard};
  desk_->finish_part(desk_->rounds.find(number), lock);
}

} // namespace di::serve
