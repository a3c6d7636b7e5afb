// SPDX-License-Identifier: Apache-2.0
// The client's side of a session: tokens become events, events become bytes, as fast as the client
// takes them.
#include "launch/serve/session_state.hpp"
#include "messaging/base/trace.hpp"
#include "messaging/http/sse.hpp"

#include <algorithm>
#include <utility>

namespace di::serve {
namespace {

using engine::answer_events;
using engine::api;

/// [bytes] of events that are collected before the client gets them.
constexpr std::size_t batch_bytes = 16u << 10;

} // namespace

session::session(service& home, call_ptr from)
    : home_{home},
      call_{std::move(from)},
      settings_{home.settings()},
      state_{std::make_unique<state>()} {
  state_->last_sent = home_.world().now();
}

session::~session() = default;

void session::make_streams(std::size_t p,
                           const std::shared_ptr<const engine::answer_recipe>& recipe) {
  auto& part = state_->parts[p];
  part.recipe = recipe;
  for (std::size_t i = 0; i < part.choices; ++i) {
    const auto at = part.first_choice + i;
    auto& c = state_->choices[at];
    c.stream.emplace(recipe, home_.words().get(), static_cast<std::uint32_t>(at));
    if (state_->what.stream && (!recipe->parsing.stop.empty() || recipe->parsing.one_call))
      c.ahead.emplace(recipe, home_.words().get(), static_cast<std::uint32_t>(at));
    if (state_->resumed && at < state_->resumed->seen.size())
      c.stream->skip(state_->resumed->seen[at]);
  }
}

// --- tokens -----------------------------------------------------------------------------------

void session::take(std::size_t p, proto::tokens_released m) {
  auto& s = *state_;
  auto& part = s.parts[p];
  if (s.now == state::phase::done || m.choice >= part.choices)
    return;
  const auto at = part.first_choice + m.choice;
  auto& c = s.choices[at];
  if (c.last_came)
    return;
  if (part.cached_tokens == 0 && m.cached_tokens > 0) {
    part.cached_tokens = m.cached_tokens;
    call_->record.cached_tokens += m.cached_tokens;
  }
  if (call_->record.first_token_us == 0 && !m.tokens.empty())
    call_->record.first_token_us =
        static_cast<std::uint64_t>((home_.world().now() - call_->began).count() / 1'000);
  call_->record.output_tokens += m.tokens.size();
  if (s.meter)
    s.meter->tokens(static_cast<std::uint32_t>(at), m.tokens.size(), m.cached_tokens);
  if (m.end.reason != proto::finish_reason::none) {
    c.last_came = true;
    c.timings = m.timings;
    if (s.meter)
      s.meter->choice_ended(m.timings);
  }
  s.queue.push_back({at, std::move(m.tokens), std::move(m.logprobs), 0, m.end});
  look_ahead(c);
  pump();
}

// A stop string or an only call must end the choice on its rank even if nobody reads what came
// before it.
void session::look_ahead(choice_state& c) {
  if (!c.ahead || c.told_end)
    return;
  const auto& piece = state_->queue.back();
  for (std::size_t i = 0; i < piece.tokens.size() && !c.told_end; ++i) {
    static_cast<void>(c.ahead->push({&piece.tokens[i], 1}));
    if (const auto end = c.ahead->ended_by_text())
      end_here(c, end->tokens, end->stop_index);
  }
}

void session::end_here(choice_state& c, std::uint32_t tokens, std::int32_t stop_index) {
  if (c.told_end || c.last_came)
    return;
  c.told_end = true;
  home_.desk().end_choice(state_->parts[c.part].request, c.index, tokens, stop_index);
}

void session::give(choice_state& c, token_id id, const proto::position_logprobs* logprob) {
  const auto& recipe = *state_->parts[c.part].recipe;
  const bool shown = recipe.top_logprobs >= 0 && logprob != nullptr;
  ++c.taken;
  if (logprob != nullptr)
    c.logprob_sum += logprob->logprob;
  send(&c, c.stream->push({&id, 1}, shown ? std::span{logprob, 1}
                                          : std::span<const proto::position_logprobs>{}));
  if (const auto end = c.stream->ended_by_text()) {
    end_here(c, end->tokens, end->stop_index);
    c.end = {proto::finish_reason::stop, end->stop_index, end->tokens, ec::ok, {}};
    finish_choice(c);
  }
}

// One token, or the end, of the piece in front. True: the piece is used up.
bool session::advance(choice_state& c) {
  auto& s = *state_;
  auto& piece = s.queue.front();
  auto& part = s.parts[c.part];
  if (!c.readied) {
    c.readied = true;
    send(&c, c.stream->ready(part.prompt_tokens, part.cached_tokens));
  }
  if (c.finished)
    return true;
  if (piece.at < piece.tokens.size()) {
    const auto i = piece.at++;
    if (c.held) {
      give(c, *std::exchange(c.held, std::nullopt), c.held_logprob ? &*c.held_logprob : nullptr);
      if (c.finished)
        return true;
    }
    const auto id = piece.tokens[i];
    const auto* logprob = i < piece.logprobs.size() ? &piece.logprobs[i] : nullptr;
    if (may_end(part.sampling, settings_->model, id)) {
      c.held = id;
      c.held_logprob = logprob != nullptr ? std::optional{*logprob} : std::nullopt;
    } else {
      give(c, id, logprob);
    }
    return c.finished
           || (piece.at == piece.tokens.size() && piece.end.reason == proto::finish_reason::none);
  }
  if (piece.end.reason != proto::finish_reason::none)
    end_choice(c, piece.end);
  return true;
}

void session::end_choice(choice_state& c, const proto::choice_end& end) {
  c.end = end;
  if (c.held) {
    const auto id = *std::exchange(c.held, std::nullopt);
    if (end.reason == proto::finish_reason::stop && end.stop_index < 0) {
      send(&c, c.stream->push_text({}, 1)); // it is paid for, and shows nothing
    } else {
      give(c, id, c.held_logprob ? &*c.held_logprob : nullptr);
      if (c.finished)
        return;
    }
  }
  if (end.reason == proto::finish_reason::error)
    return fail(from_cluster(end.code, end.what, 0));
  if (end.reason == proto::finish_reason::cancelled && !call_->client->is_gone())
    return fail(make_error(499, "cancelled", "the request was cancelled: " + end.what));
  send(&c, c.stream->finish(engine::to_answer_end(end.reason)));
  finish_choice(c);
}

void session::finish_choice(choice_state& c) {
  c.finished = true;
  call_->record.ends.push_back(c.end.reason);
  if (c.index == 0 && c.part == 0) {
    call_->record.queue_us = c.timings.queued_us;
    call_->record.prefill_us = c.timings.prefill_us;
    call_->record.decode_us = c.timings.decode_us;
  }
}

void session::pump() {
  auto& s = *state_;
  const auto keep = shared_from_this();
  while (s.now != state::phase::done && s.writable && !s.queue.empty()) {
    auto& c = s.choices[s.queue.front().choice];
    if (advance(c) && s.now != state::phase::done)
      s.queue.pop_front();
    if (s.out.size() >= batch_bytes)
      flush();
  }
  if (s.now == state::phase::done)
    return;
  flush();
  const bool all = std::all_of(s.choices.begin(), s.choices.end(),
                               [](const choice_state& c) { return c.finished; });
  if (all && s.writable)
    complete();
}

// --- events -----------------------------------------------------------------------------------

void session::send(choice_state* from, answer_events events) {
  auto& s = *state_;
  if (!s.what.stream)
    return;
  for (std::size_t i = 0; i < events.size(); ++i) {
    auto& e = events[i];
    if (s.what.shape_event)
      s.what.shape_event(e);
    std::string id;
    if (s.parts.size() == 1) {
      event_id at{s.id, {}, s.tail};
      for (auto& c : s.choices) {
        const auto made = c.stream ? c.stream->events() : 0;
        at.seen.push_back(&c == from ? made - (events.size() - 1 - i) : made);
      }
      id = at.text();
    }
    http::append_sse_event(s.out, engine::event_data(e), e.name, id);
  }
}

bool session::begin_stream() {
  auto& s = *state_;
  if (s.now != state::phase::starting)
    return s.now == state::phase::streaming;
  auto h = home_.headers(*call_);
  for (const auto& [name, value] : http::sse_headers())
    h.set(name, value);
  h.set("x-di-seed", std::to_string(s.parts.empty() ? 0 : s.parts[0].sampling.seed));
  call_->record.status = 200;
  if (!call_->client->begin_stream(200, std::move(h)))
    return false;
  s.now = state::phase::streaming;
  if (home_.metrics() != nullptr) {
    home_.metrics()->streams(1);
    s.streams_counted = true;
  }
  return true;
}

void session::flush() {
  auto& s = *state_;
  if (s.out.empty() || !begin_stream())
    return;
  s.last_sent = home_.world().now();
  const auto what = call_->client->write(s.out);
  if (what == http::written::refused) {
    s.writable = false;
    return; // it stays in s.out
  }
  if (home_.metrics() != nullptr)
    home_.metrics()->http_bytes(0, s.out.size());
  s.out.clear();
  if (what == http::written::full) {
    s.writable = false;
    if (home_.metrics() != nullptr)
      home_.metrics()->slow_client();
  }
}

void session::drained() {
  auto& s = *state_;
  if (s.now == state::phase::done)
    return;
  s.writable = true;
  pump();
}

void session::tick() {
  call_->client->post([self = shared_from_this()] {
    auto& s = *self->state_;
    const auto silence = self->home_.world().now() - s.last_sent;
    if (s.now == state::phase::done || !s.what.stream || !s.writable || s.parts.empty()
        || silence < std::chrono::milliseconds{self->settings_->timeouts.keep_alive_ms})
      return;
    if (self->begin_stream()) {
      static_cast<void>(self->call_->client->write(http::sse_comment()));
      s.last_sent = self->home_.world().now();
    }
  });
}

// --- the end ----------------------------------------------------------------------------------

void session::complete() {
  auto& s = *state_;
  if (!s.what.stream) {
    s.now = state::phase::done;
    http::header_list extra;
    extra.add("x-di-seed", std::to_string(s.parts[0].sampling.seed));
    home_.answer(*call_, 200, whole_body(), std::move(extra));
    return done();
  }
  if (!std::exchange(s.last_made, true))
    make_last_events();
  if (begin_stream()) {
    flush();
    if (!s.out.empty())
      return; // refused: the end follows in drained()
    call_->client->end();
  }
  s.now = state::phase::done;
  home_.finished(*call_);
  done();
}

void session::fail(const api_error& e) {
  auto& s = *state_;
  if (s.now == state::phase::done)
    return;
  const auto keep = shared_from_this();
  withdraw(false);
  if (s.now == state::phase::starting && s.out.empty()) {
    s.now = state::phase::done;
    home_.refuse(*call_, e);
    return done();
  }
  call_->record.code = e.code;
  for (auto& c : s.choices) {
    if (c.finished || !c.stream)
      continue;
    // A response that was cancelled is shown as GET shows it.
    const bool cancelled = e.status == 499 && s.parts[c.part].recipe->protocol == api::responses;
    send(&c, cancelled ? c.stream->finish(engine::answer_end::cancelled)
                       : c.stream->fail({e.type, e.code, e.message}));
    break;
  }
  if (begin_stream()) {
    if (call_->client->write(s.out) == http::written::refused)
      call_->client->abort(); // a cut stream, not one that seems to be whole
    else
      call_->client->end();
  }
  s.now = state::phase::done;
  home_.finished(*call_);
  done();
}

// A client's own trace gets a track, with the request from its arrival to its end.
static void show_in_trace(const request_record& r, instant began, instant ended) {
  if (!trace::enabled() || r.trace.empty())
    return;
  const trace::on_track here{trace::track("trace " + r.trace)};
  trace::record(trace::kind::finish, began.ns, ended.ns,
                {.rows = static_cast<std::uint32_t>(r.output_tokens)}, r.request);
}

void session::done() {
  auto& s = *state_;
  s.now = state::phase::done;
  show_in_trace(call_->record, call_->began, home_.world().now());
  if (s.streams_counted)
    home_.metrics()->streams(-1);
  if (s.meter) {
    s.meter->ended(how_it_ended());
    s.meter.reset();
  }
  s.place.spend(call_->record.prompt_tokens + call_->record.output_tokens, home_.world().now());
  if (s.park_ms > 0)
    home_.parked().park(s.id.request, s.what.dedup, std::move(s.place),
                        home_.world().now() + std::chrono::milliseconds{s.park_ms});
  s.place = {};
  s.queue.clear();
  for (auto& p : s.parts)
    p.ear.reset(); // it holds this session
  home_.release(this);
}

void session::abandon() {
  auto& s = *state_;
  s.now = state::phase::done;
  s.meter.reset();
  s.place = {};
  s.queue.clear();
  for (auto& p : s.parts)
    p.ear.reset();
}

served_end session::how_it_ended() const {
  const auto& r = call_->record;
  if (r.aborted)
    return served_end::abort;
  if (!r.code.empty())
    return served_end::error;
  return std::find(r.ends.begin(), r.ends.end(), proto::finish_reason::length) != r.ends.end()
             ? served_end::length
             : served_end::stop;
}

} // namespace di::serve
