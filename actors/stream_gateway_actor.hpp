// SPDX-License-Identifier: Apache-2.0
// The online GATEWAY behind its desk. Private to stream_gateway.cpp and tests; others use
// stream_gateway.hpp.
#pragma once

#include "actors/kit.hpp"
#include "actors/stream_gateway.hpp"
#include "engine/core/stream_gateway_core.hpp"

#include <map>
#include <mutex>
#include <unordered_map>
#include <variant>

namespace di::actors {

struct submit_order {
  stream_order order;
  std::shared_ptr<stream_listener> listener;
};
struct cancel_order {
  request_id request;
  bool listens = false; ///< as stop(): its listener hears the rest
};
struct leave_order {
  request_id request;
  std::shared_ptr<stream_listener> who; ///< null: whoever
};
struct attach_order {
  request_id request;
  std::vector<std::uint32_t> from;
  std::shared_ptr<stream_listener> listener;
  gateway_desk::answer_fn<proto::request_attached> answer;
};
struct get_order {
  request_id request;
  gateway_desk::answer_fn<proto::recorded_request> answer;
};
struct forget_order {
  request_id request;
  gateway_desk::answer_fn<proto::request_forgotten> answer;
};
struct drain_order {};

using any_order = std::variant<submit_order, cancel_order, leave_order, attach_order, get_order,
                               forget_order, proto::end_choice, drain_order>;

/// Orders on their way to the actor. Any thread.
class desk_state final : public gateway_desk {
public:
  /// @param office  outlives all calls that place orders
  /// @param random  64 random bits; called under a lock
  desk_state(address path, bus::post_office& office, std::function<std::uint64_t()> random);

  request_id submit(stream_order order, std::shared_ptr<stream_listener> listener) override;
  void cancel(request_id request) override;
  void stop(request_id request) override;
  void leave(request_id request, const std::shared_ptr<stream_listener>& who) override;
  void end_choice(request_id request, std::uint32_t choice, std::uint32_t kept_tokens,
                  std::int32_t stop_index) override;
  void attach(request_id request, std::vector<std::uint32_t> from,
              std::shared_ptr<stream_listener> listener,
              answer_fn<proto::request_attached> answer) override;
  void get(request_id request, answer_fn<proto::recorded_request> answer) override;
  void forget(request_id request, answer_fn<proto::request_forgotten> answer) override;
  std::size_t open() const override;
  desk_counts counts() const override;
  void drain() override;

  /// All orders since the last call; the actor is rung for the next one.
  std::vector<any_order> take();
  /// Nobody takes orders any more: all are answered with unavailable.
  void close();
  void set_counts(const desk_counts& counts);

private:
  std::uint64_t fresh_block();
  request_id draw_id();
  void put(any_order order);

  const address path_;
  bus::post_office& office_;
  const std::function<std::uint64_t()> random_;
  mutable std::mutex guard_;
  std::vector<any_order> orders_;
  bool rung_ = false, closed_ = false;
  std::uint64_t next_ = 0;  ///< number of the next request
  std::size_t submits_ = 0; ///< in orders_
  desk_counts counts_;
};

/// The core with its listeners. Owned by one shell, used on its thread only.
class stream_gateway_actor {
public:
  stream_gateway_actor(engine::stream_gateway_options options, std::shared_ptr<desk_state> desk);
  ~stream_gateway_actor();
  stream_gateway_actor(const stream_gateway_actor&) = delete;
  stream_gateway_actor& operator=(const stream_gateway_actor&) = delete;

  void start(instant now, outbox& out) { core_.start(now, out); }
  result<void> on(const proto::desk_rang& m, instant now, outbox& out);
  template <class M>
  requires requires(engine::stream_gateway_core& c, const M& m, instant now, outbox& out) {
    c.on(m, now, out);
  }
  result<void> on(const M& m, instant now, outbox& out) {
    DI_TRY_VOID(core_.on(m, now, out));
    tell();
    return {};
  }
  result<proto::gateway_state> on(const proto::get_gateway& m) const;
  result<void> on_answer(std::uint64_t tag, const result<parcel>& answer, instant now,
                         outbox& out) {
    DI_TRY_VOID(core_.on_answer(tag, answer, now, out));
    tell();
    return {};
  }
  result<void> on_due(timer which, instant now, outbox& out) {
    DI_TRY_VOID(core_.on_due(which, now, out));
    tell();
    return {};
  }
  void check() const { core_.check(); }
  engine::stream_counts counts() const { return core_.counts(); }

private:
  void carry_out(submit_order& o, instant now, outbox& out);
  void carry_out(cancel_order& o, instant now, outbox& out);
  void carry_out(leave_order& o, instant now, outbox& out);
  void carry_out(attach_order& o, instant now, outbox& out);
  void carry_out(get_order& o, instant now, outbox& out);
  void carry_out(forget_order& o, instant now, outbox& out);
  void carry_out(proto::end_choice& o, instant now, outbox& out);
  void carry_out(drain_order& o, instant now, outbox& out);
  void tell();
  void tell_one(engine::stream_news::opened& n);
  void tell_one(engine::stream_news::known& n);
  void tell_one(engine::stream_news::tokens& n);
  void tell_one(engine::stream_news::ended& n);
  void tell_one(engine::stream_news::attached& n);
  void tell_one(engine::stream_news::recorded& n);
  void tell_one(engine::stream_news::forgotten& n);

  std::shared_ptr<desk_state> desk_;
  engine::stream_gateway_core core_;
  std::unordered_map<request_id, std::shared_ptr<stream_listener>> listeners_;
  std::map<std::uint64_t, any_order> waits_; ///< by ticket: questions that are out
  std::uint64_t last_ticket_ = 0;
};

struct stream_gateway {
  static constexpr auto kind = "stream_gateway";
  using core = stream_gateway_actor;
  using protocol = di::protocol<reacts_to<proto::desk_rang>,          // orders wait
                                reacts_to<proto::request_opened>,     // it exists
                                reacts_to<proto::request_known>,      // another is the same
                                reacts_to<proto::request_closed>,     // it does not, or failed
                                reacts_to<proto::tokens_released>,    // tokens of it
                                reacts_to<proto::request_taken_over>, // another follows it
                                reacts_to<proto::control_moved>,      // JOURNAL is another life
                                replies_to<proto::get_gateway>::with<proto::gateway_state>>;
};

} // namespace di::actors
