// SPDX-License-Identifier: Apache-2.0
// What JOURNAL writes down, what waits until it is written, and what an earlier life wrote.
#include "engine/core/deadline.hpp"
#include "engine/core/journal_request.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

#include <algorithm>

namespace di::engine {
namespace {

namespace records = journal_record;

/// [bytes] about what a request takes in a file.
std::uint64_t opened_bytes(const proto::request_spec& spec, std::size_t note_bytes) {
  constexpr std::uint64_t rest_bytes = 256;
  return rest_bytes + 3 * (spec.prompt.size() + spec.sampling.forced_ids.size()) + note_bytes;
}

std::uint64_t tokens_bytes(std::size_t tokens, std::span<const proto::position_logprobs> logprobs) {
  std::uint64_t all = 3 * tokens;
  for (const proto::position_logprobs& p : logprobs)
    all += 11 + 11 * p.top_tokens.size();
  return all;
}

} // namespace

std::uint64_t journal_core::elapsed_ms(instant now) const {
  if (!began_)
    return elapsed_before_ms_;
  const auto here = std::chrono::ceil<std::chrono::milliseconds>(now - *began_).count();
  return elapsed_before_ms_ + static_cast<std::uint64_t>(std::max<std::int64_t>(0, here));
}

std::uint64_t journal_core::record(any_record body, instant now) {
  if (!began_)
    began_ = now;
  ++position_;
  if (options_.sink)
    options_.sink->append(position_, elapsed_ms(now), std::move(body));
  else
    written_ = position_;
  return position_;
}

void journal_core::record_opened(request& r, instant now) {
  r.bytes = opened_bytes(r.spec, r.note.size());
  r.opened_ms = elapsed_ms(now);
  live_bytes_ += r.bytes;
  records::opened made;
  if (options_.sink) {
    made.spec = r.spec;
    made.note = r.note;
    made.dedup = r.dedup;
    made.dedup_digest = r.dedup_digest;
  }
  made.keep_ms = r.keep_ms;
  made.detached_ms = r.detached_ms;
  made.attended = r.attended;
  made.attempt = r.attempt_recorded = r.attempt;
  made.keep = r.keep;
  if (r.spec.deadline_ms > 0)
    made.deadline_left_ms = static_cast<std::uint64_t>(
        std::chrono::floor<std::chrono::milliseconds>(deadline_span(r.spec.deadline_ms)).count());
  r.position = record(std::move(made), now);
}

/// A later life must neither give this attempt to another rank nor open a number again.
void journal_core::record_attempt(request& r, instant now) {
  if (r.attempt_recorded == r.attempt && r.placed_recorded == r.placed)
    return;
  r.attempt_recorded = r.attempt;
  r.placed_recorded = r.placed;
  records::placed made{r.spec.request, r.attempt, r.placed.has_value(), {}, {}};
  if (r.placed)
    std::tie(made.rank, made.life) = *r.placed;
  r.position = record(std::move(made), now);
}

void journal_core::record_tokens(request& r, std::uint32_t which, std::uint32_t from, instant now) {
  choice& c = r.choices[which];
  records::tokens made;
  made.request = r.spec.request;
  made.choice = which;
  made.first_index = from;
  if (options_.sink) {
    made.ids.assign(c.tokens.begin() + from, c.tokens.end());
    if (c.logprobs.size() == c.tokens.size())
      made.logprobs.assign(c.logprobs.begin() + from, c.logprobs.end());
  }
  made.end = c.end;
  made.timings = c.timings;
  made.prefix_recorded = r.spec.prefix_recorded;
  made.prefix_tokens = r.spec.prefix_tokens;
  made.cached_tokens = r.cached_tokens;
  const std::uint64_t bytes = tokens_bytes(c.tokens.size() - from, made.logprobs);
  r.bytes += bytes;
  live_bytes_ += bytes;
  c.position = record(std::move(made), now);
  if (options_.sink) {
    writing_.push_back({c.position, r.spec.request, which, c.next(), c.ended()});
  } else {
    c.settled = c.next();
    c.end_settled = c.ended();
  }
}

void journal_core::record_closed(request& r, const proto::choice_end& rest, instant now) {
  records::closed made;
  made.request = r.spec.request;
  made.end = rest;
  for (std::uint32_t i = 0; i < r.choices.size(); ++i)
    if (r.choices[i].cut)
      made.cut.push_back({i, r.choices[i].next()});
  r.position = record(std::move(made), now);
  r.closed_ms = elapsed_ms(now);
  for (std::uint32_t i = 0; i < r.choices.size(); ++i) {
    choice& c = r.choices[i];
    if (!c.cut)
      continue;
    // While writing fails nothing unwritten is left of it (drop_unwritten): the end may go out.
    const bool at_once = !options_.sink || stalled();
    c.position = at_once ? 0 : r.position;
    if (at_once) {
      c.settled = c.next();
      c.end_settled = true;
    } else {
      writing_.push_back({c.position, r.spec.request, i, c.next(), true});
    }
  }
}

void journal_core::record_forgotten(request& r, instant now) {
  live_bytes_ -= std::min(live_bytes_, r.bytes);
  const std::uint64_t id = r.spec.request.v;
  if (const auto known = dedup_.find(r.dedup); known != dedup_.end() && known->second.v == id)
    dedup_.erase(known);
  forgotten_.add(id);
  forgotten_.keep_last(options_.closed_kept);
  record(records::forgotten{id, id}, now);
}

/// Back to what is written; what waited to be told of the rest is told never.
void journal_core::drop_unwritten(request& r) {
  reached("journal.drops_unwritten");
  const request_id id = r.spec.request;
  std::erase_if(held_, [id](const held_effect& h) { return h.request == id; });
  std::erase_if(writing_, [id](const writing_tokens& w) { return w.request == id; });
  for (choice& c : r.choices) {
    c.tokens.resize(c.settled);
    c.logprobs.resize(std::min<std::size_t>(c.settled, c.logprobs.size()));
    c.sent = std::min(c.sent, c.settled);
    if (!c.end_settled)
      c.end = {};
  }
}

void journal_core::hold(std::uint64_t position, request_id id, any_effect effect, outbox& out) {
  if (position <= written_ || planted("told_before_written"))
    out.put(std::move(effect));
  else
    held_.push_back({position, id, std::move(effect)});
}

/// Effects leave in the order in which they were held: one that waits for an older position than
/// one before it leaves with that.
void journal_core::settle(outbox& out) {
  for (; !writing_.empty() && writing_.front().position <= written_; writing_.pop_front()) {
    const writing_tokens& w = writing_.front();
    request* r = find(w.request);
    if (!r)
      continue;
    choice& c = r->choices[w.choice];
    c.settled = std::max(c.settled, w.next);
    c.end_settled = c.end_settled || w.ended;
  }
  for (; !held_.empty() && held_.front().position <= written_; held_.pop_front())
    out.put(std::move(held_.front().effect));
}

result<void> journal_core::on(const proto::journal_written& m, instant now, outbox& out) {
  if (!options_.sink)
    return {};
  written_ = std::max(written_, std::min(m.position, position_));
  if (m.failing && !failing_)
    out.count("di_journal_disk_failures_total");
  failing_ = m.failing;
  in_memory_ = m.in_memory;
  why_ = m.what;
  file_bytes_ = m.file_bytes;
  if (m.file != file_) {
    file_ = m.file;
    next_file_at_ = 0;
  }
  settle(out);
  if (m.needs_snapshot
      || (!failing_ && file_bytes_ > options_.file_bytes_max + 2 * live_bytes_
          && file_bytes_ > next_file_at_))
    begin_file(now);
  return {};
}

void journal_core::begin_file(instant now) {
  next_file_at_ = file_bytes_ + options_.file_bytes_max; // should it come to nothing
  journal_image all = image(now);
  options_.sink->begin_file(position_, all.elapsed_ms, all.snapshot());
}

std::string journal_core::cannot_open() const {
  if (stalled())
    return fmt::format("the journal cannot be written: {}", why_);
  if (live_bytes_ > options_.live_bytes_max)
    return fmt::format("the journal holds {} bytes of open requests, at most {}", live_bytes_,
                       options_.live_bytes_max);
  return {};
}

result<void> journal_core::on(const proto::record_view& m, reply_to ticket, instant now,
                              outbox& out) {
  if (!recorded_view_ || recorded_view_->view < m.next.view)
    recorded_view_ = m.next;
  const std::uint64_t at = record(records::view{m.next}, now);
  hold(at, request_id{}, effect::reply{ticket, parcel::of(proto::view_recorded{m.next.view})}, out);
  return {};
}

result<void> journal_core::on(const proto::answer_delivered& m, instant now, outbox&) {
  if (request* r = find(m.request)) {
    r->delivered = true;
    for (choice& c : r->choices) // nobody needs to acknowledge what its client has
      if (r->closed && c.end_settled) {
        c.shown = c.sent = c.settled;
        c.end_shown = true;
      }
    forget_if_done(*r, now);
  }
  return {};
}

result<proto::journal_state> journal_core::on(const proto::get_journal&) const {
  proto::journal_state s = counts_;
  s.unwritten = position_ - written_;
  s.file_bytes = file_bytes_;
  s.failing = failing_;
  s.what = why_;
  s.stored = stored_.size();
  s.stored_bytes = stored_bytes_;
  for (const auto& [id, r] : requests_)
    s.detached += r->detached && !r->stored;
  return s;
}

/// GATEWAY asks for a request that is known. One that an earlier life left is shown from its start.
void journal_core::reopen(request& r, const proto::open_request& m, instant now, outbox& out) {
  r.keep = r.keep || m.keep;
  if (r.position <= written_) // else the answer to the first one waits still
    out.send(m.spec.gateway, proto::request_opened{m.spec.request});
  if (r.detached)
    return attach(r, m.spec.gateway, {}, now, out);
  if (!std::exchange(r.from_disk, false))
    return;
  for (std::uint32_t i = 0; i < r.choices.size(); ++i)
    if (r.choices[i].settled > 0 || r.choices[i].end_settled)
      release(r, i, 0, r.choices[i].settled, now, out);
}

void journal_core::start(instant now, outbox& out) {
  began_ = now;
  if (options_.recovered) {
    take_over(*std::exchange(options_.recovered, std::nullopt), now);
    reached("journal.recovers");
    out.count("di_journal_requests_recovered_total", static_cast<double>(requests_.size()));
  }
  if (options_.sink)
    begin_file(now);
  resume_following(now, out);
  for (auto& [id, r] : requests_) {
    if (r->closed)
      continue;
    if (r->spec.deadline_ms > 0)
      out.arm({deadline_due, id.v},
              std::max(duration{1}, r->opened + deadline_span(r->spec.deadline_ms) - now));
    if (r->placed || planted("unfenced_restart"))
      admit(*r, now, out);
    else
      next_attempt(*r, now, out); // a rank may have it that nobody had written down
  }
  if (!requests_.empty())
    arm(out);
}

void journal_core::take_over(const journal_image& from, instant now) {
  elapsed_before_ms_ = from.elapsed_ms;
  forgotten_ = from.forgotten;
  recorded_view_ = from.view;
  for (const auto& [id, image] : from.requests) {
    if (planted("recovery_skips_open") && !image.closed)
      continue;
    auto made = std::make_unique<request>();
    made->spec = image.spec;
    made->attempt = made->attempt_recorded = image.attempt;
    if (image.rank)
      made->placed = made->placed_recorded = life_of_rank{*image.rank, image.life};
    made->closed = image.closed;
    made->keep = image.keep;
    made->from_disk = !image.attended;
    made->note = image.note;
    made->dedup = image.dedup;
    made->dedup_digest = image.dedup_digest;
    made->keep_ms = image.keep_ms;
    made->detached_ms = image.detached_ms;
    made->attended = made->detached = image.attended;
    made->opened_ms = image.opened_at_ms;
    made->closed_ms = image.closed_at_ms;
    made->cached_tokens = image.cached_tokens;
    made->wait = options_.resend_after;
    made->opened = now;
    if (image.spec.deadline_ms > 0) {
      const std::uint64_t left =
          std::max(image.deadline_at_ms, from.elapsed_ms + 1) - from.elapsed_ms;
      made->opened = now + (deadline_span(left) - deadline_span(image.spec.deadline_ms));
    }
    made->bytes = opened_bytes(image.spec, image.note.size());
    for (const choice_image& c : image.choices) {
      choice& into = made->choices.emplace_back();
      into.tokens = c.tokens;
      into.logprobs = c.logprobs;
      into.end = c.end;
      into.timings = c.timings;
      into.cut = c.cut;
      into.settled = into.next();
      into.end_settled = into.ended();
      into.released = now;
      into.wait = options_.resend_after;
      made->bytes += tokens_bytes(c.tokens.size(), c.logprobs);
      made->cached_known = made->cached_known || !c.tokens.empty();
      counts_.tokens += c.tokens.size();
    }
    take_over_dedup(*made);
    live_bytes_ += made->bytes;
    ++(made->closed ? counts_.closed : counts_.open);
    requests_.emplace(id, std::move(made));
  }
  // A choice of a request that was not closed may have been the last to end. The file that is begun
  // next says so.
  for (auto& [id, r] : requests_)
    if (!r->closed && std::all_of(r->choices.begin(), r->choices.end(), [](const choice& c) {
          return c.ended();
        })) {
      r->closed = true;
      r->closed_ms = from.elapsed_ms;
      --counts_.open;
      ++counts_.closed;
    }
}

journal_image journal_core::image(instant now) const {
  journal_image all;
  all.run = options_.run;
  all.view = recorded_view_;
  all.forgotten = forgotten_;
  all.elapsed_ms = elapsed_ms(now);
  for (const auto& [id, r] : requests_) {
    request_image& into = all.requests[id];
    into.spec = r->spec;
    into.attempt = r->attempt;
    if (r->placed) {
      into.rank = r->placed->first;
      into.life = r->placed->second;
    }
    into.closed = r->closed;
    into.keep = r->keep;
    into.note = r->note;
    into.dedup = r->dedup;
    into.dedup_digest = r->dedup_digest;
    into.keep_ms = r->keep_ms;
    into.detached_ms = r->detached_ms;
    into.attended = r->attended;
    into.opened_at_ms = r->opened_ms;
    into.closed_at_ms = r->closed_ms;
    into.cached_tokens = r->cached_tokens;
    if (r->spec.deadline_ms > 0) {
      const auto left = std::chrono::floor<std::chrono::milliseconds>(
          r->opened + deadline_span(r->spec.deadline_ms) - now);
      into.deadline_at_ms =
          all.elapsed_ms + static_cast<std::uint64_t>(std::max<std::int64_t>(1, left.count()));
    }
    for (const choice& c : r->choices)
      into.choices.push_back({c.tokens, c.logprobs, c.end, c.timings, c.cut});
    if (planted("snapshot_skips_tokens"))
      into.choices.assign(r->choices.size(), {});
  }
  return all;
}

} // namespace di::engine
