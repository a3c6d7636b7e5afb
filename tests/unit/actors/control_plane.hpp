// SPDX-License-Identifier: Apache-2.0
// DIRECTORY, MEMBERSHIP and registrars of rank processes on fake time, for tests.
#pragma once

#include "actors/directory.hpp"
#include "actors/membership.hpp"
#include "actors/registrar.hpp"
#include "tests/support/deterministic_system.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace di::test {

using namespace std::chrono_literals;

inline proto::process_entry rank_process(std::uint32_t r, std::uint64_t life) {
  proto::process_entry p;
  p.prefix = fmt::format("/rank/{}", r);
  p.life = incarnation{life};
  p.control_endpoint = fmt::format("ipc:///run/r{}-{}.c.sock", r, life);
  p.role = "rank";
  p.rank = rank_id{r};
  p.contract_id = "cpu-1-abc";
  return p;
}

struct control_plane : ::testing::Test {
  void start(std::vector<address> expected, duration form_within = {}) {
    engine::directory_options d;
    d.expected = std::move(expected);
    d.formed_to = {"/control/membership"};
    d.ready_to = {"/control/keeper"};
    d.form_within = form_within;
    d.forms_without_lost = recovering;
    actors::spawn_options spawn;
    spawn.ended = [this](const error& e) { ended = e; };
    world.system.spawn_as<actors::directory>("/control/directory", spawn, d, world.office).value();
    engine::membership_options m;
    m.listeners = {"/control/scheduler"};
    m.member_parts = {"rank"};
    m.loss = engine::on_loss::shrink;
    world.system.spawn_as<actors::membership>("/control/membership", {}, m).value();
    if (std::exchange(bound, true))
      return world.run(), void();
    world.office
        .bind("/control/keeper",
              [this](const envelope& e) {
                if (const auto* r = e.body.as<proto::process_ready>())
                  ready.push_back(r->process);
              })
        .value();
    world.office
        .bind("/control/scheduler",
              [this](const envelope& e) {
                if (const auto* v = e.body.as<proto::view_committed>())
                  views.push_back(*v);
              })
        .value();
    world.run();
  }
  void join(const proto::process_entry& p) {
    actors::registrar_options r;
    r.process = p;
    r.office = &world.office;
    r.join_within = 5s;
    r.installed = [this](const proto::directory_snapshot& s) { snapshots.push_back(s); };
    actors::spawn_options spawn;
    spawn.ended = [this](const error& e) { ended = e; };
    world.system.spawn_as<actors::registrar>(p.prefix + "/registrar", spawn, r).value();
    world.run();
  }
  void leave(const proto::process_entry& p) {
    world.system.stop(p.prefix + "/registrar");
    world.run();
    ended.reset();
  }
  double counted(const char* metric) { return world.system.counters().total(metric); }

  std::optional<error> ended;
  bool recovering = false, bound = false;
  std::vector<proto::process_entry> ready;
  std::vector<proto::view_committed> views;
  std::vector<proto::directory_snapshot> snapshots;
  deterministic_system world;
};

} // namespace di::test
