// SPDX-License-Identifier: Apache-2.0
// Attempts of requests: who owns one, and what ends it.
#include "engine/core/journal_request.hpp"
#include "messaging/base/planted.hpp"
#include "messaging/base/probe.hpp"

namespace di::engine {

/// Somebody has the attempt. @return false: that life is no more, and another attempt was opened
bool journal_core::place(request& r, const life_of_rank& who, instant now, outbox& out) {
  r.placed = who;
  record_attempt(r, now);
  if (!has_left(who) || planted("no_attempt_fence"))
    return true;
  reached("journal.owner_has_left");
  next_attempt(r, now, out);
  return false;
}

/// The owner is gone: from now on its tokens are refused, and another rank goes on.
void journal_core::next_attempt(request& r, instant now, outbox& out) {
  reached("journal.opens_next_attempt");
  ++r.attempt;
  r.placed.reset();
  r.admitted = false;
  for (choice& c : r.choices)
    c.gap_since.reset();
  r.wait = options_.resend_after;
  out.count("di_journal_attempts_opened_total");
  admit(r, now, out);
}

result<void> journal_core::on(const proto::view_committed& m, instant now, outbox& out) {
  if (m.view <= view_)
    return {};
  std::set<life_of_rank> members;
  for (const proto::view_member& member : m.members)
    members.insert({member.rank, member.life});
  if (std::exchange(view_, m.view) == epoch{}) // lives that an earlier life of control knew
    for (const auto& [id, r] : requests_)
      if (r->placed)
        members_.insert(*r->placed);
  for (const life_of_rank& who : members_)
    if (!members.contains(who) && left_.insert(who).second)
      left_order_.push_back(who);
  for (; left_order_.size() > options_.left_kept; left_order_.pop_front())
    left_.erase(left_order_.front());
  members_ = std::move(members);
  for (auto& [id, r] : requests_) {
    if (r->closed)
      continue;
    if (r->placed && !members_.contains(*r->placed) && !planted("victims_forgotten")) {
      next_attempt(*r, now, out);
    } else if (!r->placed) { // what SCHEDULER said of it may be lost: ask again
      r->admitted = false;
      admit(*r, now, out);
    }
  }
  return {};
}

/// Whether the owner's tokens can never be added to what is recorded, so that another attempt is
/// opened. Either two lives compute one attempt, as control died between giving it to one and
/// writing that down, and each found another bounded prefix; or the owner will not send what is
/// missing, as an earlier life of this accepted that and lost it (journal.on_error: memory).
bool journal_core::goes_astray(request& r, const proto::tokens_committed& m, instant now,
                               outbox& out) {
  const bool other_prefix = r.spec.prefix == proto::prefix_mode::bounded && r.spec.prefix_recorded
                            && !m.tokens.empty() && m.prefix_tokens != r.spec.prefix_tokens
                            && r.prefix_of != life_of_rank{m.rank, m.life};
  choice& c = r.choices[m.choice];
  const bool gap = m.first_index > c.next();
  if (!gap)
    c.gap_since.reset();
  else if (!c.gap_since)
    c.gap_since = now; // mail was lost; it is repeated
  const bool lost = gap && now - *c.gap_since >= options_.gap_after;
  if (!other_prefix && !lost)
    return false;
  out.count("di_journal_attempts_astray_total");
  next_attempt(r, now, out);
  return true;
}

/// Its rank will do nothing more for the attempt. If the request is open here, an earlier life of
/// this had accepted the end and lost it (journal.on_error: memory).
result<void> journal_core::on(const proto::request_settled& m, instant now, outbox& out) {
  request* r = find(m.request);
  if (!r || r->closed || r->attempt != m.attempt)
    return {};
  out.count("di_journal_attempts_astray_total");
  next_attempt(*r, now, out);
  return {};
}

} // namespace di::engine
