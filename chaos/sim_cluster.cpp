// SPDX-License-Identifier: Apache-2.0
// Putting the production cores into processes.
#include "chaos/sim_cluster.hpp"

#include "actors/control.hpp"
#include "actors/directory.hpp"
#include "actors/expert_shard.hpp"
#include "actors/serving.hpp"
#include "chaos/sim_client.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::sim {

namespace {

world_options world_of(const cluster_options& o, const drawn_settings& drawn) {
  world_options w;
  w.seed = o.seed;
  w.compute_max = drawn.compute_max;
  return w;
}

nodes_options nodes_of(const cluster_options& o, const drawn_settings& drawn) {
  nodes_options n;
  n.ranks = o.ranks;
  n.nodes = drawn.nodes;
  return n;
}

/// Clients of an online gateway are there if it may die.
drawn_settings settings_of(const cluster_options& options) {
  drawn_settings s = draw_settings(options.seed, options.ranks);
  if (std::none_of(options.faults.begin(), options.faults.end(),
                   [](const fault& f) { return f.kind == fault_kind::gateway; }))
    s.streams.clear();
  return s;
}

} // namespace

sim_cluster::sim_cluster(cluster_options options)
    : options_{std::move(options)},
      drawn_{settings_of(options_)},
      random_{sim_random{options_.seed}.fork(4)},
      world_{world_of(options_, drawn_)},
      nodes_{world_, nodes_of(options_, drawn_), sim_random{options_.seed}.fork(5)},
      disk_{world_, sim_random{options_.seed}.fork(6)},
      invariants_{world_, nodes_,
                  [this](request_id r, std::uint32_t choice) -> const std::vector<token_id>& {
                    return reference_.at({r, choice});
                  }},
      crashes_{*this},
      streams_{world_, drawn_.streams, sim_random{options_.seed}.fork(8)} {
  for (const auto* specs : {&drawn_.requests, &drawn_.streams})
    for (const proto::request_spec& spec : *specs)
      for (std::uint32_t c = 0; c < spec.sampling.n; ++c)
        reference_[{spec.request, c}] = toy::generate(spec, c, drawn_.experts);
  streams_.reference = [this](request_id r, std::uint32_t choice) -> const std::vector<token_id>& {
    return reference_.at({r, choice});
  };
  engine::gateway_options front;
  front.window = drawn_.window;
  front.ask_again_for = std::chrono::minutes{5};
  gateway_ = std::make_unique<engine::gateway_core>(front, drawn_.requests);
  nodes_.begin_rank = [this](rank_id rank, incarnation life) { begin_rank(rank, life); };
  invariants_.view_of = [this](incarnation life) -> const epoch* {
    const auto at = ranks_.find(life);
    return at == ranks_.end() ? nullptr : &(views_[life] = at->second->core().view());
  };
  invariants_.is_written = [this](request_id r, std::uint32_t choice, std::uint32_t next) {
    return disk_.has(r, choice, next);
  };
  world_.on_gave_up = [this](sim_process& p, const address& actor, const error& why) {
    on_gave_up(p, actor, why);
  };
  world_.observe(&invariants_);
  world_.observe(&crashes_);
}

bus::peer sim_cluster::control_peer() const {
  const sim_process* p = const_cast<sim_world&>(world_).living("/control");
  return p ? p->office->self() : bus::peer{};
}

void sim_cluster::announce(sim_process& p, const char* role, rank_id rank) {
  actors::registrar_options r;
  r.process = actors::to_process(p.office->self());
  r.process.role = role;
  r.process.rank = rank;
  if (p.prefix.starts_with("/rank/")) {
    r.process.node = nodes_.node_of(rank);
    r.process.contract_id = "toy";
    r.process.proof = "toy proof";
  }
  r.office = p.office.get();
  if (p.prefix != "/control")
    (void)p.office->add_route(control_peer());
  world_.spawn(p, p.prefix + "/registrar", actors::make_registrar(std::move(r)));
}

// --- processes

