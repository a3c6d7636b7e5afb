// SPDX-License-Identifier: Apache-2.0
// RANK's step loop: joins rank_core, expert_call_core, the runners and KV.
#include "actors/rank.hpp"
#include "engine/core/expert_shard_core.hpp" // rank_path, shard_path
#include "messaging/base/hang_point.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"

#include <utility>

namespace di::actors {

using engine::step_state;

template <class F>
result<step_state> rank_actor::timed(F&& compute) {
  const instant before = real_env().now();
  trace::span computing{trace::kind::attention};
  hang_point("rank.spin", hang_kind::spins);
  auto state = compute();
  if (state && *state == step_state::needs_experts)
    computing.args() = {.rows = demand().rows,
                        .layer = static_cast<std::int32_t>(demand().layer.v)};
  device_ns_ += static_cast<std::uint64_t>((real_env().now() - before).count());
  return state;
}

/// Work goes behind the mail that is waiting already, so that a step takes all that has come.
void rank_actor::wake(outbox& out) {
  if (phase_ == phase::idle && readers_.empty() && calls_.current() && core_.has_work())
    send_work(out);
}

void rank_actor::send_work(outbox& out) {
  if (!std::exchange(work_sent_, true))
    out.send(engine::rank_path(parts_.options.rank), proto::work_due{core_.steps()});
}

result<void> rank_actor::on(const proto::work_due&, instant now, outbox& out) {
  work_sent_ = false;
  if (phase_ != phase::idle)
    overlap(now, out);
  else if (readers_.empty() && calls_.current())
    if (auto state = begin_step(now, out))
      go_on(std::move(*state), out);
  return {};
}

/// A draft pass if there is anything to draft, else the step itself.
rank_actor::next_state rank_actor::begin_step(instant now, outbox& out) {
  waited_ = false;
  if (auto pass = begin_drafts(now))
    return pass;
  return launch(now, out);
}

rank_actor::next_state rank_actor::begin_drafts(instant now) {
  if (!parts_.drafts || std::exchange(drafts_failed_, false))
    return std::nullopt;
  const auto wishes = core_.draft_wishes(now);
  drafting_.clear();
  for (const engine::draft_wish& w : wishes)
    if (const auto& state = kv_.state(w.sequence); state.draft_end() == state.length())
      drafting_.push_back(w); // what was not fed would guess badly
  if (drafting_.empty()) {
    core_.end_drafts();
    return std::nullopt;
  }
  drafts_began_ = now;
  draft_watch_.start();
  device_ns_ = 0;
  phase_ = phase::drafts;
  std::vector<engine::draft_segment> segments;
  for (const engine::draft_wish& w : drafting_)
    segments.push_back({&kv_.state(w.sequence), w.next});
  return timed([&] { return parts_.drafts->start(segments); });
}

/// Hands the pass's drafts to the step that is launched next.
rank_actor::next_state rank_actor::end_drafts(outbox& out) {
  const auto drawn = parts_.drafts->draw(
      [this](std::size_t segment, std::size_t k, std::span<const float> logits) {
        return core_.draw_draft(drafting_[segment].sequence, logits,
                                parts_.drafts->drafts(segment).first(k));
      });
  if (!drawn) {
    give_up(drawn.error(), out);
    return std::nullopt;
  }
  for (std::size_t i = 0; i < drafting_.size(); ++i)
    core_.offer_drafts(drafting_[i].sequence, parts_.drafts->drafts(i),
                       parts_.drafts->confidences(i));
  draft_watch_.stop(trace::kind::draft, {.rows = static_cast<std::uint32_t>(drafting_.size())});
  phase_ = phase::idle;
  const instant now = real_env().now();
  core_.observe_draft_pass(static_cast<std::uint32_t>(drafting_.size()),
                           static_cast<double>((now - drafts_began_).count()) * 1e-6);
  return launch(now, out);
}

/// Launches the next step; without one, all that is left to do is done.
rank_actor::next_state rank_actor::launch(instant now, outbox& out) {
  if (core_.launch(now, out).segments.empty()) {
    settle(now, out);
    wake(out);
    return std::nullopt;
  }
  if (parts_.drafts)
    parts_.runner->want_taps(core_.wants_taps());
  phase_ = phase::experts;
  step_began_ = now;
  reached("rank.step_launched");
  step_watch_.start();
  device_ns_ = local_rows_ = remote_rows_ = 0;
  return timed([this] { return start_step(); });
}

/// What needs no answer, once the calls of the layer are on their way.
void rank_actor::overlap(instant now, outbox& out) {
  settle(now, out);
  auto done = phase_ == phase::drafts ? parts_.drafts->work_while_waiting()
                                      : parts_.runner->work_while_waiting();
  if (!done)
    return give_up(done.error(), out);
  if (parts_.options.steps_in_flight > 1 && phase_ == phase::experts && !core_.planned())
    core_.plan(now);
}

result<step_state> rank_actor::start_step() {
  std::vector<engine::step_segment> segments;
  for (const engine::planned_segment& planned : core_.launched().segments)
    segments.push_back({&kv_.state(planned.sequence), planned.first_position, planned.tokens,
                        !planned.draws       ? engine::logits_wanted::none
                        : planned.drafts > 0 ? engine::logits_wanted::all
                                             : engine::logits_wanted::last});
  return parts_.runner->start(segments);
}

/// Goes on until experts are missing or there is nothing to compute.
void rank_actor::go_on(result<step_state> state, outbox& out) {
  for (;;) {
    while (state && *state == step_state::needs_experts) {
      auto complete = ask_experts(out);
      if (!complete)
        return give_up(complete.error(), out);
      if (!*complete) {
        waited_ = true;
        reached("rank.waits_for_experts");
        wait_watch_.start();
        return send_work(out);
      }
      state = resume();
    }
    if (!state)
      return give_up(state.error(), out);
    next_state next = phase_ == phase::drafts ? end_drafts(out) : end_step(out);
    if (!next)
      return;
    state = std::move(*next);
  }
}

/// Draws, and begins what comes next: at once, unless the step read no mail or is to be settled
/// first.
rank_actor::next_state rank_actor::end_step(outbox& out) {
  const instant now = real_env().now();
  settle(now, out); // of the step before, if it had no time until now
  draw(now);
  reached("rank.step_drawn");
  feed_drafts(out);
  core_.observe_step(static_cast<double>((real_env().now() - step_began_).count()) * 1e-6);
  core_.keep();
  send_sealed(out);
  if (parts_.options.steps_in_flight > 1 && waited_)
    return begin_step(now, out);
  settle(now, out);
  wake(out);
  return std::nullopt;
}

const engine::expert_demand& rank_actor::demand() const {
  return phase_ == phase::drafts ? parts_.drafts->demand() : parts_.runner->demand();
}

result<step_state> rank_actor::resume() {
  return timed([this] {
    return phase_ == phase::drafts ? parts_.drafts->resume() : parts_.runner->resume();
  });
}

/// The rows that stay become what the draft layers see; of a long chunk, what their window reaches.
void rank_actor::feed_drafts(outbox& out) {
  if (!parts_.drafts)
    return;
  std::vector<engine::draft_feed> feeds;
  const engine::step_plan& plan = core_.launched();
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const engine::drawn_segment& drawn = outcome_[i];
    if (drawn.sequence == 0 || !core_.wants_taps(drawn.sequence))
      continue; // its state may be gone
    const std::span<const engine::bf16> taps = parts_.runner->taps(i);
    if (taps.empty())
      continue;
    const std::size_t computed = plan.segments[i].tokens.size();
    const std::size_t width = parts_.taps_width;
    const std::size_t tapped = taps.size() / width; // the last ones of the segment
    const std::size_t skipped = computed - tapped;  // below a floor
    if (drawn.kept <= skipped)
      continue;
    std::size_t rows = drawn.kept - skipped, from = 0;
    if (const auto window = static_cast<std::size_t>(parts_.layout.window); rows > window)
      from = rows - window;
    feeds.push_back({&kv_.state(drawn.sequence),
                     static_cast<std::int64_t>(plan.segments[i].first_position + skipped + from),
                     taps.subspan(from * width, (rows - from) * width)});
  }
  if (feeds.empty())
    return;
  if (auto fed = parts_.drafts->feed(feeds); !fed)
    drafts_failed(fed.error(), out);
}

