// SPDX-License-Identifier: Apache-2.0
// What the clients do, and what they check.
#include "chaos/sim_streams.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::sim {

namespace {
using std::chrono::milliseconds;
namespace news = engine::stream_news;
} // namespace

/// A life of the online gateway: the production core, and hands of its clients.
class stream_client_core {
public:
  stream_client_core(sim_streams* clients, incarnation life)
      : clients_{clients}, core_{options_of(life)} {}

  void start(instant now, outbox& out) {
    core_.start(now, out);
    for (std::size_t i = 0; i < clients_->clients_.size(); ++i) {
      sim_streams::client& c = clients_->clients_[i];
      if (c.is == sim_streams::state::unsent)
        out.arm({submits, i}, c.submits_after);
      else if (c.is != sim_streams::state::done)
        come_back(c, now, out);
      if (c.leaves_after > duration{})
        out.arm({leaves, i}, c.leaves_after);
      if (c.cancels_after > duration{})
        out.arm({cancels, i}, c.cancels_after);
    }
    tell(now, out);
  }
  template <class M>
  requires requires(engine::stream_gateway_core& c, const M& m, instant now, outbox& out) {
    c.on(m, now, out);
  }
  result<void> on(const M& m, instant now, outbox& out) {
    DI_TRY_VOID(core_.on(m, now, out));
    tell(now, out);
    return {};
  }
  result<proto::gateway_state> on(const proto::get_gateway&) const {
    return proto::gateway_state{};
  }
  result<void> on_answer(std::uint64_t tag, const result<parcel>& answer, instant now,
                         outbox& out) {
    DI_TRY_VOID(core_.on_answer(tag, answer, now, out));
    tell(now, out);
    return {};
  }
  result<void> on_due(timer which, instant now, outbox& out) {
    if (which.kind < submits) {
      DI_TRY_VOID(core_.on_due(which, now, out));
      tell(now, out);
      return {};
    }
    sim_streams::client& c = clients_->clients_[which.key];
    if (which.kind == submits && c.is == sim_streams::state::unsent) {
      submit(c, now, out);
    } else if (which.kind == leaves && c.is == sim_streams::state::following) {
      c.leaves_after = {};
      c.is = sim_streams::state::away;
      core_.leave(c.spec.request, now, out);
      if (c.detached_ms == 0)
        clients_->over(c);
      else
        out.arm({returns, which.key}, milliseconds{40});
    } else if (which.kind == returns && c.is == sim_streams::state::away) {
      come_back(c, now, out);
    } else if (which.kind == cancels && c.is != sim_streams::state::done && c.submitted) {
      c.cancels_after = {};
      c.cancelled = true;
      core_.cancel(c.spec.request, now, out);
      clients_->over(c);
    }
    tell(now, out);
    return {};
  }
  void check() const { core_.check(); }

private:
  enum timer_kind : std::uint32_t { submits = 100, leaves, returns, cancels };

  static engine::stream_gateway_options options_of(incarnation life) {
    engine::stream_gateway_options o;
    o.self = "/gateway/1";
    o.life = life;
    o.window = 6;
    return o;
  }
  void submit(sim_streams::client& c, instant now, outbox& out) {
    c.is = sim_streams::state::following;
    c.submitted = true;
    proto::open_request m;
    m.spec = c.spec;
    m.note = "note";
    m.detached_ms = c.detached_ms;
    core_.submit(std::move(m), now, out);
  }
  /// From where it is.
  void come_back(sim_streams::client& c, instant now, outbox& out) {
    c.is = sim_streams::state::following;
    std::fill(c.ended.begin(), c.ended.end(), false); // ends come again
    core_.attach(++tickets_, c.spec.request, c.seen, now, out);
  }
  std::uint64_t index_of(const sim_streams::client& c) const {
    return static_cast<std::uint64_t>(&c - clients_->clients_.data());
  }
  void tell(instant now, outbox& out) {
    for (engine::any_stream_news& n : core_.take_news()) {
      if (const auto* t = std::get_if<news::tokens>(&n))
        clients_->hear(*t);
      else if (const auto* e = std::get_if<news::ended>(&n))
        ended(*e, out);
      else if (const auto* a = std::get_if<news::attached>(&n); a && !a->answer)
        not_attached(*a, now, out);
    }
  }
  void ended(const news::ended& e, outbox& out) {
    sim_streams::client* c = clients_->find(e.request);
    if (!c || c->is != sim_streams::state::following)
      return;
    if (e.ask_again_ms > 0) { // nothing was opened
      c->is = sim_streams::state::unsent;
      out.arm({submits, index_of(*c)}, milliseconds{e.ask_again_ms});
      return;
    }
    if (c->detached_ms > 0)
      clients_->world_.fail_run(fmt::format("I9: request {} ended: {}", e.request.v, e.why.what));
    clients_->over(*c);
  }
  void not_attached(const news::attached& a, instant now, outbox& out) {
    sim_streams::client* c = clients_->find(a.request);
    if (!c || c->is != sim_streams::state::following)
      return;
    if (a.answer.error().code != ec::not_found) { // once more
      c->is = sim_streams::state::away;
      out.arm({returns, index_of(*c)}, milliseconds{100});
      return;
    }
    const bool nothing = std::all_of(c->seen.begin(), c->seen.end(), [](auto n) { return n == 0; });
    if (nothing) // the gateway died before JOURNAL had heard of it
      return submit(*c, now, out);
    if (c->detached_ms > 0)
      clients_->world_.fail_run(fmt::format("I9: request {} is gone", a.request.v));
    clients_->over(*c);
  }

