// SPDX-License-Identifier: Apache-2.0
// A cluster in one process with online gateways: real models, desks, and a journal on disk;
// gateways and the control actors can end and begin again while requests run.
#pragma once

#include "actors/stream_gateway.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path
#include "tests/support/serving_cluster.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace di::test {

/// A client: writes down what it hears and checks the order. Any thread.
class recording_listener final : public actors::stream_listener {
public:
  void opened() override {
    const std::lock_guard lock{guard_};
    opened_ = true;
    changed_.notify_all();
  }
  void known(request_id request, bool same) override {
    const std::lock_guard lock{guard_};
    known_ = request;
    same_ = same;
    over_ = true;
    changed_.notify_all();
  }
  void tokens(const proto::tokens_released& m) override {
    const std::lock_guard lock{guard_};
    auto& choice = choices_[m.choice];
    if (m.first_index != choice.from + choice.tokens.size() || choice.end)
      ++disorder_;
    choice.tokens.insert(choice.tokens.end(), m.tokens.begin(), m.tokens.end());
    cached_ = m.cached_tokens;
    if (m.end.reason != proto::finish_reason::none)
      choice.end = m.end;
    changed_.notify_all();
  }
  void ended(const proto::choice_end& why, std::uint32_t) override {
    const std::lock_guard lock{guard_};
    ended_ = why;
    over_ = true;
    changed_.notify_all();
  }

  /// Waits until `holds(*this)`, with the lock. @return whether it came to that
  template <class F>
  bool wait(F&& holds, std::chrono::seconds limit = std::chrono::seconds{60}) {
    std::unique_lock lock{guard_};
    return changed_.wait_for(lock, limit, holds);
  }
  bool wait_tokens(std::size_t n, std::uint32_t choice = 0) {
    return wait([&] { return choices_[choice].tokens.size() >= n || over_; })
           && choices_[choice].tokens.size() >= n;
  }
  bool wait_end(std::uint32_t n = 1) {
    return wait([&] {
      std::uint32_t ends = 0;
      for (const auto& [which, c] : choices_)
        ends += c.end.has_value();
      return ends == n || over_;
    });
  }
  bool wait_over() {
    return wait([&] { return over_; });
  }
  /// @pre nobody calls it yet
  void begin_at(std::uint32_t from, std::uint32_t choice = 0) { choices_[choice].from = from; }
  std::vector<token_id> tokens_of(std::uint32_t choice = 0) {
    const std::lock_guard lock{guard_};
    return choices_[choice].tokens;
  }
  proto::choice_end end_of(std::uint32_t choice = 0) {
    const std::lock_guard lock{guard_};
    return choices_[choice].end.value_or(proto::choice_end{});
  }
  std::optional<proto::choice_end> whole_end() {
    const std::lock_guard lock{guard_};
    return ended_;
  }
  request_id known_request() const { return known_; }
  bool known_same() const { return same_; }
  std::uint32_t cached() const { return cached_; }
  std::size_t disorder() const { return disorder_; }

private:
  struct heard {
    std::uint32_t from = 0;
    std::vector<token_id> tokens;
    std::optional<proto::choice_end> end;
  };
  std::mutex guard_;
  std::condition_variable changed_;
  std::map<std::uint32_t, heard> choices_;
  std::optional<proto::choice_end> ended_;
  request_id known_;
  std::uint32_t cached_ = 0;
  std::size_t disorder_ = 0;
  bool opened_ = false, same_ = false, over_ = false;
};

class online_cluster {
public:
  online_cluster(const test_model& m, const cluster_options& options)
      : model_{m}, options_{options} {
    start_control();
    for (std::uint32_t r = 0; r < options_.ranks; ++r)
      start_rank(r);
    commit_view();
  }
  ~online_cluster() { actors_.stop_all(std::chrono::seconds{10}); }

  std::shared_ptr<actors::gateway_desk> start_gateway(std::uint32_t index) {
    actors::stream_gateway_settings s;
    s.path = fmt::format("/gateway/{}", index);
    s.life = incarnation{++lives_};
    s.ended = ended(s.path);
    paths_.push_back(s.path);
    return std::move(actors::spawn_stream_gateway(actors_, std::move(s))).value();
  }
  /// As a process that dies: nobody is told but by the next life.
  void kill_gateway(std::uint32_t index) { stop(fmt::format("/gateway/{}", index)); }

