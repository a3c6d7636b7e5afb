// SPDX-License-Identifier: Apache-2.0
// Test-only: real GATEWAYs with their desks, JOURNAL over a disk, SCHEDULER and RANKs with a toy
// device on one thread with a virtual clock. Every process can die and come back.
#pragma once

#include "actors/serving.hpp"
#include "actors/stream_gateway_actor.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "tests/property/toy_rank.hpp"
#include "tests/sim/sim_network.hpp"

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace di::test {

/// What a rank did, for whoever looks.
struct rank_log {
  std::uint64_t steps = 0;
  std::map<request_id, std::uint64_t> rows_in; ///< last step that had rows of a request
};

/// RANK's core over the toy device; a step takes 1 ms.
class step_rank_core {
public:
  step_rank_core(engine::rank_options options, rank_log* log)
      : kv_{options.kv_tokens, options.page_tokens, true},
        core_{options, toy_steps::samplers(), &kv_},
        log_{log} {}

  template <class M>
  result<void> on(const M& m, instant now, outbox& out) {
    DI_TRY_VOID(core_.on(m, now, out));
    wake(now, out);
    return {};
  }
  result<void> on(const proto::view_committed& m, instant now, outbox& out) {
    core_.install_view(m.view, out);
    wake(now, out);
    return {};
  }
  result<void> on_due(timer which, instant now, outbox& out) {
    if (which.kind != step_due)
      return core_.on_due(which, now, out);
    std::vector<std::vector<float>> values;
    std::vector<std::span<const float>> logits;
    for (const engine::planned_segment& s : core_.launched().segments)
      values.push_back(kv_.compute(s));
    for (const auto& v : values)
      logits.emplace_back(v);
    core_.draw(logits, now);
    core_.finish(now, out);
    wake(now, out);
    return {};
  }
  void check() const { core_.check(); }
  /// Nothing runs, waits or is kept.
  bool idle() const {
    return core_.running() + core_.waiting() == 0 && core_.requests() == 0
           && kv_.tokens_free() == kv_.tokens_total() && !core_.step_out();
  }

private:
  enum timer_kind : std::uint32_t { step_due = 100 };
  void wake(instant now, outbox& out) {
    if (core_.step_out() || !core_.has_work())
      return;
    const engine::step_plan& plan = core_.launch(now, out);
    if (plan.segments.empty()) {
      core_.finish(now, out);
      return;
    }
    ++log_->steps;
    for (const engine::planned_segment& s : plan.segments)
      log_->rows_in[core_.request_of(s.sequence)] = log_->steps;
    out.arm({step_due, 0}, std::chrono::milliseconds{1});
  }

  toy_steps::kv kv_;
  engine::rank_core core_;
  rank_log* log_;
};

struct step_rank {
  static constexpr auto kind = "step_rank";
  using core = step_rank_core;
  using protocol =
      di::protocol<reacts_to<proto::assign_request>, reacts_to<proto::withdraw_request>,
                   reacts_to<proto::commit_accepted>, reacts_to<proto::commit_refused>,
                   reacts_to<proto::view_committed>>;
};

/// Writes when it is told to.
struct world_disk final : engine::journal_sink {
  std::vector<std::byte> log;
  std::vector<engine::framed_record> waiting;
  std::uint64_t last = 0, number = 0, files = 0;
  bool dirty = false;

  void append(std::uint64_t position, std::uint64_t elapsed, engine::any_record r) override {
    last = position;
    dirty = true;
    waiting.push_back({0, elapsed, std::move(r)});
  }
  void begin_file(std::uint64_t position, std::uint64_t elapsed,
                  std::vector<engine::any_record> snapshot) override {
    log.clear();
    waiting.clear();
    ++files;
    last = position;
    dirty = true;
    for (engine::any_record& r : snapshot)
      DI_CHECK(engine::append_frame(log, {++number, elapsed, std::move(r)}));
  }
  void write() {
    for (engine::framed_record& r : waiting) {
      r.number = ++number;
      DI_CHECK(engine::append_frame(log, r));
    }
    waiting.clear();
    dirty = false;
  }
};

class stream_world {
public:
  explicit stream_world(std::uint64_t seed, engine::journal_options journal = {},
                        std::uint32_t ranks = 2)
      : net_{seed, {}}, journal_options_{std::move(journal)}, office_{net_} {
    journal_options_.sink = &disk_;
    start_control();
    logs_.resize(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r)
      start_rank(r);
    commit_view();
    for (std::uint32_t g = 0; g < gateways; ++g)
      start_gateway(g);
  }

  static constexpr std::uint32_t gateways = 2;

  sim_network& net() { return net_; }
  actors::gateway_desk& desk(std::uint32_t g) { return *desks_[g]; }
  const std::vector<rank_log>& logs() const { return logs_; }
  proto::journal_state journal_state() {
    return journal_core().core().on(proto::get_journal{}).value();
  }
  engine::journal_image image() { return journal_core().core().image(net_.now()); }

  void kill_gateway(std::uint32_t g) {
    gateway_handles_[g] = nullptr;
    net_.remove(gateway_path(g));
  }
  void start_gateway(std::uint32_t g) {
    engine::stream_gateway_options o;
    o.self = gateway_path(g);
    o.life = incarnation{++lives_};
    o.window = 6;
    desks_[g] =
        std::make_shared<actors::desk_state>(o.self, office_, [this] { return net_.random()(); });
    add(gateway_path(g),
        gateway_handles_[g] =
            new typed_core<actors::stream_gateway_actor, actors::stream_gateway::protocol>(
                std::in_place, std::move(o), desks_[g]));
  }
  /// @param lose  what is not written is lost
  void restart_control(bool lose) {
    net_.remove("/control/journal");
    net_.remove("/control/scheduler");
    if (!lose)
      disk_.write();
    disk_.waiting.clear();
    auto found = engine::recover_log(disk_.log, "journal");
    DI_CHECK(found.ok());
    disk_.number = found->image.number;
    journal_options_.recovered = std::move(found->image);
    start_control();
    commit_view();
    for (std::uint32_t g = 0; g < gateways; ++g)
      if (gateway_handles_[g])
        net_.inject(gateway_path(g), parcel::of(proto::control_moved{}));
  }
  void replace_rank(std::uint32_t r) {
    net_.remove(engine::rank_path(rank_id{r}));
    start_rank(r);
    commit_view();
  }

  /// One turn: what waits for the disk, then the next event. @return whether there was one
  bool turn(duration limit) {
    if (disk_.dirty)
      flush();
    bool once = false;
    return net_.run([&once] { return std::exchange(once, true); }, 2, limit);
  }
  void run_for(duration span) {
    const instant end = net_.now() + span;
    net_.inject("/nobody", parcel::of(proto::desk_rang{}), span);
    while (net_.failure().empty() && net_.now() < end)
      turn(span);
  }
  /// Ranks, queues and gateways hold nothing.
  bool empty() {
    for (const step_rank_core* r : ranks_)
      if (!r->idle())
        return false;
    for (std::uint32_t g = 0; g < gateways; ++g)
      if (gateway_handles_[g]
          && gateway_handles_[g]->core().counts().waiting
                     + gateway_handles_[g]->core().counts().open
                 > 0)
        return false;
    return schedule().queued == 0;
  }
  proto::schedule schedule() { return scheduler_->core().on(proto::get_schedule{}).value(); }

private:
  /// Orders of desks, which post from outside of all handlers.
  class ringing_office final : public bus::post_office {
  public:
    explicit ringing_office(sim_network& net) : net_{net} {}
    result<void> bind(const address&, bus::deliver_fn) override { return {}; }
    void unbind(const address&, const error&) override {}
    result<void> add_route(const bus::peer&) override { return {}; }
    void remove_route(const address&, const error&) override {}
    std::vector<bus::peer> routes() const override { return {}; }
    result<void> post(envelope mail) override {
      if (!net_.has(mail.to))
        return fail(ec::not_found, "nobody is at {}", mail.to);
      net_.inject(mail.to, std::move(mail.body));
      return {};
    }
    std::uint64_t number() override { return 0; }
    result<void> watch(const address&, const address&) override { return {}; }
    void unwatch(const address&, const address&) override {}
    void set_view(epoch) override {}
    bus::peer self() const override { return {}; }
    bus::post_office_stats stats() const override { return {}; }

  private:
    sim_network& net_;
  };

  using journal_handle = typed_core<engine::journal_core, actors::journal::protocol>;
  using gateway_handle = typed_core<actors::stream_gateway_actor, actors::stream_gateway::protocol>;

  static address gateway_path(std::uint32_t g) { return fmt::format("/gateway/{}", g); }
  journal_handle& journal_core() { return *journal_; }
  void add(const address& path, core_handle* made) {
    net_.add(path, std::unique_ptr<core_handle>{made});
  }

  void start_control() {
    add("/control/journal", journal_ = new journal_handle(std::in_place, journal_options_));
    journal_options_.recovered.reset();
    engine::scheduler_options o;
    o.backlog_per_rank_max = 3;
    add("/control/scheduler",
        scheduler_ =
            new typed_core<engine::scheduler_core, actors::scheduler::protocol>(std::in_place, o));
  }
  void start_rank(std::uint32_t r) {
    engine::rank_options o;
    o.rank = rank_id{r};
    o.life = incarnation{++lives_};
    o.vocab = toy_steps::vocab;
    o.context_tokens = 200;
    o.step_rows = 12;
    o.prefill_rows_min = 4;
    o.running_max = 4;
    o.page_tokens = 10;
    o.kv_tokens = 400;
    if (ranks_.size() <= r)
      ranks_.resize(r + 1);
    auto* made = new typed_core<step_rank_core, step_rank::protocol>(std::in_place, o, &logs_[r]);
    ranks_[r] = &made->core();
    add(engine::rank_path(o.rank), made);
    life_of_[r] = o.life;
  }
  void commit_view() {
    proto::view_committed view;
    proto::placement_settled settled;
    view.view = settled.view = epoch{++view_};
    settled.placement = epoch{view_};
    for (const auto& [r, life] : life_of_) {
      view.members.push_back({rank_id{r}, {}, life, fmt::format("/rank/{}", r)});
      settled.ranks.push_back(rank_id{r});
      settled.lives.push_back(life);
    }
    for (const auto& [r, life] : life_of_)
      net_.inject(engine::rank_path(rank_id{r}), parcel::of(view));
    net_.inject("/control/scheduler", parcel::of(view));
    net_.inject("/control/scheduler", parcel::of(settled));
    net_.inject("/control/journal", parcel::of(view));
  }
  void flush() {
    disk_.write();
    proto::journal_written m;
    m.position = disk_.last;
    m.file = disk_.files;
    m.file_bytes = disk_.log.size();
    net_.inject("/control/journal", parcel::of(m));
  }

  sim_network net_;
  world_disk disk_;
  engine::journal_options journal_options_;
  ringing_office office_;
  std::vector<rank_log> logs_;
  std::vector<step_rank_core*> ranks_;
  std::map<std::uint32_t, incarnation> life_of_;
  std::array<std::shared_ptr<actors::desk_state>, gateways> desks_;
  std::array<gateway_handle*, gateways> gateway_handles_{};
  journal_handle* journal_ = nullptr;
  typed_core<engine::scheduler_core, actors::scheduler::protocol>* scheduler_ = nullptr;
  std::uint64_t lives_ = 100, view_ = 0;
};

} // namespace di::test
