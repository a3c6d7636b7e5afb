// SPDX-License-Identifier: Apache-2.0
// A cluster in one process whose ranks are killed, expelled and brought back while a batch runs. A
// killed rank's mail goes nowhere from one message to the next, in the middle of whatever it does.
#pragma once

#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path
#include "engine/core/kv_agent_core.hpp"     // kv_agent_path
#include "tests/support/serving_cluster.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

namespace di::test {

struct rank_fault {
  enum class kind : std::uint8_t {
    kill,    ///< cut off at once, then a view without it
    expel,   ///< alive and sending, but a view is committed without it
    join,    ///< a fresh life of a rank that is not in
    replace, ///< cut off; the next view has a fresh life in its place
  };
  std::uint64_t after_calls = 0; ///< expert calls posted before it happens
  kind what = kind::kill;
  std::vector<std::uint32_t> ranks; ///< all in one view
};

/// local_office that can cut processes off, and says how far the work is.
class cut_office final : public bus::post_office {
public:
  explicit cut_office(std::vector<rank_fault> faults) : faults_{std::move(faults)} {}

  result<void> bind(const address& path, bus::deliver_fn deliver) override {
    return inner_.bind(path, std::move(deliver));
  }
  void unbind(const address& path, const error& reason) override { inner_.unbind(path, reason); }
  result<void> add_route(const bus::peer& p) override { return inner_.add_route(p); }
  void remove_route(const address& prefix, const error& reason) override {
    inner_.remove_route(prefix, reason);
  }
  std::vector<bus::peer> routes() const override { return inner_.routes(); }
  result<void> post(envelope mail) override {
    {
      const std::lock_guard lock{guard_};
      if (mail.body.as<proto::expert_batch>() != nullptr)
        ++calls_;
      while (next_ < faults_.size() && faults_[next_].after_calls <= calls_) {
        const rank_fault& f = faults_[next_++];
        if (f.what == rank_fault::kind::kill || f.what == rank_fault::kind::replace)
          for (const std::uint32_t r : f.ranks)
            cut_.insert(fmt::format("/rank/{}/", r));
        due_.push_back(f);
        changed_.notify_all();
      }
      for (const std::string& prefix : cut_)
        if (mail.from.starts_with(prefix) || mail.to.starts_with(prefix))
          return {}; // on a wire that nobody reads
    }
    return inner_.post(std::move(mail));
  }
  std::uint64_t number() override { return inner_.number(); }
  result<void> watch(const address& path, const address& watcher) override {
    return inner_.watch(path, watcher);
  }
  void unwatch(const address& path, const address& watcher) override {
    inner_.unwatch(path, watcher);
  }
  void set_view(epoch view) override { inner_.set_view(view); }
  bus::peer self() const override { return inner_.self(); }
  bus::post_office_stats stats() const override { return inner_.stats(); }

  void heal(std::uint32_t rank) {
    const std::lock_guard lock{guard_};
    cut_.erase(fmt::format("/rank/{}/", rank));
  }
  /// Waits for the next fault, or until `over` holds. @return none: it is over
  template <class F>
  std::optional<rank_fault> next_fault(F&& over, std::chrono::steady_clock::time_point limit) {
    std::unique_lock lock{guard_};
    changed_.wait_until(lock, limit, [&] { return !due_.empty() || over(); });
    if (due_.empty())
      return std::nullopt;
    rank_fault f = due_.front();
    due_.pop_front();
    return f;
  }
  void wake() {
    const std::lock_guard lock{guard_};
    changed_.notify_all();
  }
  std::uint64_t calls() const {
    const std::lock_guard lock{guard_};
    return calls_;
  }

private:
  local_office inner_;
  mutable std::mutex guard_;
  std::condition_variable changed_;
  std::vector<rank_fault> faults_; ///< in order of after_calls
  std::deque<rank_fault> due_;
  std::set<std::string> cut_;
  std::size_t next_ = 0;
  std::uint64_t calls_ = 0;
};

struct kill_outcome : batch_outcome {
  std::uint64_t calls = 0;  ///< expert calls
  std::size_t happened = 0; ///< faults
  std::size_t fenced = 0;   ///< actors that ended because a view was without them
};

/// A batch over a cluster that has faults meanwhile.
class kill_cluster {
public:
  kill_cluster(const test_model& m, const cluster_options& options, std::vector<rank_fault> faults)
      : model_{m}, options_{options}, office_{std::move(faults)} {}