void sim_cluster::start_control() {
  const auto before = disk_.recover();
  if (!before)
    return world_.fail_run("I17: the journal cannot be read: " + before.error().render());
  ++control_lives_;
  sim_process& p = world_.add_process("/control", incarnation{random_.next() | 1U});
  spawn_control_actors(p, *before);
  announce(p, "control", {});
  nodes_.attach_control();
  if (control_lives_ > 1)
    tell_of_control();
}

void sim_cluster::spawn_control_actors(sim_process& p,
                                       const std::optional<engine::journal_image>& before) {
  for (std::uint32_t n = 0; n < drawn_.nodes; ++n)
    world_.spawn(p, fmt::format("/node/{}", n), nodes_.make_proxy());
  engine::rebalancer_options placing;
  placing.groups = {{0, toy::layers, drawn_.experts}};
  placing.redundant = drawn_.redundant;
  placing.policy = drawn_.policy;
  world_.spawn(p, "/control/rebalancer", actors::make_rebalancer(std::move(placing)));
  auto placing_requests =
      std::make_unique<typed_core<engine::scheduler_core, actors::scheduler::protocol>>(
          std::in_place, engine::scheduler_options{});
  scheduler_ = &placing_requests->core();
  world_.spawn(p, "/control/scheduler", std::move(placing_requests));
  engine::journal_options book;
  book.sink = &disk_.open(p.life);
  book.recovered = before;
  world_.spawn(p, "/control/journal", actors::make_journal(std::move(book)));
  spawn_keeper(p);
  engine::membership_options m;
  m.listeners = {"/control/rebalancer", "/control/scheduler", "/control/journal",
                 "/control/keeper"};
  m.member_parts = {"rank", "expert_shard"};
  m.loss = drawn_.loss;
  m.members_min = drawn_.members_min;
  m.journal = "/control/journal";
  m.directory = "/control/directory";
  m.keeper = "/control/keeper";
  if (before)
    m.last_view = before->view;
  world_.spawn(p, "/control/membership", actors::make_membership(m));
  spawn_directory(p, control_lives_ > 1);
}

void sim_cluster::spawn_keeper(sim_process& p) {
  engine::keeper_options k;
  for (std::uint32_t r = 0; r < options_.ranks; ++r)
    k.ranks.push_back({rank_id{r}, nodes_.node_of(rank_id{r})});
  k.loss = drawn_.loss;
  k.members_min = drawn_.members_min;
  k.seed = random_.next();
  world_.spawn(p, "/control/keeper", actors::make_keeper(std::move(k)));
}

void sim_cluster::spawn_directory(sim_process& p, bool again) {
  engine::directory_options d;
  d.expected = {"/control", "/gateway/0"};
  if (again ? world_.living("/gateway/1") != nullptr : !drawn_.streams.empty())
    d.expected.push_back("/gateway/1");
  if (again) {
    for (const auto& [rank, life] : ranks_alive())
      d.expected.push_back(fmt::format("/rank/{}", rank.v));
  } else {
    for (std::uint32_t r = 0; r < options_.ranks; ++r)
      d.expected.push_back(fmt::format("/rank/{}", r));
  }
  d.formed_to = {"/control/membership", "/control/keeper"};
  d.ready_to = {"/control/keeper"};
  d.gateway_lost_to = {"/control/journal"};
  d.forms_without_lost = again;
  world_.spawn(p, "/control/directory", actors::make_directory(std::move(d), *p.office));
}

std::map<rank_id, incarnation> sim_cluster::ranks_alive() {
  std::map<rank_id, incarnation> all;
  for (const auto& [rank, life] : nodes_.lives())
    if (const sim_process* q = world_.find(life); q && q->state != process_state::dead)
      all.emplace(rank, life);
  return all;
}

