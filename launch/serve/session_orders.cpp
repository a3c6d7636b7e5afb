// SPDX-License-Identifier: Apache-2.0
// The cluster's side of a session: what is asked of the desk, and what comes back.
#include "launch/serve/generations.hpp"
#include "launch/serve/session_state.hpp"

#include <fmt/format.h>

#include <utility>

namespace di::serve {

// Called on the actor's thread; everything goes on on the thread of the connection. One that was
// replaced (the part follows another request by now) is not heard any more.
class session::listener final : public actors::stream_listener,
                                public std::enable_shared_from_this<listener> {
public:
  listener(std::shared_ptr<session> home, std::size_t part)
      : home_{std::move(home)}, client_{home_->call_->client}, part_{part} {}

  void opened() override {
    post([](session& s, std::size_t) {
      if (s.state_->meter)
        s.state_->meter->opened();
    });
  }
  void known(request_id request, bool same) override {
    post([request, same](session& s, std::size_t part) { s.known(part, request, same); });
  }
  void tokens(const proto::tokens_released& m) override {
    post([m = m](session& s, std::size_t part) mutable { s.take(part, std::move(m)); });
  }
  void ended(const proto::choice_end& why, std::uint32_t ask_again_ms) override {
    post([why, ask_again_ms](session& s, std::size_t part) { s.ended(part, why, ask_again_ms); });
  }

private:
  template <class Work>
  void post(Work work) {
    client_->post([me = shared_from_this(), work = std::move(work)]() mutable {
      auto& s = *me->home_;
      if (s.state_->now != state::phase::done && s.state_->parts[me->part_].ear == me)
        work(s, me->part_);
    });
  }
  std::shared_ptr<session> home_;
  http::exchange_ptr client_;
  std::size_t part_;
};

// --- starting ---------------------------------------------------------------------------------

void session::start(service& home, call_ptr from, generation what, admission::ticket place) {
  const std::shared_ptr<session> s{new session{home, std::move(from)}};
  s->state_->place = std::move(place);
  home.hold(s);
  s->watch_client();
  if (s->state_->now != state::phase::done)
    s->submit(std::move(what));
}

void session::watch_client() {
  const std::weak_ptr<session> me = weak_from_this();
  call_->client->on_gone([me](http::gone why) {
    if (const auto s = me.lock())
      s->client_gone(why);
  });
  call_->client->on_drained([me] {
    if (const auto s = me.lock())
      s->drained();
  });
}

void session::submit(generation what) {
  auto& s = *state_;
  s.what = std::move(what);
  auto& g = s.what;
  const auto n = g.spec.sampling.n;
  s.choices.resize(g.prompts.size() * n);
  s.parts.resize(g.prompts.size());
  auto& r = call_->record;
  r.stream = g.stream;
  r.choices = static_cast<std::uint32_t>(s.choices.size());
  r.max_tokens = g.spec.sampling.max_tokens;
  for (const auto& p : g.prompts)
    r.prompt_tokens += p.size();
  if (home_.metrics() != nullptr)
    s.meter.emplace(*home_.metrics(),
                    request_meter::shape{r.prompt_tokens, r.max_tokens, r.choices},
                    call_->asked.arrived);
  session_note note{{}, home_.world().random(), g.stream, std::move(g.extra)};
  for (std::size_t i = 0; i < s.parts.size(); ++i) {
    auto& part = s.parts[i];
    part.first_choice = i * n;
    part.choices = n;
    part.prompt_tokens = g.prompts[i].size();
    part.ear = std::make_shared<listener>(shared_from_this(), i);
    for (std::uint32_t c = 0; c < n; ++c) {
      s.choices[part.first_choice + c].part = i;
      s.choices[part.first_choice + c].index = c;
    }
    note.recipe = g.recipe;
    if (i < g.echoes.size())
      note.recipe.echo_text = std::move(g.echoes[i]);
    part.sampling = g.spec.sampling;
    actors::stream_order order;
    order.spec = g.spec;
    order.spec.prompt = std::move(g.prompts[i]);
    order.note = note.to_text();
    if (!g.dedup.empty()) {
      order.dedup = fmt::format("{}#{}", g.dedup, i);
      order.dedup_digest = g.dedup_digest;
    }
    order.keep_ms = g.keep_ms;
    order.detached_ms = g.detached_ms;
    part.request = home_.desk().submit(std::move(order), part.ear);
    if (i == 0) {
      s.id = {g.recipe.protocol, part.request, note.secret};
      r.request = part.request;
      r.public_id = s.id.text();
    }
    note.recipe.id = s.id.text();
    make_streams(i, std::make_shared<const engine::answer_recipe>(std::move(note.recipe)));
  }
  // What was asked is the desk's now; the rest of `what` says how it is answered.
  g.spec = {};
  g.recipe = {};
  g.prompts.clear();
  g.echoes.clear();
}

// --- what comes back --------------------------------------------------------------------------

void session::ended(std::size_t p, const proto::choice_end& why, std::uint32_t ask_again_ms) {
  state_->parts[p].closed = true;
  if (why.code == ec::moved)
    return fail(make_error(409, "taken_over", "another connection continues this answer"));
  fail(from_cluster(why.code == ec::ok ? ec::internal : why.code, why.what, ask_again_ms));
}

// The same Idempotency-Key was here before: its answer is the answer.
void session::known(std::size_t p, request_id request, bool same) {
  auto& part = state_->parts[p];
  part.request = {};
  if (!same)
    return fail(make_error(422, "idempotency_key_reused",
                           "this Idempotency-Key came with another request before"));
  if (home_.metrics() != nullptr)
    home_.metrics()->request_known();
  call_->record.resumed = true;
  home_.desk().get(request, [me = shared_from_this(), p](result<proto::recorded_request> found) {
    me->call_->client->post([me, p, found = std::move(found)]() mutable {
      if (me->state_->now == state::phase::done)
        return;
      if (!found)
        return me->fail(from_cluster(found.error().code, found.error().what, 0));
      auto note = session_note::from_text(found->note);
      if (!note)
        return me->fail(from_cluster(ec::internal, note.error().what, 0));
      me->follow(p, std::move(*note), std::move(*found));
    });
  });
}

// The part becomes this recorded request, whoever began it.
void session::follow(std::size_t p, session_note note, proto::recorded_request record) {
  auto& s = *state_;
  auto& part = s.parts[p];
  part.request = record.request;
  part.prompt_tokens = record.spec.prompt.size();
  part.cached_tokens = record.cached_tokens;
  call_->record.cached_tokens += record.cached_tokens;
  part.sampling = record.spec.sampling;
  if (part.choices != record.choices.size())
    return fail(make_error(500, "the recorded request has another number of choices"));
  if (p == 0) {
    s.id = {note.recipe.protocol, record.request, note.secret};
    call_->record.request = record.request;
    call_->record.public_id = s.id.text();
  }
  note.recipe.id = s.id.text();
  make_streams(p, std::make_shared<const engine::answer_recipe>(std::move(note.recipe)));
  if (record.closed)
    return replay(p, std::move(record));
  attach(p);
}

void session::attach(std::size_t p) {
  auto& part = state_->parts[p];
  part.ear = std::make_shared<listener>(shared_from_this(), p);
  home_.desk().attach(
      part.request, {}, part.ear,
      [me = shared_from_this(), ear = part.ear](result<proto::request_attached> answer) {
        me->call_->client->post([me, ear, answer = std::move(answer)] {
          if (!answer)
            return me->fail(from_cluster(answer.error().code, answer.error().what, 0));
          if (me->state_->now == state::phase::done) // its client left before there was an answer
            me->home_.desk().leave(answer->request, ear);
        });
      });
}

void session::replay(std::size_t p, proto::recorded_request record) {
  auto& part = state_->parts[p];
  part.closed = true;
  const auto keep = shared_from_this();
  for (std::uint32_t i = 0; i < record.choices.size(); ++i) {
    auto& c = record.choices[i];
    proto::tokens_released m;
    m.request = record.request;
    m.choice = i;
    m.tokens = std::move(c.tokens);
    m.logprobs = std::move(c.logprobs);
    m.end = c.end;
    if (m.end.reason == proto::finish_reason::none)
      m.end = {proto::finish_reason::cancelled, -1, 0, ec::cancelled, "it was cancelled"};
    m.timings = c.timings;
    m.cached_tokens = record.cached_tokens;
    take(p, std::move(m));
  }
}

// --- coming back ------------------------------------------------------------------------------

void session::resume(service& home, call_ptr from, resume_point where, admission::ticket place,
                     std::function<void(engine::json&)> shape_answer,
                     std::function<void(engine::answer_event&)> shape_event) {
  const std::shared_ptr<session> s{new session{home, from}};
  auto& state = *s->state_;
  state.place = std::move(place);
  state.what.stream = where.stream;
  state.what.shape_answer = std::move(shape_answer);
  state.what.shape_event = std::move(shape_event);
  state.what.leave_on_disconnect = true;
  state.tail_skip = where.tail;
  state.resumed = where;
  from->record.resumed = true;
  from->record.stream = where.stream;
  home.hold(s);
  s->watch_client();
  look_up(home, std::move(from), where.answer, [s](std::variant<found_request, api_error> found) {
    auto& now = *s->state_;
    if (now.now == state::phase::done)
      return;
    if (const auto* no = std::get_if<api_error>(&found))
      return s->fail(*no);
    auto& [note, record] = std::get<found_request>(found);
    if (s->home_.metrics() != nullptr)
      s->home_.metrics()->stream_resumed();
    now.choices.resize(record.choices.size());
    for (std::uint32_t i = 0; i < now.choices.size(); ++i)
      now.choices[i].index = i;
    now.parts.resize(1);
    now.parts[0].choices = record.choices.size();
    s->call_->record.choices = static_cast<std::uint32_t>(record.choices.size());
    s->call_->record.prompt_tokens = record.spec.prompt.size();
    s->follow(0, std::move(note), std::move(record));
  });
}

std::size_t found_bytes(const proto::recorded_request& record) {
  std::size_t bytes = record.note.size();
  for (const auto& c : record.choices)
    bytes +=
        c.tokens.size() * sizeof(token_id) + c.logprobs.size() * sizeof(proto::position_logprobs);
  return bytes;
}

using found_or_not = std::variant<found_request, api_error>;

// What a client may see of a record; 404 as if there were none if it is not its own.
static found_or_not read_found(const call& from, const public_id& id,
                               result<proto::recorded_request> found) {
  const auto nothing = make_error(404, fmt::format("there is no answer {}", id.text()));
  if (!found)
    return found.error().code == ec::not_found
               ? nothing
               : from_cluster(found.error().code, found.error().what, 0);
  auto note = session_note::from_text(found->note);
  if (!note || note->secret != id.secret || note->recipe.protocol != id.protocol
      || found->spec.tenant != from.who->tenant)
    return nothing;
  return found_request{std::move(*note), std::move(*found)};
}

void look_up(service& home, call_ptr from, const public_id& id,
             std::function<void(found_or_not)> told) {
  home.desk().get(id.request, [&home, from = std::move(from), id, told = std::move(told)](
                                  result<proto::recorded_request> found) mutable {
    auto* const client = from->client.get();
    client->post([&home, from = std::move(from), id, told = std::move(told),
                  found = std::move(found)]() mutable {
      const auto bytes = found ? found->note.size() : 0;
      auto read = [from, id, found = std::move(found)]() mutable {
        return read_found(*from, id, std::move(found));
      };
      make_aside<found_or_not>(home, from, bytes, std::move(read), std::move(told));
    });
  });
}

// --- going ------------------------------------------------------------------------------------

void session::withdraw(bool may_return) {
  for (auto& part : state_->parts) {
    if (part.closed || part.request.v == 0)
      continue;
    part.closed = true;
    if (may_return)
      home_.desk().leave(part.request, part.ear);
    else
      home_.desk().cancel(part.request);
  }
}

void session::client_gone(http::gone why) {
  auto& s = *state_;
  if (s.now == state::phase::done)
    return;
  const auto keep = shared_from_this();
  if (s.what.leave_on_disconnect && !s.parts.empty() && !s.parts[0].closed)
    s.park_ms = settings_->timeouts.resume_window_ms;
  withdraw(s.what.leave_on_disconnect);
  s.now = state::phase::done;
  call_->record.status = 499;
  call_->record.aborted = true;
  call_->record.code = http::to_string(why);
  home_.finished(*call_);
  done();
}

// --- without a client -------------------------------------------------------------------------

namespace {

// Two threads bring what is needed: submit() its number, the actor that it is open.
class detached_listener final : public actors::stream_listener {
public:
  using told_fn = std::function<void(std::variant<public_id, api_error>)>;
  detached_listener(service& home, public_id id, told_fn told)
      : home_{home}, id_{id}, told_{std::move(told)} {}

