// SPDX-License-Identifier: Apache-2.0
// Sequence states as a ledger.
#include "actors/rank_kv.hpp"

#include "messaging/base/log.hpp"

#include <algorithm>
#include <limits>

namespace di::actors {

namespace {

engine::prefill_request request_of(const proto::request_spec& spec) {
  return {static_cast<std::int64_t>(spec.prompt.size()), spec.prefill,
          static_cast<std::int64_t>(spec.keep_rows), spec.prefix};
}

} // namespace

/// A hit that is named must be one that start() can stand behind: it makes the pages again if they
/// are gone, but it cannot begin elsewhere and leave the same bits.
result<void> rank_kv::admits(const proto::request_spec& spec) const {
  if (!spec.prefix_recorded || spec.prefix != proto::prefix_mode::bounded)
    return {};
  if (auto fits = cache_.recordable(request_of(spec), spec.prefix_tokens); !fits)
    return fail(fits.error().code, "request {}: {}", spec.request.v, fits.error().what);
  return {};
}

std::uint32_t rank_kv::open(engine::sequence_key key, const engine::kv_opening& what) {
  const auto made = states_.try_emplace(key);
  DI_CHECK(made.second);
  entry& e = made.first->second;
  e.state = std::make_unique<engine::sequence_state>(layout_, pool_);
  const proto::request_spec& spec = *what.spec;
  engine::prefill_request request = request_of(spec);
  std::string salt = spec.prefix_salt;
  std::optional<std::int64_t> recorded;
  if (spec.prefix_recorded)
    recorded = spec.prefix_tokens;
  transfer_.open(key, what);
  const resumed_kv* resumed = transfer_.resumed(spec.request, what.choice);
  if (resumed != nullptr)
    request = kv_transfer::known_as(spec, salt);
  auto session = cache_.start(*e.state, what.tokens, request, salt, recorded,
                              resumed == nullptr ? nullptr : resumed->windows.get());
  if (!session) {
    // Behind an exact hit a cold run has the same bits; behind a bounded one it never would.
    log::error("prefix_refused",
               {{"request", spec.request.v}, {"reason", session.error().render()}});
    DI_CHECK(request.prefix == proto::prefix_mode::exact);
    e.state = std::make_unique<engine::sequence_state>(layout_, pool_);
    auto cold = request;
    cold.prefix = proto::prefix_mode::off;
    session = cache_.start(*e.state, what.tokens, cold);
    DI_CHECK(session.ok());
  }
  e.session = std::move(*session);
  transfer_.forget(spec.request, what.choice);
  return static_cast<std::uint32_t>(e.state->length());
}

bool rank_kv::reserve(engine::sequence_key key, std::uint32_t tokens) {
  engine::sequence_state& state = *states_.at(key).state;
  const std::int64_t wanted = state.pages_wanted(tokens);
  if (wanted > pool_.free_pages() && !cache_.index().make_room(static_cast<std::uint32_t>(wanted)))
    return false;
  return state.reserve(tokens).ok();
}

void rank_kv::truncate(engine::sequence_key key, std::uint32_t tokens) {
  const auto cut = states_.at(key).state->truncate(tokens);
  DI_CHECK(cut.ok());
}

void rank_kv::close(engine::sequence_key key) {
  DI_CHECK_EQ(states_.erase(key), std::size_t{1});
  transfer_.close(key);
}

std::uint32_t rank_kv::advanced(engine::sequence_key key, std::uint32_t settled, std::uint32_t) {
  entry& e = states_.at(key);
  const auto done = cache_.advanced(e.session, *e.state, settled);
  DI_CHECK(done.ok());
  transfer_.advanced(key, e.session, *e.state,
                     std::min(settled, static_cast<std::uint32_t>(e.state->length())));
  return static_cast<std::uint32_t>(e.state->length());
}

void rank_kv::ending(engine::sequence_key key, std::uint32_t settled, bool computing) {
  entry& e = states_.at(key);
  cache_.ending(e.session, *e.state, settled, computing);
}

std::uint32_t rank_kv::chunk_end(engine::sequence_key key, std::uint32_t position) const {
  const std::int64_t end = cache_.chunk_end(states_.at(key).session, position);
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(end, transfer_.chunk_end(key, position)));
}

bool rank_kv::fork(engine::sequence_key from, engine::sequence_key to, std::uint32_t tokens) {
  const entry& of = states_.at(from);
  auto copy = of.state->fork();
  if (copy == nullptr || !copy->truncate(tokens))
    return false;
  entry& e = states_.at(to);
  e.state = std::move(copy);
  e.session = of.session;
  transfer_.fork(from, to, tokens);
  return true;
}

engine::kv_prefix rank_kv::prefix(engine::sequence_key key) const {
  const engine::prefix_session& session = states_.at(key).session;
  return {static_cast<std::uint32_t>(session.hit), static_cast<std::uint32_t>(session.bounded)};
}

std::uint64_t rank_kv::tokens_held(engine::sequence_key key) const {
  if (layout_.sources.empty()) // such a model keeps windows only
    return std::numeric_limits<std::uint32_t>::max();
  return states_.at(key).state->pages().size() * page_tokens64();
}

std::uint64_t rank_kv::tokens_free() const {
  return (pool_.free_pages() + cache_.index().evictable_pages()) * page_tokens64();
}

void rank_kv::check() const {
  std::vector<page_id> held;
  for (const auto& [key, e] : states_)
    held.insert(held.end(), e.state->pages().begin(), e.state->pages().end());
  const auto whole = cache_.index().check(held);
  DI_CHECK(whole.ok());
}

} // namespace di::actors