  sim_streams* clients_;
  engine::stream_gateway_core core_;
  std::uint64_t tickets_ = 0;
};

namespace {
struct stream_client {
  static constexpr auto kind = "stream_client";
  using core = stream_client_core;
  using protocol =
      di::protocol<reacts_to<proto::request_opened>, reacts_to<proto::request_known>,
                   reacts_to<proto::request_closed>, reacts_to<proto::tokens_released>,
                   reacts_to<proto::request_taken_over>, reacts_to<proto::control_moved>,
                   replies_to<proto::get_gateway>::with<proto::gateway_state>>;
};
} // namespace

sim_streams::sim_streams(sim_world& world, const std::vector<proto::request_spec>& requests,
                         sim_random r)
    : world_{world} {
  for (const proto::request_spec& spec : requests) {
    client& c = clients_.emplace_back();
    c.spec = spec;
    c.seen.resize(spec.sampling.n);
    c.ended.resize(spec.sampling.n);
    c.detached_ms = r.chance(0.3) ? 0 : 60'000;
    c.submits_after = r.span(milliseconds{1}, milliseconds{600});
    if (r.chance(0.3))
      c.leaves_after = r.span(milliseconds{1}, milliseconds{1'200});
    if (r.chance(0.2))
      c.cancels_after = r.span(milliseconds{1}, milliseconds{1'200});
  }
}

void sim_streams::begin(sim_process& gateway) {
  world_.spawn(gateway, "/gateway/1", wrap_core<stream_client>(this, gateway.life));
}

/// Its clients notice, and come back when the next one is there.
void sim_streams::died() {
  for (client& c : clients_)
    if (c.is == state::following && c.submitted)
      c.is = state::away;
}

bool sim_streams::done() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const client& c) { return c.is == state::done; });
}

std::string sim_streams::where_they_stand() const {
  std::string words;
  for (const client& c : clients_)
    if (c.is != state::done)
      words += fmt::format("\n  client of request {}: state {}, {} tokens seen", c.spec.request.v,
                           static_cast<int>(c.is), c.seen[0]);
  return words;
}

void sim_streams::over(client& c) {
  c.is = state::done;
}

sim_streams::client* sim_streams::find(request_id id) {
  const auto at = std::find_if(clients_.begin(), clients_.end(),
                               [id](const client& c) { return c.spec.request == id; });
  return at == clients_.end() ? nullptr : &*at;
}

/// I1, I2: each index once, in order, and what any cluster must answer.
void sim_streams::hear(const news::tokens& n) {
  client* c = find(n.m.request);
  if (!c || c->is != state::following)
    return;
  std::uint32_t& seen = c->seen[n.m.choice];
  const std::vector<token_id>& wanted = reference(n.m.request, n.m.choice);
  const auto words = [&](const char* what) {
    return fmt::format("{}: client of request {} choice {} at index {} gets {} from {} on", what,
                       n.m.request.v, n.m.choice, seen, n.m.tokens.size(), n.m.first_index);
  };
  if (n.m.first_index != seen || c->ended[n.m.choice])
    return world_.fail_run(words("I1"));
  if (seen + n.m.tokens.size() > wanted.size()
      || !std::equal(n.m.tokens.begin(), n.m.tokens.end(), wanted.begin() + seen))
    return world_.fail_run(words("I2"));
  seen += static_cast<std::uint32_t>(n.m.tokens.size());
  tokens_ += n.m.tokens.size();
  if (n.m.end.reason == proto::finish_reason::none)
    return;
  c->ended[n.m.choice] = true;
  const bool whole = seen == wanted.size() && n.m.end.reason != proto::finish_reason::error
                     && n.m.end.reason != proto::finish_reason::cancelled;
  if (!whole && c->detached_ms > 0)
    world_.fail_run(words("I9: it is cut short") + ": " + n.m.end.what);
  if (n.last)
    over(*c);
}

} // namespace di::sim
