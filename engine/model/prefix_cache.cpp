// SPDX-License-Identifier: Apache-2.0
// Starts sequences behind hits; publishes pages and snapshots.
#include "engine/model/prefix_cache.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace di::engine {

prefix_cache::prefix_cache(page_pool& pool, const prefill_rules& rules,
                           prefix_index_options options)
    : rules_{rules}, index_{pool, std::move(options)} {
}

result<prefix_session> prefix_cache::start(sequence_state& sequence,
                                           std::span<const token_id> tokens,
                                           const prefill_request& request, std::string_view salt,
                                           std::optional<std::int64_t> recorded,
                                           const window_snapshot* windows) {
  if (request.prompt_tokens < 1 || static_cast<std::int64_t>(tokens.size()) < request.prompt_tokens)
    return fail(ec::bad_argument, "a prompt of {} tokens is not in {} tokens",
                request.prompt_tokens, tokens.size());
  prefix_session session;
  session.request = request;
  session.salt = salt;
  const std::int64_t decoder = decoder_floor(rules_, request);
  if (request.prefix == proto::prefix_mode::off || sequence.layout().sources.empty()) {
    DI_TRY_VOID(sequence.set_floors({0, decoder, 0, false}));
    return session;
  }
  if (request.prefix == proto::prefix_mode::bounded) {
    DI_TRY(session.bounded, bounded_hit(tokens, session, recorded));
    if (session.bounded == 0) { // what a cold run computes; its pages serve everybody
      DI_TRY_VOID(sequence.set_floors({0, decoder, 0, false}));
      session.boundary = snapshot_boundary(rules_, request);
      return session;
    }
  }
  const auto known = static_cast<std::int64_t>(tokens.size());
  const prefix_match match =
      index_.match(tokens, key_of(session), known - 1, snapshot_kind_of(request),
                   snapshot_limit(rules_, request, known));
  if (match.hit >= session.bounded) {
    session.boundary = snapshot_boundary(rules_, request);
    DI_TRY_VOID(begin(session, sequence, tokens, match, decoder, windows));
    return session;
  }
  // The exact pages below H are not all there any more: make them first, without the layers behind.
  session.rebuilding = true;
  const prefix_match exact =
      index_.match(tokens.first(static_cast<std::size_t>(session.bounded)), key_of(session),
                   session.bounded, snapshot_kind::encoder, session.bounded);
  DI_TRY_VOID(begin(session, sequence, tokens, exact, session.bounded, nullptr));
  DI_TRY_VOID(finish_rebuild(session, sequence));
  return session;
}

/// H of a request: recorded, or what is known of its prompt now.
result<std::int64_t> prefix_cache::bounded_hit(std::span<const token_id> tokens,
                                               const prefix_session& session,
                                               std::optional<std::int64_t> recorded) const {
  if (!recorded) {
    const std::int64_t hit =
        index_.known(tokens, {session.salt, 0}, hit_limit(rules_, session.request));
    return hit > rules_.window ? hit : 0;
  }
  DI_TRY_VOID(recordable(session.request, *recorded));
  return *recorded;
}

result<void> prefix_cache::recordable(const prefill_request& request, std::int64_t recorded) const {
  const std::int64_t limit = hit_limit(rules_, request);
  if (recorded != 0
      && (recorded > limit || recorded <= rules_.window || recorded % rules_.page_tokens != 0))
    return fail(
        ec::bad_argument,
        "a bounded hit of {} tokens: expected 0 or whole pages in {}..{} for a prompt of {}",
        recorded, rules_.window + 1, limit, request.prompt_tokens);
  return {};
}

