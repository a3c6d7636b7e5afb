// SPDX-License-Identifier: Apache-2.0
// Which rank has room, which has the least to do, and who goes first.
#include "engine/core/expert_shard_core.hpp" // rank_path
#include "engine/core/scheduler_request.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/trace.hpp"

#include <algorithm>
#include <map>

namespace di::engine {

namespace {
/// Requests without room that are looked at before the rest waits: bounds the time of one call.
constexpr std::size_t blocked_max = 32;
} // namespace

/// A refusal counts until the rank reports another state, has another life, or forget_refusals().
bool scheduler_core::refused_now(const rank_entry& rank, const request& r) const {
  const auto at = r.refused_by.find(rank.who.rank);
  return at != r.refused_by.end() && at->second.life == rank.who.life
         && at->second.report >= rank.load.report;
}

/// Whether no rank of the view can ever serve it. What ranks refuse for now waits in the queue.
bool scheduler_core::refused_by_all(const request& r) const {
  return !r.is_named() && std::all_of(ranks_.begin(), ranks_.end(), [&](const rank_entry& rank) {
    const auto at = r.refused_by.find(rank.who.rank);
    return at != r.refused_by.end() && at->second.life == rank.who.life && at->second.final();
  });
}

bool scheduler_core::has_room(const rank_entry& rank, const request& r) const {
  if (r.is_named())
    return rank.who == r.named(); // it has its room already
  if (rank.load.draining || refused_now(rank, r))
    return false;
  if (rank.choices == 0)
    return true; // an idle rank takes any request, however large
  if (rank.choices + r.choices() > options_.assigned_per_rank_max
      || rank.load.waiting + rank.new_choices >= options_.backlog_per_rank_max)
    return false;
  const std::uint64_t promised = rank.kv_tokens + r.kv_tokens(options_.expected_output_tokens);
  return rank.load.kv_tokens_total == 0
         || promised <= rank.load.kv_tokens_total * options_.kv_percent / 100;
}

rank_work scheduler_core::work_of(const rank_entry& rank) const {
  rank_work w;
  w.prompt_rows = rank.load.rows_pending + rank.new_rows;
  // Rows of a prompt see half of it on average; longer prompts have more of the rows.
  w.mean_context =
      rank.prompt_rows == 0 ? 0 : rank.prompt_squares / (2 * static_cast<double>(rank.prompt_rows));
  w.sequences = std::uint64_t{rank.load.running} + rank.load.waiting + rank.new_choices;
  return w;
}

/// Who is slow: more than half of the other ranks say so; by how much: the median of what they say.
void scheduler_core::judge_speeds(outbox& out) {
  std::map<rank_id, std::vector<std::uint32_t>> said;
  for (const rank_entry& by : ranks_)
    for (std::size_t i = 0; i < std::min(by.load.slow.size(), by.load.slow_percent.size()); ++i)
      if (by.load.slow[i] != by.who.rank)
        said[by.load.slow[i]].push_back(by.load.slow_percent[i]);
  proto::ranks_slow now;
  bool changed = false;
  for (rank_entry& r : ranks_) {
    std::vector<std::uint32_t>& all = said[r.who.rank];
    double slowness = 1;
    if (2 * all.size() > ranks_.size() - 1) {
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
      std::nth_element(all.begin(), middle, all.end());
      slowness = std::max(1.0, *middle / 100.0);
      now.ranks.push_back(r.who.rank);
      now.lives.push_back(r.who.life);
      now.percent.push_back(*middle);
    }
    if ((slowness > 1) != (r.slowness > 1)) {
      changed = true;
      out.count("di_scheduler_slow_ranks", slowness > 1 ? 1 : -1); // the sum is how many there are
      if (slowness > 1)
        out.count("di_scheduler_slow_ranks_total");
    }
    r.slowness = slowness;
  }
  if (changed)
    for (const address& who : options_.slow_to)
      out.send(who, now);
}

scheduler_core::rank_entry* scheduler_core::best_rank(const request& r) {
  rank_entry* best = nullptr;
  double least = 0;
  for (rank_entry& rank : ranks_) {
    if (!has_room(rank, r))
      continue;
    const double work = rank.slowness * (1 + outstanding_work(work_of(rank), options_.weights));
    if (!best || work < least || (work == least && rank.choices < best->choices)) {
      best = &rank;
      least = work;
    }
  }
  return best;
}

/// In the order of the queue; requests without room are passed, each by a bounded number of others.
void scheduler_core::place_queued(instant now, outbox& out) {
  std::vector<request*> blocked;
  bool stopped = ranks_.empty();
  for (auto at = queue_.places().begin(); !stopped && at != queue_.places().end();) {
    const auto found = requests_.find((at++)->request);
    request& r = *found->second;
    if (rank_entry* to = best_rank(r)) {
      assign(r, *to, now, out);
      for (request* b : blocked) {
        b->overtaken += static_cast<std::uint32_t>(r.choices());
        stopped = stopped || b->overtaken >= options_.overtakes_max;
      }
    } else if (refused_by_all(r)) {
      refuse(r.what, r.last_refusal.code, r.last_refusal.what, out);
      forget(found, out);
    } else {
      blocked.push_back(&r);
      stopped = r.overtaken >= options_.overtakes_max || blocked.size() >= blocked_max;
    }
  }
}

void scheduler_core::assign(request& r, rank_entry& to, instant now, outbox& out) {
  queue_.remove(r.place);
  r.assigned = to.who;
  r.confirmed = r.reported = false;
  r.wait = options_.resend_after;
  to.choices += r.choices();
  ++to.requests;
  to.kv_tokens += r.kv_tokens(options_.expected_output_tokens);
  to.prompt_rows += r.prompt_rows();
  to.prompt_squares += r.prompt_squares();
  to.new_rows += r.prompt_rows();
  to.new_choices += r.choices();
  send_assignment(r, now, out);
  out.send(options_.journal, proto::request_admitted{r.what.spec.request, r.what.attempt, true,
                                                     to.who.rank, to.who.life});
}

void scheduler_core::send_assignment(request& r, instant now, outbox& out) {
  r.sent = now;
  r.sent_view = view_;
  r.ahead = false;
  const trace::span assigning{
      trace::kind::assign, {.value = static_cast<float>(r.assigned->rank.v)}, r.what.spec.request};
  out.send(rank_path(r.assigned->rank), proto::assign_request{r.what.spec, r.what.attempt, view_,
                                                              r.assigned->life, r.what.progress});
  arm(out);
}

/// Its rank's reports count it from now on.
void scheduler_core::counted(rank_entry& rank, request& r) {
  if (r.reported)
    return;
  r.reported = true;
  rank.new_rows -= r.prompt_rows();
  rank.new_choices -= r.choices();
}

void scheduler_core::unassign(request& r) {
  if (!r.assigned)
    return;
  if (rank_entry* from = entry_of(r.assigned->rank, r.assigned->life)) {
    counted(*from, r);
    from->choices -= r.choices();
    --from->requests;
    if (!planted("leaked_room"))
      from->kv_tokens -= r.kv_tokens(options_.expected_output_tokens);
    from->prompt_rows -= r.prompt_rows();
    from->prompt_squares = from->prompt_rows == 0 ? 0 : from->prompt_squares - r.prompt_squares();
  }
  r.assigned.reset();
}

} // namespace di::engine