  kill_outcome run(const std::string& prompts,
                   std::chrono::seconds limit = std::chrono::seconds{120}) {
    const auto end = std::chrono::steady_clock::now() + limit;
    start_control(prompts);
    for (std::uint32_t r = 0; r < options_.ranks; ++r)
      start_rank(r);
    commit({});
    const auto over = [this] { return finished_.load(); };
    while (auto fault = office_.next_fault(over, end)) {
      ++outcome_.happened;
      apply(*fault);
    }
    outcome_.counters = actors_.counters().totals();
    outcome_.calls = office_.calls();
    actors_.stop_all(std::chrono::seconds{10});
    const std::lock_guard lock{guard_};
    outcome_.fenced = fenced_;
    return outcome_;
  }

private:
  void start_control(const std::string& prompts) {
    actors::control_settings control;
    control.redundant_experts = options_.redundant;
    control.rebalance = options_.rebalance;
    DI_CHECK(actors::spawn_control_serving(actors_, model_.outline, control).ok());
    actors::batch_settings front;
    front.prompts = prompts;
    front.window = options_.window;
    front.draw_seed = [] { return 7; };
    front.write = [this](std::string_view line) -> result<void> {
      const std::lock_guard lock{guard_};
      outcome_.lines.emplace_back(line);
      return {};
    };
    front.finished = [this](const proto::batch_finished& done) {
      {
        const std::lock_guard lock{guard_};
        outcome_.finished = done;
      }
      finished_ = true;
      office_.wake();
    };
    DI_CHECK(actors::spawn_batch_gateway(actors_, model_.outline, std::move(front)).ok());
  }

  void start_rank(std::uint32_t r) {
    actors::rank_settings s;
    s.rank = rank_id{r};
    s.life = incarnation{++lives_};
    s.threads = options_.threads;
    s.rebalance = options_.rebalance;
    s.kv_tokens = std::uint64_t{options_.pages} * engine::page_tokens;
    s.step_rows = options_.step_rows;
    s.prefill_rows = options_.prefill_rows;
    s.steps.steps_in_flight = options_.steps_in_flight;
    s.steps.speculation = engine::parse_speculation(options_.speculation).value();
    s.steps.snapshot_bytes = options_.snapshot_bytes;
    s.ended = [this, r](const error& why) {
      const std::lock_guard lock{guard_};
      fenced_ += why.code == ec::stale_incarnation;
      ++ended_[r];
      changed_.notify_all();
    };
    DI_CHECK(actors::spawn_rank_serving(actors_, model_.weights, model_.outline, s).ok());
    members_[s.rank] = {s.rank, {}, s.life, fmt::format("/rank/{}", r)};
  }

  /// All actors of a rank end, whatever they were doing.
  void end_rank(std::uint32_t r) {
    actors_.stop(engine::kv_agent_path(rank_id{r}));
    actors_.stop(engine::rank_path(rank_id{r}));
    actors_.stop(engine::shard_path(rank_id{r}));
    std::unique_lock lock{guard_};
    DI_CHECK(changed_.wait_for(lock, std::chrono::seconds{30}, [&] { return ended_[r] == 3; }));
    ended_[r] = 0;
  }

  void apply(const rank_fault& f) {
    std::vector<address> expelled;
    for (const std::uint32_t r : f.ranks)
      switch (f.what) {
      case rank_fault::kind::kill:
        members_.erase(rank_id{r});
        break;
      case rank_fault::kind::expel:
        members_.erase(rank_id{r});
        expelled.push_back(engine::rank_path(rank_id{r}));
        expelled.push_back(engine::shard_path(rank_id{r}));
        break;
      case rank_fault::kind::replace:
        end_rank(r);
        [[fallthrough]];
      case rank_fault::kind::join:
        office_.heal(r);
        start_rank(r);
        break;
      }
    commit(expelled);
    if (f.what == rank_fault::kind::kill || f.what == rank_fault::kind::expel)
      for (const std::uint32_t r : f.ranks)
        end_rank(r);
  }

  void commit(const std::vector<address>& expelled) {
    proto::view_committed view;
    view.view = epoch{++view_};
    std::vector<address> to{"/control/scheduler", "/control/rebalancer", "/control/journal"};
    for (const auto& [rank, member] : members_) {
      view.members.push_back(member);
      to.push_back(engine::rank_path(rank));
      to.push_back(engine::shard_path(rank));
    }
    to.insert(to.end(), expelled.begin(), expelled.end());
    for (const address& who : to) {
      envelope mail;
      mail.to = who;
      mail.from = "/control/membership";
      mail.body = parcel::of(view);
      DI_CHECK(office_.post(std::move(mail)).ok());
    }
  }

  const test_model& model_;
  cluster_options options_;
  std::mutex guard_;
  std::condition_variable changed_;
  std::atomic<bool> finished_{false};
  kill_outcome outcome_;
  std::map<std::uint32_t, int> ended_; ///< actors of a rank
  std::size_t fenced_ = 0;
  std::map<rank_id, proto::view_member> members_;
  std::uint64_t view_ = 0, lives_ = 1000;
  cut_office office_;
  actors::system actors_{{}, office_};
};

} // namespace di::test
