// SPDX-License-Identifier: Apache-2.0
// KEEPER and MEMBERSHIP with node processes, rank processes, DIRECTORY and JOURNAL as small
// machines around them, on virtual time, and the rules that nothing may break.
#pragma once

#include "actors/keeper.hpp"
#include "actors/membership.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>

namespace di::test {

using namespace std::chrono_literals;

struct keeper_world_options {
  std::uint32_t ranks = 4;
  engine::on_loss loss = engine::on_loss::shrink;
  std::uint32_t members_min = 1;
  std::uint64_t seed = 0; ///< 0: every delay is 0.1 ms
  duration load_time = 50ms;
  bool with_journal = true;
  std::function<void(engine::keeper_options&)> more;
};

class keeper_world {
public:
  using keeper_core = typed_core<engine::keeper_core, actors::keeper::protocol>;
  using membership_core = typed_core<engine::membership_core, actors::membership::protocol>;

  struct process {
    incarnation life{};
    bool alive = false, busy = false; ///< busy: has requests that drain only at the deadline
  };

  explicit keeper_world(keeper_world_options o) : o_{std::move(o)}, random_{o_.seed} {
    engine::keeper_options k;
    for (std::uint32_t r = 0; r < o_.ranks; ++r) {
      k.ranks.push_back({rank_id{r}, node_id{r % 2}});
      process p;
      p.life = incarnation{++last_life_};
      p.alive = true;
      processes[r] = p;
    }
    k.loss = o_.loss;
    k.members_min = o_.members_min;
    if (o_.more)
      o_.more(k);
    keeper_options = k;
    keeper = std::make_unique<keeper_core>(std::in_place, k);
    make_membership({});
    form();
    run_for(20ms);
  }

  void make_membership(std::optional<proto::view_committed> last) {
    engine::membership_options m;
    m.listeners = {"/control/keeper", "/listener"};
    m.member_parts = {"rank"};
    m.loss = o_.loss;
    m.members_min = o_.members_min;
    m.directory = "/control/directory";
    m.keeper = "/control/keeper";
    if (o_.with_journal)
      m.journal = "/control/journal";
    m.last_view = std::move(last);
    membership = std::make_unique<membership_core>(std::in_place, m);
    timers_.erase("/control/membership");
    last_tags_.clear();
  }

  /// DIRECTORY has all live processes.
  void form() {
    proto::group_formed g;
    g.version = epoch{1};
    for (const auto& [r, p] : processes)
      if (p.alive && !silent.contains(r))
        g.processes.push_back(entry(r, p.life));
    post("/control/keeper", g);
    post("/control/membership", g);
  }

  /// KEEPER and MEMBERSHIP end, and start again with what JOURNAL has.
  void restart_control() {
    ++control_life_;
    keeper = std::make_unique<keeper_core>(std::in_place, keeper_options);
    timers_.clear();
    make_membership(recorded);
    form();
  }

  // --- faults ---------------------------------------------------------------------------------
  void kill(std::uint32_t r) {
    auto& p = processes[r];
    if (!p.alive)
      return;
    p.alive = false;
    const auto life = p.life;
    later(delay(), [this, r, life] {
      post("/control/membership", proto::member_lost{rank_id{r}, life, "killed by signal 9"});
      if (duplicates)
        post("/control/membership", proto::member_lost{rank_id{r}, life, "told again"});
      later(delay(), [this, r, life] {
        reaped.insert(life.v);
        post("/control/keeper",
             proto::rank_exited{rank_id{r}, node_id{r % 2}, life, 0, 9, "killed by signal 9"});
      });
    });
  }
  /// A rank that was silent announces itself to DIRECTORY.
  void comes_back_late(std::uint32_t r) {
    silent.erase(r);
    post("/control/keeper", proto::process_ready{entry(r, processes[r].life)});
  }
  void stuck(std::uint32_t r) {
    const auto life = processes[r].life;
    post("/control/membership", proto::member_stuck{rank_id{r}, life, "experts", 300, "hung"});
  }

  // --- time -----------------------------------------------------------------------------------
  void run_for(duration span) {
    const auto end = now + span;
    while (!events_.empty() && events_.top().at <= end) {
      auto e = events_.top();
      events_.pop();
      now = std::max(now, e.at);
      e.run();
    }
    now = end;
  }

  template <message M>
  void post(const address& to, M m) {
    post_parcel(to, parcel::of(std::move(m)), mail_kind::tell, 0);
  }
  /// An operator's question; its answer lands in `answers`.
  template <message M>
  void ask(M m) {
    post_parcel("/control/keeper", parcel::of(std::move(m)), mail_kind::request, ++last_question_);
  }