  void submitted(request_id request) {
    const std::scoped_lock lock{guard_};
    id_.request = request;
    tell_if_whole();
  }
  void opened() override {
    const std::scoped_lock lock{guard_};
    opened_ = true;
    tell_if_whole();
  }
  void known(request_id request, bool same) override {
    if (!same)
      return refuse(make_error(422, "idempotency_key_reused",
                               "this Idempotency-Key came with another request before"));
    home_.desk().get(
        request, [told = take(), protocol = id_.protocol](result<proto::recorded_request> found) {
          if (!found)
            return told(from_cluster(found.error().code, found.error().what, 0));
          const auto note = session_note::from_text(found->note);
          if (!note)
            return told(from_cluster(ec::internal, note.error().what, 0));
          told(public_id{protocol, found->request, note->secret});
        });
  }
  void tokens(const proto::tokens_released&) override {}
  void ended(const proto::choice_end& why, std::uint32_t ask_again_ms) override {
    refuse(from_cluster(why.code, why.what, ask_again_ms));
  }

private:
  void tell_if_whole() {
    if (!opened_ || id_.request.v == 0 || !told_)
      return;
    home_.desk().leave(id_.request);
    std::exchange(told_, nullptr)(id_);
  }
  told_fn take() {
    const std::scoped_lock lock{guard_};
    return std::exchange(told_, [](std::variant<public_id, api_error>) {});
  }
  void refuse(const api_error& e) { take()(e); }

  service& home_;
  std::mutex guard_;
  public_id id_;
  bool opened_ = false;
  told_fn told_;
};

} // namespace

void submit_detached(service& home, generation what,
                     std::function<void(std::variant<public_id, api_error>)> told) {
  const public_id id{what.recipe.protocol, {}, home.world().random()};
  actors::stream_order order;
  order.spec = std::move(what.spec);
  order.spec.prompt = std::move(what.prompts.at(0));
  order.note =
      session_note{std::move(what.recipe), id.secret, what.stream, std::move(what.extra)}.to_text();
  if (!what.dedup.empty())
    order.dedup = what.dedup + "#0";
  order.dedup_digest = std::move(what.dedup_digest);
  order.keep_ms = what.keep_ms;
  order.detached_ms = what.detached_ms;
  auto ear = std::make_shared<detached_listener>(home, id, std::move(told));
  ear->submitted(home.desk().submit(std::move(order), ear));
}

} // namespace di::serve
