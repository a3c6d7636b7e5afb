// SPDX-License-Identifier: Apache-2.0
// RANK's drafts: who is drafted for, which drafts are verified, what was learned of it. Nothing
// here changes a token: drafts are guesses that draw() checks.
#include "engine/core/rank_sequence.hpp"
#include "engine/core/speculation.hpp"

#include <algorithm>

namespace di::engine {

speculation_choice rank_core::speculation_of(const proto::request_spec& spec) const {
  if (!spec.speculate || options_.draft_block == 0)
    return {};
  if (spec.drafts == 0)
    return options_.speculation;
  return speculation_from_code(spec.drafts).value(); // admissible() has looked
}

bool rank_core::wants_taps() const {
  return std::any_of(running_.begin(), running_.end(), [this](sequence_key key) {
    return sequences_.at(key)->speculation.mode != speculation_mode::off;
  });
}

bool rank_core::wants_taps(sequence_key key) const {
  const auto at = sequences_.find(key);
  return at != sequences_.end() && at->second->state == phase::running
         && at->second->speculation.mode != speculation_mode::off;
}

/// Drafts that a sequence could have verified in its next row's step: no token past the limits.
std::uint32_t rank_core::drafts_room(const sequence& s) const {
  const std::uint32_t left = s.owner->spec.sampling.max_tokens - s.drawn_output();
  const std::uint32_t open = options_.unacknowledged_max - (s.drawn_output() - s.acknowledged);
  std::uint32_t most = options_.draft_block;
  if (s.speculation.mode == speculation_mode::fixed)
    most = std::min(most, s.speculation.drafts);
  return s.speculation.mode == speculation_mode::off ? 0
                                                     : drafts_wanted(most, std::min(left, open));
}

std::span<const draft_wish> rank_core::draft_wishes(instant now) {
  DI_CHECK(!out_);
  keep();
  end_drafts();
  if (options_.draft_block == 0 || !wants_taps())
    return wishes_;
  if (!plan_ready_)
    plan(now);
  std::uint32_t varlen = 0, fixed = 0, others = 0;
  for (const item& i : items_) {
    const sequence* s = live(i);
    if (!s)
      continue;
    // A prompt of one token has no row yet that draft layers could look at.
    const bool drafts = !i.prefill && s->computed > 0 && s->remaining() == 1 && drafts_room(*s) > 0;
    if (drafts)
      wishes_.push_back({s->key, s->token(s->computed)});
    (!drafts                                          ? others
     : s->speculation.mode == speculation_mode::fixed ? fixed
                                                      : varlen) += drafts ? 1 : i.rows;
  }
  if (varlen > 0 && !tuning_.planner.wants_drafts(varlen, fixed, others))
    std::erase_if(wishes_, [this](const draft_wish& w) {
      return sequences_.at(w.sequence)->speculation.mode == speculation_mode::varlen;
    });
  for (const draft_wish& w : wishes_)
    sequences_.at(w.sequence)->drafting = true;
  return wishes_;
}

void rank_core::end_drafts() {
  for (const draft_wish& w : wishes_)
    if (const auto at = sequences_.find(w.sequence); at != sequences_.end())
      at->second->drafting = false;
  wishes_.clear();
  close_ended();
}

result<token_id> rank_core::draw_draft(sequence_key key, std::span<const float> logits,
                                       std::span<const token_id> before) {
  const auto at = sequences_.find(key);
  if (at == sequences_.end() || at->second->state == phase::ended)
    return token_id{0}; // ended meanwhile: nobody will look at it
  const sequence& s = *at->second;
  pending_.assign(s.fresh.begin(), s.fresh.end());
  pending_.insert(pending_.end(), before.begin(), before.end());
  return s.sampler->draw_draft(logits, s.tokens, pending_);
}

void rank_core::offer_drafts(sequence_key key, std::span<const token_id> drafts,
                             std::span<const float> confidences) {
  const auto at = sequences_.find(key);
  if (at == sequences_.end() || at->second->state != phase::running)
    return;
  sequence& s = *at->second;
  s.drafts.assign(drafts.begin(), drafts.end());
  s.draft_logits.assign(confidences.begin(), confidences.end());
  s.drafted_at = s.known();
}

/// How many of the offered drafts the step that is launched verifies.
void rank_core::choose_drafts() {
  offers_.clear();
  survivals_.clear();
  std::uint32_t others = 0, drafted = 0;
  for (const item& i : items_) {
    const sequence* s = live(i);
    if (!s)
      continue;
    if (i.prefill) {
      others += std::min(i.rows, s->remaining());
      continue;
    }
    // Drafts stand behind one token only: others than those of now are void.
    const bool fits = s->drafted_at == s->known() && s->remaining() == 1;
    const auto offered = static_cast<std::uint32_t>(fits ? s->drafts.size() : 0);
    const std::uint32_t limit = std::min(offered, drafts_room(*s));
    survivals_.emplace_back(s->draft_logits.size() >= offered ? limit : 0);
    if (!survivals_.back().empty())
      confidences_of(*s).survivals(std::span{s->draft_logits}.first(limit), survivals_.back());
    offers_.push_back({limit > 0 ? s->speculation : speculation_choice{},
                       limit,
                       static_cast<double>(s->computed),
                       {}});
    drafted += offered > 0;
  }
  if (drafted == 0)
    return;
  for (std::size_t o = 0; o < offers_.size(); ++o)
    offers_[o].survivals = survivals_[o];
  tuning_.planner.set_context_cost(tuning_.cost.c_ms());
  const verify_plan& chosen = tuning_.planner.choose(offers_, others, drafted);
  std::uint32_t spare = options_.step_rows;
  for (const item& i : items_)
    spare -= live(i) ? std::min(i.rows, spare) : 0;
  std::size_t o = 0;
  for (item& i : items_) {
    if (i.prefill || !live(i))
      continue;
    i.drafts = std::min({chosen.lengths[o], offers_[o].limit, spare});
    spare -= i.drafts;
    ++o;
  }
}

calibration& rank_core::confidences_of(const sequence& s) {
  return tuning_.confidences[temperature_bucket(s.owner->spec.sampling.temperature)];
}

void rank_core::learn_drafts(sequence& s, std::uint32_t verified, std::uint32_t accepted) {
  for (std::uint32_t k = 0; k < verified; ++k)
    ++tuning_.verified[k];
  for (std::uint32_t k = 0; k < accepted; ++k)
    ++tuning_.accepted[k];
  if (s.draft_logits.size() >= verified)
    confidences_of(s).observe(std::span{s.draft_logits}.first(verified), accepted);
}

void rank_core::observe_step(double ms) {
  step_shape shape;
  for (const planned_segment& s : launched_.segments)
    shape.add(static_cast<double>(s.tokens.size()), s.first_position);
  tuning_.cost.observe(shape, ms);
  tuning_.planner.observe_step(launched_.rows, ms, tuning_.cost.c_ms() * shape.work);
}

void rank_core::observe_draft_pass(std::uint32_t sequences, double ms) {
  tuning_.planner.observe_draft(sequences, ms);
}

} // namespace di::engine