  engine::kept_state state(std::uint32_t r) { return keeper->core().state(rank_id{r}); }
  std::set<std::uint32_t> members() const {
    std::set<std::uint32_t> all;
    if (!views.empty())
      for (const auto& m : views.back().members)
        all.insert(m.rank.v);
    return all;
  }

  keeper_world_options o_;
  engine::keeper_options keeper_options;
  std::unique_ptr<keeper_core> keeper;
  std::unique_ptr<membership_core> membership;
  std::map<std::uint32_t, process> processes;
  std::vector<proto::view_committed> views;
  std::optional<proto::view_committed> recorded;
  std::vector<std::pair<address, parcel>> withdrawn_told;
  std::map<address, std::size_t> drains_told;           ///< by receiver
  std::map<std::uint32_t, std::vector<instant>> starts; ///< of processes, per rank
  std::vector<result<proto::keeper_done>> answers;
  std::set<std::uint64_t> reaped, left; ///< lives
  std::optional<error> failed;
  instant now = instant{} + 1s;
  bool duplicates = false;
  std::set<std::uint32_t> broken;  ///< ranks whose processes die while they load
  std::set<std::uint32_t> silent;  ///< ranks that hang: DIRECTORY does not hear of them
  std::set<std::uint32_t> slow;    ///< ranks that never finish loading
  std::set<std::uint32_t> unready; ///< nodes that refuse to start anything
  bool journal_answers = true;

private:
  struct event {
    instant at;
    std::uint64_t number;
    std::function<void()> run;
    friend bool operator<(const event& a, const event& b) {
      return std::tuple{a.at, a.number} > std::tuple{b.at, b.number};
    }
  };

  duration delay() {
    return o_.seed == 0 ? duration{100us}
                        : duration{std::chrono::microseconds{1 + random_() % 2000}};
  }
  void later(duration span, std::function<void()> run) {
    events_.push({now + span, ++last_event_, std::move(run)});
  }
  proto::process_entry entry(std::uint32_t r, incarnation life) {
    proto::process_entry p;
    p.prefix = fmt::format("/rank/{}", r);
    p.life = life;
    p.node = node_id{r % 2};
    p.role = "rank";
    p.rank = rank_id{r};
    return p;
  }

  void post_parcel(address to, parcel body, mail_kind kind, std::uint64_t request) {
    envelope mail;
    mail.to = to;
    mail.from = "/world";
    mail.kind = kind;
    mail.request = request;
    mail.body = std::move(body);
    // Mail to one receiver stays in order.
    auto at = std::max(
        now + (o_.seed == 0 ? duration{1us} : duration{std::chrono::microseconds{random_() % 300}}),
        last_to_[to]);
    last_to_[to] = at;
    const auto control = control_life_;
    events_.push({at, ++last_event_, [this, mail, control] {
                    if (control == control_life_)
                      deliver(mail);
                  }});
  }

  core_handle* core_of(const address& a) {
    return a == "/control/keeper"       ? static_cast<core_handle*>(keeper.get())
           : a == "/control/membership" ? static_cast<core_handle*>(membership.get())
                                        : nullptr;
  }

  void deliver(const envelope& mail) {
    if (auto* core = core_of(mail.to)) {
      outbox out;
      const auto outcome = core->on(mail, now, out);
      EXPECT_TRUE(outcome.ok()) << outcome.error().render();
      return carry_out(mail.to, *core, out);
    }
    if (const auto* v = mail.body.as<proto::view_committed>(); v && mail.to == "/listener")
      return take_view(*v);
    if (mail.body.as<proto::withdrawn>())
      return withdrawn_told.emplace_back(mail.to, mail.body), void();
    if (const auto* k = mail.body.as<proto::kill_rank>())
      return take_kill(*k);
    if (mail.body.as<proto::drain_rank>())
      ++drains_told[mail.to];
  }

  void take_kill(const proto::kill_rank& k) {
    const auto& p = processes[k.rank.v];
    if (p.life == k.life && p.alive)
      return kill(k.rank.v);
    if (p.life != k.life || reaped.contains(k.life.v)) // KEEPER was away when it ended
      post("/control/keeper",
           proto::rank_exited{k.rank, node_id{k.rank.v % 2}, k.life, 0, 9, "this life is gone"});
  }

