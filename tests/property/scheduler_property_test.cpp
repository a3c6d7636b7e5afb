// SPDX-License-Identifier: Apache-2.0
// SCHEDULER under random requests, ranks and losses: nothing lost, nothing twice, bounded waiting,
// quotas kept, deadlines that always end. The core alone; tests/sim has it together with the
// others.
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/scheduler_core.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

namespace di::engine {
namespace {

using std::chrono::milliseconds;

struct totals {
  std::uint64_t requests = 0, settled = 0, refused = 0, over_quota = 0, expired = 0, released = 0,
                lost_ranks = 0, overtakes = 0, stale = 0;
};

/// One seed: a model of JOURNAL and the ranks beside the core.
class case_of {
public:
  case_of(std::uint64_t seed, totals& sum) : random_{seed}, sum_{sum} {
    o_.queue_max = static_cast<std::uint32_t>(2 + random_() % 30);
    o_.tenant_choices_max = random_() % 3 == 0 ? 0 : 2 + random_() % 12;
    o_.gateway_choices_max = random_() % 3 == 0 ? 0 : 4 + random_() % 30;
    o_.assigned_per_rank_max = static_cast<std::uint32_t>(1 + random_() % 8);
    o_.backlog_per_rank_max = static_cast<std::uint32_t>(1 + random_() % 6);
    o_.overtakes_max = static_cast<std::uint32_t>(1 + random_() % 6);
    o_.priority_step = milliseconds{random_() % 50};
    o_.kv_percent = 100;
    core_ = std::make_unique<scheduler_core>(o_);
    for (std::uint32_t r = 0; r < 1 + random_() % 4; ++r)
      ranks_.push_back({rank_id{r}, incarnation{100 + r}});
    install();
  }

  void run() {
    for (int turn = 0; turn < 150 && !::testing::Test::HasFailure(); ++turn) {
      now_ = now_ + milliseconds{random_() % 20};
      fire();
      switch (random_() % 12) {
      case 0:
      case 1:
      case 2:
      case 3:
        admit();
        break;
      case 4:
      case 5:
      case 6:
        finish_one();
        break;
      case 7:
        report();
        break;
      case 8:
        refuse_one();
        break;
      case 9:
        release_one();
        break;
      case 10:
        if (random_() % 4 == 0)
          lose_rank();
        break;
      default:
        step([&](outbox& out) { return core_->on_due({1, 0}, now_, out); });
      }
    }
    drain();
  }

private:
  struct entry {
    proto::request_spec spec;
    std::uint32_t attempt = 1;
    std::optional<placed_rank> on;
    std::optional<instant> deadline;
    queue_place place;        ///< as it should be
    std::uint32_t passed = 0; ///< choices placed before it that belong behind it
    bool done = false;
  };

  template <class F>
  void step(F&& f) {
    outbox out;
    ASSERT_TRUE(f(out).ok());
    core_->check();
    absorb(out);
  }

  void install() {
    outbox out;
    core_->install_view(epoch{++view_}, ranks_, now_, out);
    core_->check();
    absorb(out);
  }

  std::uint64_t open_choices(const std::function<bool(const entry&)>& which) const {
    std::uint64_t n = 0;
    for (const auto& [id, e] : entries_)
      n += !e.done && which(e) ? e.spec.sampling.n : 0;
    return n;
  }

  void admit() {
    proto::request_spec spec;
    spec.request = request_id{++number_};
    spec.gateway = random_() % 2 ? "/gateway/0" : "/gateway/1";
    spec.tenant = std::string(1, static_cast<char>('a' + random_() % 3));
    spec.priority = static_cast<std::int32_t>(random_() % 7) - 3;
    spec.prompt.assign(1 + random_() % 400, 1);
    spec.sampling.n = 1 + static_cast<std::uint32_t>(random_() % 3);
    spec.sampling.max_tokens = 1 + static_cast<std::uint32_t>(random_() % 100);
    if (random_() % 3 == 0)
      spec.deadline_ms = 1 + random_() % 400;
    entry e;
    e.spec = spec;
    if (spec.deadline_ms > 0)
      e.deadline = now_ + milliseconds{spec.deadline_ms};
    e.place = {now_.ns - spec.priority * duration{o_.priority_step}.count(), number_, spec.request};
    const std::uint64_t n = spec.sampling.n;
    const bool queue_full =
        std::count_if(entries_.begin(), entries_.end(),
                      [](const auto& x) { return !x.second.done && !x.second.on; })
        >= o_.queue_max;
    const bool over =
        (o_.tenant_choices_max > 0
         && open_choices([&](const entry& x) { return x.spec.tenant == spec.tenant; }) + n
                > o_.tenant_choices_max)
        || (o_.gateway_choices_max > 0
            && open_choices([&](const entry& x) { return x.spec.gateway == spec.gateway; }) + n
                   > o_.gateway_choices_max);
    ++sum_.requests;
    sum_.over_quota += over;
    expected_refusal_ = queue_full || over;
    entries_[spec.request] = e;
    step([&](outbox& out) {
      return core_->on(proto::admit_request{spec, 1, {}, spec.deadline_ms}, now_, out);
    });
    EXPECT_EQ(entries_[spec.request].done, expected_refusal_) << "request " << number_;
    expected_refusal_ = false;
  }