/// Tokens of the computed step: all that the next launch must know.
void rank_actor::draw(instant now) {
  phase_ = phase::idle;
  const engine::step_plan& plan = core_.launched();
  std::vector<std::span<const float>> logits;
  for (std::size_t i = 0; i < plan.segments.size(); ++i)
    logits.push_back(plan.segments[i].draws ? parts_.runner->logits(i) : std::span<const float>{});
  drawn_ = {};
  drawn_.step = plan.step;
  drawn_.rank = parts_.options.rank;
  drawn_.rows = plan.rows;
  drawn_.prefill_rows = plan.prefill_rows;
  drawn_.device_time = proto::micros{device_ns_ / 1000};
  drawn_.local_rows = local_rows_;
  drawn_.remote_rows = remote_rows_;
  const std::int64_t drawing_ns = trace::enabled() ? trace::now_ns() : 0;
  const auto outcome = core_.draw(logits, now);
  outcome_.assign(outcome.begin(), outcome.end());
  trace_drawn(drawing_ns);
  load_ = calls_.end_step();
  drawn_.wall_time = proto::micros{static_cast<std::uint64_t>((now - step_began_).count() / 1000)};
}

/// The spans of a step that has its tokens: the step, its chunks of prompts, the drawing.
void rank_actor::trace_drawn(std::int64_t drawing_ns) {
  if (!step_watch_.running())
    return;
  const engine::step_plan& plan = core_.launched();
  std::uint32_t rows = 0, accepted = 0; // rows that were drawn from
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const engine::planned_segment& s = plan.segments[i];
    const auto computed = static_cast<std::uint32_t>(s.tokens.size());
    rows += s.draws ? 1 + s.drafts : 0;
    if (s.drafts > 0 && outcome_[i].kept > computed - s.drafts)
      accepted += outcome_[i].kept - (computed - s.drafts);
  }
  trace::record(plan.draft_rows > 0 ? trace::kind::verify : trace::kind::sample, drawing_ns,
                trace::now_ns(), {.rows = rows, .value = static_cast<float>(accepted)});
  for (const engine::planned_segment& s : plan.segments)
    if (s.tokens.size() > 1 + std::size_t{s.drafts} || !s.draws)
      step_watch_.lap(trace::kind::prefill, {.rows = static_cast<std::uint32_t>(s.tokens.size())},
                      core_.request_of(s.sequence));
  step_watch_.stop(trace::kind::step, {.rows = plan.rows});
}