  void carry_out(const address& self, core_handle& core, outbox& out) {
    for (auto& e : out.take()) {
      if (auto* s = std::get_if<effect::send>(&e))
        post_parcel(s->to, s->body, mail_kind::tell, 0);
      else if (auto* a = std::get_if<effect::arm>(&e))
        arm(self, a->which, a->after);
      else if (auto* d = std::get_if<effect::disarm>(&e))
        ++timers_[self][d->which];
      else if (auto* q = std::get_if<effect::request>(&e))
        take_question(self, *q);
      else if (auto* r = std::get_if<effect::reply>(&e))
        answers.emplace_back(*r->body.as<proto::keeper_done>());
      else if (auto* f = std::get_if<effect::refuse>(&e))
        answers.emplace_back(fail(f->err));
      else if (auto* end = std::get_if<effect::fail>(&e))
        failed = end->err;
    }
    core.check();
  }

  void arm(const address& self, timer which, duration after) {
    const auto number = ++timers_[self][which];
    const auto control = control_life_;
    later(after, [this, self, which, number, control] {
      if (control != control_life_ || timers_[self][which] != number)
        return;
      outbox out;
      EXPECT_TRUE(core_of(self)->on_due(which, now, out).ok());
      carry_out(self, *core_of(self), out);
    });
  }

  void answer(const address& self, std::uint64_t tag, result<parcel> with, duration after) {
    const auto control = control_life_;
    later(after, [this, self, tag, with, control] {
      if (control != control_life_ || !open_.erase({self, tag}))
        return;
      outbox out;
      EXPECT_TRUE(core_of(self)->on_answer(tag, with, now, out).ok());
      carry_out(self, *core_of(self), out);
    });
  }

  void take_question(const address& self, const effect::request& q) {
    open_.insert({self, q.tag});
    answer(self, q.tag, fail(ec::deadline_exceeded, "no answer"), q.timeout);
    if (const auto* r = q.body.as<proto::record_view>()) {
      recorded = r->next;
      if (journal_answers)
        answer(self, q.tag, parcel::of(proto::view_recorded{r->next.view}), delay());
    } else if (const auto* s = q.body.as<proto::start_rank>()) {
      start(self, q.tag, s->rank.v);
    } else if (q.body.as<proto::get_rank>()) {
      const auto rank = static_cast<std::uint32_t>(std::stoul(q.to.substr(6)));
      proto::rank_state is;
      is.rank = rank_id{rank};
      is.life = processes[rank].life;
      is.running = processes[rank].busy ? 1 : 0;
      if (processes[rank].alive)
        answer(self, q.tag, parcel::of(is), delay());
    }
  }

  void start(const address& self, std::uint64_t tag, std::uint32_t r) {
    auto& p = processes[r];
    if (unready.contains(r % 2))
      return answer(self, tag, fail(ec::unavailable, "no such node"), delay());
    if (p.life.v != 0 && !reaped.contains(p.life.v))
      return answer(self, tag, fail(ec::duplicate, "one runs"), delay());
    p.life = incarnation{++last_life_};
    p.alive = true;
    p.busy = false;
    starts[r].push_back(now);
    answer(self, tag, parcel::of(proto::rank_started{rank_id{r}, p.life}), delay());
    const auto life = p.life;
    if (broken.contains(r))
      return later(o_.load_time, [this, r] { kill(r); });
    if (slow.contains(r))
      return;
    later(o_.load_time + delay(), [this, r, life] {
      if (processes[r].life != life || !processes[r].alive)
        return;
      post("/control/keeper", proto::process_ready{entry(r, life)});
      if (duplicates)
        post("/control/keeper", proto::process_ready{entry(r, life)});
    });
  }

  void take_view(const proto::view_committed& v) {
    if (!views.empty()) {
      EXPECT_GT(v.view, views.back().view) << "epochs rise";
      for (const auto& m : views.back().members)
        if (std::find(v.members.begin(), v.members.end(), m) == v.members.end())
          left.insert(m.life.v);
      if (control_life_ == viewed_life_) {
        EXPECT_NE(v.members, views.back().members) << "a view without a change";
      }
    }
    viewed_life_ = control_life_;
    for (const auto& m : v.members)
      EXPECT_FALSE(left.contains(m.life.v))
          << "rank " << m.rank.v << " came back in a life that left";
    EXPECT_TRUE(v.members.size() >= o_.members_min || control_life_ > 0);
    if (o_.with_journal) {
      EXPECT_TRUE(recorded && recorded->view >= v.view) << "written before it holds";
    }
    views.push_back(v);
  }

  std::mt19937_64 random_;
  std::priority_queue<event> events_;
  std::uint64_t last_event_ = 0, last_life_ = 100, last_question_ = 0;
  std::uint32_t control_life_ = 0, viewed_life_ = 0;
  std::map<address, instant> last_to_;
  std::map<address, std::map<timer, std::uint64_t>> timers_;
  std::map<std::uint64_t, std::uint64_t> last_tags_;
  std::set<std::pair<address, std::uint64_t>> open_;
};

} // namespace di::test