  /// What the core said, held against the model.
  void absorb(const outbox& out) {
    for (const any_effect& effect : out.effects()) {
      if (const auto* arm = std::get_if<effect::arm>(&effect))
        timers_[arm->which] = now_ + arm->after;
      else if (const auto* off = std::get_if<effect::disarm>(&effect))
        timers_.erase(off->which);
      else if (const auto* send = std::get_if<effect::send>(&effect))
        sent(*send);
    }
  }

  void sent(const effect::send& mail) {
    if (const auto* m = mail.body.as<proto::assign_request>()) {
      entry& e = entries_.at(m->spec.request);
      ASSERT_FALSE(e.done);
      ASSERT_EQ(m->attempt, e.attempt);
      if (e.on) { // sent again, to the same rank
        EXPECT_EQ(rank_path(e.on->rank), mail.to);
        return;
      }
      const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const placed_rank& r) {
        return rank_path(r.rank) == mail.to && r.life == m->life;
      });
      ASSERT_NE(rank, ranks_.end());
      const std::uint64_t there = open_choices([&](const entry& x) { return x.on == *rank; });
      EXPECT_TRUE(there == 0 || there + e.spec.sampling.n <= o_.assigned_per_rank_max);
      e.on = *rank;
      for (auto& [id, other] : entries_) // who should have been first?
        if (!other.done && !other.on && other.attempt == 1 && e.attempt == 1
            && other.place < e.place) {
          other.passed += e.spec.sampling.n;
          ++sum_.overtakes;
          // The last one that passes may bring up to three choices.
          EXPECT_LT(other.passed, o_.overtakes_max + 3) << "request " << id.v;
        }
    } else if (const auto* r = mail.body.as<proto::admission_refused>()) {
      entry& e = entries_.at(r->request);
      ASSERT_FALSE(e.done);
      e.done = true;
      ++sum_.refused;
      if (r->code == ec::deadline_exceeded) {
        ++sum_.expired;
        ASSERT_TRUE(e.deadline);
        EXPECT_GE(now_, *e.deadline);
      } else if (r->code == ec::limit_exceeded) {
        EXPECT_TRUE(expected_refusal_);
      }
      if (!e.on)
        return;
      EXPECT_TRUE(withdrawn_.contains(e.spec.request) || r->code != ec::deadline_exceeded);
      e.on.reset();
    } else if (const auto* w = mail.body.as<proto::withdraw_request>()) {
      withdrawn_.insert(w->request);
    }
  }

