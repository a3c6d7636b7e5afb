// SPDX-License-Identifier: Apache-2.0
// What one connection does, without socket, thread or clock.
#include "messaging/http/connection_core.hpp"

#include "messaging/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace di::http {

namespace {

std::optional<answer> checked(const callbacks& calls, const request& head) {
  if (!calls.check_head)
    return std::nullopt;
  try {
    return calls.check_head(head);
  } catch (const std::exception& e) {
    log::error("http_head_check_threw", {{"what", e.what()}});
    return formatted(calls, {500, "head_check_failed", "the request could not be judged", &head});
  }
}

} // namespace

connection_core::connection_core(connection_setup setup, std::function<void()> wake, instant now)
    : setup_{std::move(setup)}, wake_{std::move(wake)}, since_{now}, progress_{now} {
  parser_.begin(setup_.limits, setup_.length_required);
}

connection_core::~connection_core() {
  failed(gone::stopped);
}

// --- input --------------------------------------------------------------------------------------

void connection_core::received(std::string_view bytes, instant now) {
  setup_.stats->bytes_in.fetch_add(bytes.size(), std::memory_order_relaxed);
  if (phase_ == phase::closing || phase_ == phase::closed)
    return;
  input_.append(bytes);
  advance(now);
}

void connection_core::advance(instant now) {
  if (std::exchange(in_advance_, true))
    return;
  while (read_one(now)) {
  }
  in_advance_ = false;
}

/// Reads up to one step of a request. False: nothing more can be done now.
bool connection_core::read_one(instant now) {
  if (phase_ != phase::idle && phase_ != phase::head && phase_ != phase::body)
    return false;
  if (output_.bytes() > setup_.limits.client_buffer_bytes)
    return false; // it pipelines and does not read
  if (phase_ == phase::idle) {
    if (input_.empty())
      return false;
    phase_ = phase::head;
    since_ = now;
  }
  std::size_t used = 0;
  const auto step = parser_.feed(input_, used);
  input_.erase(0, used);
  if (input_.empty() && input_.capacity() > (16u << 10))
    input_.shrink_to_fit();
  switch (step) {
  case request_parser::step::need_more:
    if (phase_ == phase::body) {
      const auto held = parser_.message().body.size();
      const auto all = setup_.stats->body_bytes.fetch_add(held - body_counted_) + held
                       - std::exchange(body_counted_, held);
      if (all > setup_.limits.all_bodies_bytes)
        refuse({503, "bodies_too_large", "too many large bodies are on their way here"}, now);
    }
    return false;
  case request_parser::step::refused:
    refuse(parser_.refusal(), now);
    return false;
  case request_parser::step::head:
    return after_head(now);
  case request_parser::step::done:
    dispatch(now);
    return true;
  }
  return false;
}

/// The header is whole: fills in what only the connection knows, asks the caller.
bool connection_core::after_head(instant now) {
  request& r = parser_.message();
  r.peer = setup_.peer;
  r.peer_port = setup_.peer_port;
  r.tls = setup_.tls;
  r.connection = setup_.number;
  r.number = ++requests_;
  r.arrived = since_;
  keep_alive_ = parser_.keeps_alive();
  old_client_ = r.minor == 0;
  head_only_ = r.method == "HEAD";
  if (auto no = checked(*setup_.calls, r)) {
    setup_.stats->refused.fetch_add(1, std::memory_order_relaxed);
    send_closing(std::move(*no), now);
    return false;
  }
  phase_ = phase::body;
  since_ = now;
  if (!parser_.has_body()) {
    dispatch(now);
    return true;
  }
  if (parser_.expects_continue() && input_.empty())
    queue("HTTP/1.1 100 Continue\r\n\r\n", now);
  return !input_.empty();
}

void connection_core::dispatch(instant now) {
  release_body();
  request r = std::move(parser_.message());
  r.read = now;
  phase_ = phase::answering;
  earlier_bytes_ = output_.bytes();
  current_ = std::make_shared<exchange_state>(setup_.loop, wake_, !old_client_, head_only_,
                                              setup_.limits.client_buffer_bytes);
  setup_.stats->requests.fetch_add(1, std::memory_order_relaxed);
  setup_.stats->busy.fetch_add(1, std::memory_order_relaxed);
  current_->awake(true);
  if (input_ended_)
    current_->lose(gone::closed, false);
  {
    exchange_ptr handle = std::make_shared<exchange_handle>(current_);
    try {
      setup_.calls->handler(std::move(r), std::move(handle));
    } catch (const std::exception& e) {
      log::error("http_handler_threw", {{"what", e.what()}});
    } catch (...) {
      log::error("http_handler_threw");
    }
  }
  take(now);
}

void connection_core::input_ended(instant now) {
  if (std::exchange(input_ended_, true))
    return;
  eof_at_ = now;
  switch (phase_) {
  case phase::idle:
    if (output_.empty())
      close(false);
    else
      close_after_output(now);
    break;
  case phase::head:
    if (!parser_.head_done() && output_.empty() && input_.find('\n') == std::string::npos)
      return close(false);
    [[fallthrough]];
  case phase::body:
    refuse({400, "incomplete_request", "the connection was closed inside a request"}, now);
    break;
  case phase::answering:
    setup_.stats->gone.fetch_add(1, std::memory_order_relaxed);
    current_->lose(gone::closed, false);
    break;
  case phase::closing:
    if (output_.empty())
      close(false);
    break;
  case phase::closed:
    break;
  }
}

// --- wishes -------------------------------------------------------------------------------------

bool connection_core::wants_input() const noexcept {
  if (input_ended_ || phase_ == phase::closed)
    return false;
  return phase_ == phase::closing || input_.size() < setup_.limits.read_ahead_bytes;
}

bool connection_core::wants_half_close() const noexcept {
  return phase_ == phase::closing && output_.empty();
}

std::size_t connection_core::read_bytes() const noexcept {
  switch (phase_) {
  case phase::body:
    return 64u << 10;
  case phase::answering: // the end, or the next request
    return 512;
  default:
    return 4u << 10;
  }
}

connection_core::instant connection_core::body_deadline() const noexcept {
  const auto rate = std::max<std::size_t>(setup_.limits.body_bytes_per_s, 1);
  return since_ + setup_.timeouts.body
         + std::chrono::milliseconds{body_counted_ * std::size_t{1000} / rate};
}

connection_core::instant connection_core::deadline() const noexcept {
  const auto& t = setup_.timeouts;
  instant due = instant::max();
  if (!output_.empty())
    due = progress_ + t.write;
  switch (phase_) {
  case phase::idle:
    if (!output_.empty())
      return due;
    return since_ + (requests_ > 0 ? t.idle : draining_ ? t.linger : t.header);
  case phase::head:
    return std::min(due, since_ + t.header);
  case phase::body:
    return std::min(due, body_deadline());
  case phase::answering:
    return input_ended_ ? std::min(due, eof_at_ + t.linger) : due;
  case phase::closing:
    return output_.empty() ? since_ + t.linger : due;
  case phase::closed:
    return instant::max();
  }
  return due;
}

std::optional<connection_core::instant> connection_core::idle_since(instant now) const noexcept {
  const bool idle = phase_ == phase::idle && output_.empty();
  const bool fresh = requests_ == 0 && now < since_ + setup_.timeouts.linger;
  return idle && !fresh ? std::optional{since_} : std::nullopt;
}

} // namespace di::http
