// SPDX-License-Identifier: Apache-2.0
// One run: faults, healing, and what is demanded at the end.
#include "chaos/sim_cluster.hpp"
#include "messaging/proto/keeper.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace di::sim {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr duration crash_within = seconds{4}; ///< then crashes that did not happen never will
constexpr duration serve_within = seconds{120};
constexpr duration end_within = std::chrono::hours{2}; ///< hold-offs and quarantines are in it

} // namespace

void sim_cluster::crash_watch::on_mail(mail_event what, const sim_process& process,
                                       const address& self, const envelope& mail) {
  (void)self;
  if (!owner_.armed_ || (what != mail_event::sent && what != mail_event::received))
    return;
  const bool sent = what == mail_event::sent;
  const std::uint32_t n = ++(sent ? sent_ : received_)[mail.body.id()];
  for (const fault& f : owner_.options_.faults) {
    if (f.kind != fault_kind::crash || f.on != mail.body.id() || f.nth != n || f.sender != sent
        || !process.prefix.starts_with("/rank/"))
      continue;
    const rank_id rank{static_cast<std::uint32_t>(std::stoul(process.prefix.substr(6)))};
    owner_.world_.after(duration{0}, [this, rank, life = process.life] {
      if (owner_.nodes_.life_of(rank) == life) {
        owner_.ranks_.erase(life);
        owner_.nodes_.killed(rank, "crashed at a message");
      }
    });
  }
}

bool sim_cluster::serving() const {
  return invariants_.view().v > 0 && gateway_->state().waiting < drawn_.requests.size();
}

void sim_cluster::schedule_faults() {
  armed_ = true;
  for (const fault& f : options_.faults)
    if (f.kind != fault_kind::crash)
      world_.after(f.at, [this, f] { begin(f); });
}

void sim_cluster::bend(const fault& f) {
  link_range where;
  link_habits how;
  switch (f.kind) {
  case fault_kind::loss:
    how.loss = f.amount;
    break;
  case fault_kind::repeat:
    how.repeat = f.amount;
    break;
  case fault_kind::corrupt:
    how.corrupt = f.amount;
    break;
  case fault_kind::reorder:
    how.reorder = true;
    how.delay_max = f.delay;
    break;
  case fault_kind::delay:
    how.delay_max = f.delay;
    break;
  default: { // partition, one_way
    (f.hold ? how.hold : how.cut) = true;
    where.both_ways = f.kind == fault_kind::partition;
    std::vector<address> outside;
    for (std::uint32_t r = 0; r < options_.ranks; ++r) {
      const bool in = (r + options_.ranks - f.other % options_.ranks) % options_.ranks < f.count;
      (in ? where.from : outside).push_back(fmt::format("/rank/{}", r));
    }
    if (f.rank % 3 == 0)
      outside.push_back("/control");
    where.to = outside;
    if (outside.empty())
      return;
  }
  }
  const std::uint64_t number =
      world_.network().begin(std::move(where), how, world_.now() + f.lasting);
  world_.after(f.lasting, [this, number] { world_.network().end(number); });
}

void sim_cluster::begin(const fault& f) {
  const rank_id rank{f.rank % options_.ranks};
  switch (f.kind) {
  case fault_kind::kill:
    return kill_rank(rank, "killed");
  case fault_kind::node:
    for (const rank_id r : nodes_.ranks_of(node_id{f.rank % drawn_.nodes})) {
      if (drawn_.nodes == 1 && r.v == 0)
        continue; // somebody must be left
      kill_rank(r, "its node is lost");
    }
    return;
  case fault_kind::stop:
    return nodes_.stop(rank, f.lasting);
  case fault_kind::slow:
    if (sim_process* p = world_.find(nodes_.life_of(rank))) {
      p->slowness = f.amount;
      world_.after(f.lasting, [this, life = p->life] {
        if (sim_process* q = world_.find(life))
          q->slowness = 1;
      });
    }
    return;
  case fault_kind::disk:
    disk_.set_trouble(f.amount == 0   ? disk_trouble::full
                      : f.amount == 1 ? disk_trouble::failing
                                      : disk_trouble::slow);
    return world_.after(f.lasting, [this] { disk_.set_trouble(disk_trouble::none); });
  case fault_kind::control:
    return kill_control();
  case fault_kind::gateway:
    return kill_streams();
  case fault_kind::order:
    return give_orders(rank, f.lasting);
  case fault_kind::crash:
    return;
  default:
    return bend(f);
  }
}

/// An operator drains a rank, and has it join again after a while.
void sim_cluster::give_orders(rank_id rank, duration after) {
  const auto order = [this](parcel what) {
    if (sim_process* p = world_.living("/control"))
      world_.inject(*p, "/control/keeper", std::move(what));
  };
  nodes_.may_leave(rank);
  order(parcel::of(proto::drain_member{rank}));
  ordered_until_ = world_.now() + after + std::chrono::seconds{5 * 65 + 10};
  // Orders are one at a time and refused meanwhile; a control process that is started again has
  // forgotten them.
  for (int i = 1; i <= 5; ++i)
    world_.after(after + std::chrono::seconds{65 * i},
                 [order, rank] { order(parcel::of(proto::join_member{rank})); });
}

void sim_cluster::heal() {
  armed_ = false;
  world_.network().end_all();
  disk_.set_trouble(disk_trouble::none);
  for (const auto& [rank, life] : nodes_.lives()) {
    world_.resume(life);
    if (sim_process* p = world_.find(life))
      p->slowness = 1;
  }
}