  void fire() {
    while (!timers_.empty()) {
      const auto due = std::min_element(timers_.begin(), timers_.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
      if (due->second > now_)
        break;
      const timer which = due->first;
      timers_.erase(due);
      step([&](outbox& out) { return core_->on_due(which, now_, out); });
    }
    for (const auto& [id, e] : entries_) // no request outlives its deadline
      if (!e.done && e.deadline) {
        EXPECT_LT(now_, *e.deadline) << "request " << id.v;
      }
  }

  entry* pick(bool assigned) {
    std::vector<entry*> some;
    for (auto& [id, e] : entries_)
      if (!e.done && e.on.has_value() == assigned)
        some.push_back(&e);
    return some.empty() ? nullptr : some[random_() % some.size()];
  }

  void finish_one() {
    entry* e = pick(true);
    if (!e)
      return;
    const placed_rank on = *e->on;
    if (random_() % 2) {
      step([&](outbox& out) {
        return core_->on(proto::request_taken{e->spec.request, e->attempt, on.rank, on.life}, now_,
                         out);
      });
      return;
    }
    e->done = true;
    e->on.reset();
    ++sum_.settled;
    step([&](outbox& out) {
      return core_->on(proto::request_settled{e->spec.request, e->attempt, on.rank, on.life}, now_,
                       out);
    });
    step([&](outbox& out) { // an old one changes nothing
      return core_->on(proto::request_settled{e->spec.request, e->attempt, on.rank, on.life}, now_,
                       out);
    });
  }

  void report() {
    const placed_rank on = ranks_[random_() % ranks_.size()];
    proto::rank_load m;
    m.rank = on.rank;
    m.life = on.life;
    m.report = ++reports_;
    m.running =
        static_cast<std::uint32_t>(open_choices([&](const entry& x) { return x.on == on; }));
    m.waiting = random_() % 3 == 0 ? static_cast<std::uint32_t>(random_() % 8) : 0;
    m.rows_pending = random_() % 500;
    m.kv_tokens_total = random_() % 4 == 0 ? 0 : 200 + random_() % 2'000;
    m.rows_done = reports_ * 10;
    step([&](outbox& out) { return core_->on(m, now_, out); });
  }

  void refuse_one() {
    entry* e = pick(true);
    if (!e)
      return;
    const placed_rank on = *e->on;
    const ec codes[] = {ec::unavailable, ec::stale_epoch, ec::kv_exhausted, ec::context_exceeded};
    const ec code = codes[random_() % 4];
    // Whoever knows another view may still get a copy of the assignment: nobody else may have it.
    if (code != ec::stale_epoch)
      e->on.reset();
    step([&](outbox& out) {
      return core_->on(
          proto::assignment_refused{e->spec.request, e->attempt, on.rank, on.life, code, "no"},
          now_, out);
    });
    if (code == ec::stale_epoch) {
      ++sum_.stale;
      EXPECT_EQ(*e->on, on);
    }
  }

  void release_one() {
    entry* e = pick(random_() % 2 == 0);
    if (!e)
      return;
    e->done = true;
    e->on.reset();
    ++sum_.released;
    step([&](outbox& out) {
      return core_->on(proto::release_request{e->spec.request, true}, now_, out);
    });
  }

  /// A new incarnation takes the place of a rank; JOURNAL opens the next attempts of its requests.
  void lose_rank() {
    placed_rank& gone = ranks_[random_() % ranks_.size()];
    std::vector<request_id> again;
    for (auto& [id, e] : entries_)
      if (!e.done && e.on == gone) {
        ++e.attempt;
        e.on.reset();
        again.push_back(id);
      }
    gone.life = incarnation{1'000 + ++reports_};
    ++sum_.lost_ranks;
    // Until they are admitted again the core knows nothing of them.
    install();
    for (const request_id id : again) {
      entry& e = entries_.at(id);
      const std::uint64_t left = e.deadline ? static_cast<std::uint64_t>(std::max<std::int64_t>(
                                     1, (*e.deadline - now_).count() / 1'000'000))
                                            : 0;
      step([&](outbox& out) {
        return core_->on(proto::admit_request{e.spec, e.attempt, {}, left}, now_, out);
      });
    }
  }

  /// No new work: all that is there ends, by its rank or at its deadline.
  void drain() {
    for (int turn = 0; turn < 2'000; ++turn) {
      now_ = now_ + milliseconds{5};
      fire();
      bool left = false;
      for (const auto& [id, e] : entries_)
        left = left || !e.done;
      if (!left)
        break;
      finish_one();
      if (turn % 16 == 0)
        for (const placed_rank& r : ranks_) {
          proto::rank_load idle;
          idle.rank = r.rank;
          idle.life = r.life;
          idle.report = ++reports_;
          step([&](outbox& out) { return core_->on(idle, now_, out); });
        }
    }
    for (const auto& [id, e] : entries_)
      EXPECT_TRUE(e.done) << "request " << id.v << " was lost";
    const auto s = core_->on(proto::get_schedule{}).value();
    EXPECT_EQ(s.queued, 0U);
    for (const std::uint32_t n : s.assigned)
      EXPECT_EQ(n, 0U);
    for (const auto& [which, at] : timers_)
      EXPECT_NE(which.kind, 2U) << "a deadline of nobody: " << which.key;
  }

  std::mt19937_64 random_;
  totals& sum_;
  scheduler_options o_;
  std::unique_ptr<scheduler_core> core_;
  std::vector<placed_rank> ranks_;
  std::map<request_id, entry> entries_;
  std::map<timer, instant> timers_;
  std::set<request_id> withdrawn_;
  instant now_;
  std::uint64_t number_ = 0, reports_ = 0, view_ = 0;
  bool expected_refusal_ = false;
};

TEST(scheduler_property, keeps_its_promises_over_a_thousand_seeds) {
  totals sum;
  for (std::uint64_t seed = 1; seed <= 1'000 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    case_of{seed, sum}.run();
  }
  // The cases reach what they are about.
  EXPECT_GT(sum.settled, 10'000U);
  EXPECT_GT(sum.over_quota, 1'000U);
  EXPECT_GT(sum.expired, 500U);
  EXPECT_GT(sum.released, 500U);
  EXPECT_GT(sum.lost_ranks, 500U);
  EXPECT_GT(sum.overtakes, 500U);
  EXPECT_GT(sum.stale, 500U);
}

} // namespace
} // namespace di::engine