  /// Ends the control actors and begins them from what is on disk.
  void restart_control() {
    for (const char* path : {"/control/scheduler", "/control/rebalancer", "/control/journal"})
      actors_.stop(path);
    {
      std::unique_lock lock{guard_};
      DI_CHECK(
          changed_.wait_for(lock, std::chrono::seconds{30}, [&] { return control_ended_ == 3; }));
      control_ended_ = 0;
    }
    journal_.reset();
    start_control();
    commit_view();
    for (const address& gateway : paths_)
      tell(gateway, proto::control_moved{});
  }

  actors::system& actors() { return actors_; }
  template <message M>
  void tell(const address& to, M m) {
    envelope mail;
    mail.to = to;
    mail.from = "/control/membership";
    mail.body = parcel::of(std::move(m));
    (void)office_.post(std::move(mail));
  }
  /// Asks from outside of all actors.
  template <message Answer, message Q>
  std::optional<Answer> ask(const address& to, Q question) {
    std::mutex guard;
    std::condition_variable changed;
    std::optional<Answer> got;
    const address self = fmt::format("/asker/{}", ++askers_);
    DI_CHECK(office_
                 .bind(self,
                       [&](envelope mail) {
                         const std::lock_guard lock{guard};
                         if (const auto* a = mail.body.as<Answer>())
                           got = *a;
                         changed.notify_all();
                       })
                 .ok());
    envelope mail;
    mail.to = to;
    mail.from = self;
    mail.kind = mail_kind::request;
    mail.request = office_.number();
    mail.body = parcel::of(std::move(question));
    if (office_.post(std::move(mail))) {
      std::unique_lock lock{guard};
      changed.wait_for(lock, std::chrono::seconds{10}, [&] { return got.has_value(); });
    }
    office_.unbind(self, error{});
    return got;
  }

private:
  std::function<void(const error&)> ended(const address& path) {
    return [this, path](const error&) {
      const std::lock_guard lock{guard_};
      gone_.insert(path);
      changed_.notify_all();
    };
  }
  void stop(const address& path) {
    actors_.stop(path);
    std::unique_lock lock{guard_};
    DI_CHECK(
        changed_.wait_for(lock, std::chrono::seconds{30}, [&] { return gone_.contains(path); }));
    gone_.erase(path);
    std::erase(paths_, path);
  }

  void start_control() {
    actors::control_settings control;
    control.redundant_experts = options_.redundant;
    control.rebalance = options_.rebalance;
    if (!options_.journal.empty()) {
      const auto found = actors::find_journal(options_.journal).value();
      if (found)
        control.journal.recovered = found->image;
      actors::journal_file_options o;
      o.folder = options_.journal;
      o.tell = [this](const proto::journal_written& m) { tell("/control/journal", m); };
      journal_ = std::move(actors::journal_file::open(std::move(o), found)).value();
      control.journal.sink = journal_.get();
    }
    control.ended = [this](const error&) {
      const std::lock_guard lock{guard_};
      ++control_ended_;
      changed_.notify_all();
    };
    DI_CHECK(actors::spawn_control_serving(actors_, model_.outline, control).ok());
  }

  void start_rank(std::uint32_t r) {
    actors::rank_settings s;
    s.rank = rank_id{r};
    s.life = incarnation{1000 + r};
    s.threads = options_.threads;
    s.kv_tokens = std::uint64_t{options_.pages} * engine::page_tokens;
    s.step_rows = options_.step_rows;
    s.prefill_rows = options_.prefill_rows;
    s.steps.steps_in_flight = options_.steps_in_flight;
    s.steps.speculation = engine::parse_speculation(options_.speculation).value();
    DI_CHECK(actors::spawn_rank_serving(actors_, model_.weights, model_.outline, s).ok());
    members_.push_back({s.rank, {}, s.life, fmt::format("/rank/{}", r)});
  }

  void commit_view() {
    proto::view_committed view;
    view.view = epoch{++view_};
    view.members = members_;
    for (const char* to : {"/control/rebalancer", "/control/scheduler", "/control/journal"})
      tell(to, view);
    for (const proto::view_member& m : members_) {
      tell(engine::rank_path(m.rank), view);
      tell(engine::shard_path(m.rank), view);
    }
  }

  const test_model& model_;
  cluster_options options_;
  std::mutex guard_;
  std::condition_variable changed_;
  std::set<address> gone_;
  int control_ended_ = 0;
  std::vector<address> paths_; ///< of gateways
  std::vector<proto::view_member> members_;
  std::uint64_t view_ = 0, lives_ = 0;
  std::atomic<std::uint64_t> askers_{0};
  local_office office_;
  std::unique_ptr<actors::journal_file> journal_;
  actors::system actors_{{}, office_};
};

} // namespace di::test