/// End checks, commits and reports of the drawn step, if that is still to be done.
void rank_actor::settle(instant now, outbox& out) {
  if (drawn_.step == epoch{})
    return;
  const trace::span settling{trace::kind::commit, {.rows = drawn_.rows}};
  proto::step_finished done = std::exchange(drawn_, {});
  done.tokens = core_.finish(now, out);
  if (load_)
    out.send("/control/rebalancer", *std::exchange(load_, std::nullopt));
  if (!parts_.listeners.empty())
    out.send(parts_.listeners, std::move(done));
}

/// The computation that is out cannot go on.
void rank_actor::give_up(const error& why, outbox& out) {
  if (phase_ != phase::drafts)
    return fail_step(why, out);
  drafts_failed(why, out);
  drafts_failed_ = true;
  core_.end_drafts();
  phase_ = phase::idle;
  settle(real_env().now(), out);
  await_readers(out);
  wake(out);
}

/// Nothing depends on drafts: who was not fed goes without.
void rank_actor::drafts_failed(const error& why, outbox& out) {
  out.count("di_rank_draft_passes_failed_total");
  log::warn("drafts_failed", {{"rank", parts_.options.rank.v}, {"reason", why.render()}});
}

/// Gives the open calls up; rows that the own shard may still read stay until it has let go.
void rank_actor::await_readers(outbox& out) {
  readers_ = calls_.local_open();
  calls_.abandon();
  tell_installed(out);
  if (!readers_.empty() && !ask_armed_) {
    out.arm({ask_due, 0}, parts_.ask_after);
    ask_armed_ = true;
  }
}

void rank_actor::fail_step(const error& why, outbox& out) {
  const instant now = real_env().now();
  settle(now, out);
  phase_ = phase::idle;
  await_readers(out);
  core_.fail_step(why, now, out);
  if (!parts_.listeners.empty()) {
    proto::step_finished failed;
    failed.step = core_.launched().step;
    failed.rank = parts_.options.rank;
    failed.outcome = why.code;
    out.send(parts_.listeners, std::move(failed));
  }
  wake(out);
}

} // namespace di::actors