/// Node processes tell every process below them where control lives now.
void sim_cluster::tell_of_control() {
  const sim_process* control = world_.living("/control");
  proto::control_moved moved;
  moved.control = actors::to_process(control->office->self());
  moved.control.role = "control";
  std::vector<address> all{"/gateway/0", "/gateway/1"};
  for (const auto& [rank, life] : ranks_alive())
    all.push_back(fmt::format("/rank/{}", rank.v));
  if (sim_process* q = world_.living("/gateway/1"))
    world_.inject(*q, "/gateway/1", parcel::of(moved),
                  random_.span(std::chrono::microseconds{20}, std::chrono::milliseconds{3}));
  for (const address& prefix : all)
    if (sim_process* q = world_.living(prefix))
      world_.inject(*q, prefix + "/registrar", parcel::of(moved),
                    random_.span(std::chrono::microseconds{20}, std::chrono::milliseconds{3}));
}

void sim_cluster::kill_control() {
  sim_process* p = world_.living("/control");
  if (!p)
    return;
  disk_.crash();
  scheduler_ = nullptr;
  world_.kill(p->life, std::chrono::milliseconds{20});
  world_.after(random_.span(std::chrono::milliseconds{5}, std::chrono::milliseconds{400}),
               [this] { start_control(); });
}

void sim_cluster::kill_rank(rank_id rank, const char* why) {
  ranks_.erase(nodes_.life_of(rank));
  nodes_.killed(rank, why);
}

void sim_cluster::start_gateway() {
  sim_process& p = world_.add_process("/gateway/0", incarnation{random_.next() | 1U});
  world_.spawn(p, "/gateway/0", wrap_core<client_type>(gateway_.get()));
  announce(p, "gateway", {});
}

void sim_cluster::start_streams() {
  sim_process& p = world_.add_process("/gateway/1", incarnation{random_.next() | 1U});
  streams_.begin(p);
  announce(p, "gateway", {});
}

void sim_cluster::kill_streams() {
  sim_process* p = world_.living("/gateway/1");
  if (!p)
    return;
  const proto::withdrawn gone{"/gateway/1", p->life, "killed"};
  streams_.died();
  world_.kill(p->life, std::chrono::milliseconds{20});
  world_.after(random_.span(std::chrono::milliseconds{1}, std::chrono::milliseconds{50}),
               [this, gone] {
                 if (sim_process* c = world_.living("/control"))
                   world_.inject(*c, "/control/directory", parcel::of(gone));
               });
  world_.after(random_.span(std::chrono::milliseconds{5}, std::chrono::milliseconds{400}),
               [this] { start_streams(); });
}

void sim_cluster::begin_rank(rank_id rank, incarnation life) {
  sim_process& p = world_.add_process(fmt::format("/rank/{}", rank.v), life);
  engine::rank_options o = drawn_.rank;
  o.rank = rank;
  o.life = life;
  auto toy = std::make_unique<typed_core<toy_rank_core, toy_rank::protocol>>(
      std::in_place, o, &stale_states_, drawn_.experts, std::chrono::milliseconds{500});
  ranks_[life] = &toy->core();
  world_.spawn(p, engine::rank_path(rank), std::move(toy));
  actors::shard_parts shard;
  shard.options.rank = rank;
  shard.options.life = life;
  shard.options.hidden = toy::hidden;
  shard.options.slice_rows = drawn_.slice_rows;
  auto loader = std::make_shared<toy_expert_loader>(&loads_);
  shard.runner = std::make_shared<toy_expert_runner>(loader);
  shard.loader = loader;
  world_.spawn(p, engine::shard_path(rank), actors::make_expert_shard(std::move(shard)));
  announce(p, "rank", rank);
}

/// A rank that ends itself is a dead process; anything else ends the run.
void sim_cluster::on_gave_up(sim_process& p, const address& actor, const error& why) {
  if (p.prefix.starts_with("/rank/")) {
    const rank_id rank{static_cast<std::uint32_t>(std::stoul(p.prefix.substr(6)))};
    if (!nodes_.was_hurt(p.life) && invariants_.is_member(p.life))
      return world_.fail_run(actor + " ended itself: " + why.render());
    world_.after(duration{0}, [this, rank, life = p.life, words = why.render()] {
      if (nodes_.life_of(rank) == life) {
        ranks_.erase(life);
        nodes_.killed(rank, words);
      }
    });
    return;
  }
  world_.fail_run(actor + ": " + why.render());
}

} // namespace di::sim