result<void> prefix_cache::begin(prefix_session& session, sequence_state& sequence,
                                 std::span<const token_id> tokens, const prefix_match& match,
                                 std::int64_t decoder, const window_snapshot* windows) {
  const std::int64_t bounded = session.rebuilding ? 0 : session.bounded;
  const std::int64_t snapshot = match.snapshot == nullptr ? 0 : match.snapshot->length;
  prefill_start start = plan_start(rules_, decoder, match.hit, bounded, snapshot);
  const bool resumes = windows != nullptr && windows->length > std::max(bounded, start.first_row)
                       && windows->length <= match.hit;
  if (resumes)
    start = plan_resume(rules_, decoder, match.hit, bounded, windows->length);
  session.hit = match.hit;
  session.first_row = start.first_row;
  if (snapshot == session.boundary)
    session.boundary = 0; // there is one already
  if (snapshot != match.hit && match.hit > bounded && !session.rebuilding)
    session.branch = match.hit;
  if (match.hit == 0)
    return sequence.set_floors(start.floors);
  return sequence.adopt(tokens.first(static_cast<std::size_t>(match.hit)), match.pages,
                        start.floors, start.first_row,
                        !start.use_snapshot ? nullptr
                        : resumes           ? windows
                                            : match.snapshot.get());
}

std::int64_t prefix_cache::chunk_end(const prefix_session& session, std::int64_t position) const {
  if (session.rebuilding)
    return session.bounded;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t due : {session.branch, session.boundary})
    if (position < due && index_.keeps_snapshots())
      end = std::min(end, due);
  return end;
}

result<void> prefix_cache::finish_rebuild(prefix_session& session, sequence_state& sequence) {
  if (!session.rebuilding || sequence.length() < session.bounded)
    return {};
  session.rebuilding = false;
  session.boundary = snapshot_boundary(rules_, session.request);
  const prefill_start start = plan_start(rules_, decoder_floor(rules_, session.request),
                                         session.bounded, session.bounded, 0);
  return sequence.rebase(start.floors);
}

result<void> prefix_cache::advanced(prefix_session& session, sequence_state& sequence,
                                    std::int64_t settled) {
  if (!caches(session, sequence))
    return {};
  publish(session, sequence, settled);
  take_snapshot(session, sequence, settled);
  return finish_rebuild(session, sequence);
}

void prefix_cache::ending(prefix_session& session, const sequence_state& sequence,
                          std::int64_t settled, bool computing) {
  if (!caches(session, sequence))
    return;
  publish(session, sequence, settled);
  if (!computing)
    take_snapshot(session, sequence, settled);
}

bool prefix_cache::caches(const prefix_session& session, const sequence_state& sequence) const {
  return session.request.prefix != proto::prefix_mode::off && !sequence.layout().sources.empty();
}

void prefix_cache::publish(prefix_session& session, const sequence_state& sequence,
                           std::int64_t settled) {
  DI_CHECK(settled <= sequence.length());
  index_.publish(session.cursor, sequence.tokens().first(static_cast<std::size_t>(settled)),
                 sequence.pages(), key_of(session));
}

/// Where two prompts part, at the prompt's last page boundary that later prompts can hit, and at
/// the last one of the output so far, for the next turn of a conversation.
void prefix_cache::take_snapshot(prefix_session& session, const sequence_state& sequence,
                                 std::int64_t settled) {
  if (!index_.keeps_snapshots() || session.rebuilding)
    return;
  const snapshot_kind kind = snapshot_kind_of(session.request);
  const auto keep = [&](std::int64_t at) {
    const auto tokens = sequence.tokens().first(static_cast<std::size_t>(at));
    if (!index_.wants_snapshot(tokens, key_of(session), kind, session.cursor))
      return false;
    auto windows = sequence.snapshot(at, kind);
    if (!windows)
      return false; // the rings have moved on
    index_.keep_snapshot(tokens, key_of(session), kind,
                         std::make_shared<const window_snapshot>(std::move(*windows)),
                         session.cursor);
    return true;
  };
  for (std::int64_t* due : {&session.branch, &session.boundary})
    if (*due > 0 && settled >= *due) {
      keep(*due);
      *due = 0;
    }
  const std::int64_t last = settled / rules_.page_tokens * rules_.page_tokens;
  if (last <= std::max(session.request.prompt_tokens, session.decode_snapshot) || !keep(last))
    return;
  if (session.decode_snapshot > 0)
    index_.forget_snapshot(
        sequence.tokens().first(static_cast<std::size_t>(session.decode_snapshot)), key_of(session),
        kind);
  session.decode_snapshot = last;
}

} // namespace di::engine