/// Everything that was asked is answered, and the group is whole and idle again.
bool sim_cluster::settled() {
  const bool whole = drawn_.loss == engine::on_loss::restart_smaller
                         ? invariants_.members() > 0 // it stays smaller until somebody scales it
                         : invariants_.members() == options_.ranks;
  if (!gateway_->done() || !streams_.done() || !whole)
    return false;
  for (const auto& [rank, life] : nodes_.lives()) {
    const auto at = ranks_.find(life);
    if (at == ranks_.end() || !invariants_.is_member(life) || !at->second->idle())
      return false;
  }
  return true;
}

std::string sim_cluster::where_it_stands() {
  const proto::gateway_state g = gateway_->state();
  std::string words = fmt::format(
      "I10: at {:.1f} ms {} requests wait, {} are open, {} have ended; {} of {} ranks are members",
      static_cast<double>(world_.now().ns) * 1e-6, g.waiting, g.open, g.finished,
      invariants_.members(), options_.ranks);
  words += streams_.where_they_stand();
  for (const auto& [rank, life] : nodes_.lives()) {
    const auto at = ranks_.find(life);
    if (at == ranks_.end())
      words += fmt::format("\n  rank {} (life {:016x}) does not run", rank.v, life.v);
    else if (!at->second->idle())
      words += fmt::format("\n  rank {}: view {}, {} running, {} waiting, {} requests, {} tokens "
                           "unacknowledged, {} calls open, {} parked",
                           rank.v, at->second->core().view().v, at->second->core().running(),
                           at->second->core().waiting(), at->second->core().requests(),
                           at->second->core().unacknowledged(), at->second->calls().open(),
                           at->second->calls().parked());
  }
  return words;
}

run_outcome sim_cluster::run() {
  start_control();
  start_gateway();
  if (!drawn_.streams.empty())
    start_streams();
  for (std::uint32_t r = 0; r < options_.ranks; ++r)
    (void)nodes_.start(rank_id{r}, true);
  const auto until = [&](duration d) { return world_.now() + d; };
  if (!world_.run([&] { return serving(); }, options_.events_max, until(serve_within))) {
    world_.fail_run("the group does not begin to serve");
    return outcome();
  }
  schedule_faults();
  const bool crashes = std::any_of(options_.faults.begin(), options_.faults.end(),
                                   [](const fault& f) { return f.kind == fault_kind::crash; });
  const duration busy = end_of(options_.faults, crash_within);
  const instant healed = until(busy), timed = until(end_of(options_.faults, duration{}));
  // Crashes count messages: without any left, and no fault to come, there is nothing to wait for.
  world_.run([&] { return crashes && world_.now() >= timed && settled(); }, options_.events_max,
             healed);
  if (world_.failure().empty()) {
    heal();
    if (!world_.run([&] { return settled(); }, options_.events_max, until(end_within)))
      world_.fail_run(where_it_stands());
  }
  if (world_.failure().empty())
    check_answers();
  if (world_.failure().empty())
    check_quiet();
  return outcome();
}

void sim_cluster::check_answers() {
  if (stale_states_ != 0)
    world_.fail_run(fmt::format("I7: {} rows met a KV that does not fit them", stale_states_));
  for (const proto::request_spec& spec : drawn_.requests) {
    const auto choices = gateway_->take_finished();
    for (std::uint32_t c = 0; c < spec.sampling.n; ++c) {
      const engine::collected_choice& got = (*choices)[c];
      const std::vector<token_id>& wanted = reference_.at({spec.request, c});
      const auto reason =
          wanted.back() == 0 ? proto::finish_reason::stop : proto::finish_reason::length;
      if (got.tokens != wanted || got.end.reason != reason)
        world_.fail_run(fmt::format(
            "I2: request {} choice {} ended with {} of {} tokens, reason {}: {}", spec.request.v, c,
            got.tokens.size(), wanted.size(), static_cast<int>(got.end.reason), got.end.what));
      if (got.logprobs.size() != (spec.sampling.logprobs < 0 ? 0 : wanted.size()))
        world_.fail_run(fmt::format("I2: request {} choice {} has {} logprobs for {} tokens",
                                    spec.request.v, c, got.logprobs.size(), wanted.size()));
    }
  }
}

/// I16, I19: nobody goes on asking for what is over.
void sim_cluster::check_quiet() {
  world_.run([] { return false; }, options_.events_max,
             std::max(ordered_until_, world_.now()) + seconds{60});
  const std::uint64_t before = world_.network().counts().frames;
  world_.run([] { return false; }, options_.events_max, world_.now() + seconds{60});
  const std::uint64_t frames = world_.network().counts().frames - before;
  if (frames > 4 * std::uint64_t{options_.ranks})
    world_.fail_run(
        fmt::format("I19: {} frames in a minute in which nothing is to be done", frames));
  const proto::schedule left = scheduler_->on(proto::get_schedule{}).value();
  if (const auto kept = std::accumulate(left.assigned.begin(), left.assigned.end(), left.queued);
      kept != 0)
    world_.fail_run(fmt::format("I16: SCHEDULER keeps {} requests that are over", kept));
}

run_outcome sim_cluster::outcome() const {
  run_outcome o;
  o.failure = world_.failure();
  o.hash = world_.hash();
  o.events = world_.events();
  o.virtual_s = static_cast<double>(world_.now().ns) * 1e-9;
  o.tokens = gateway_->state().output_tokens + streams_.tokens();
  o.views = invariants_.views();
  o.deaths = nodes_.deaths();
  o.joins = invariants_.joins();
  o.frames = const_cast<sim_world&>(world_).network().counts().frames;
  o.lost = const_cast<sim_world&>(world_).network().counts().lost;
  return o;
}

} // namespace di::sim
