// SPDX-License-Identifier: Apache-2.0
// The half of a connection that answers and ends.
#include "messaging/base/log.hpp"
#include "messaging/http/answer_head.hpp"
#include "messaging/http/connection_core.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace di::http {

namespace {

answer plain_answer(const refusal& why) {
  return {why.status, {{"Content-Type", "text/plain; charset=utf-8"}}, why.detail + "\n"};
}

} // namespace

answer formatted(const callbacks& calls, const refusal& why) {
  try {
    return calls.format ? calls.format(why) : plain_answer(why);
  } catch (const std::exception& e) {
    log::error("http_formatter_threw", {{"what", e.what()}});
    return plain_answer(why);
  }
}

void connection_core::flush(instant now) {
  if (!current_)
    return;
  take(now);
  advance(now);
}

/// Takes what callers have said until they say nothing more.
void connection_core::take(instant now) {
  const auto state = current_; // the exchange may end in here
  state->awake(false);
  auto t = state->take();
  if (t.abandoned && input_ended_)
    return close(false);
  if (t.abandoned) {
    setup_.stats->refused.fetch_add(1, std::memory_order_relaxed);
    t.head = formatted(*setup_.calls,
                       {500, "no_answer", "the request was dropped without an answer", nullptr});
    t.ended = true;
  }
  if (t.head)
    send_head(t, now);
  if (!t.bytes.empty())
    queue(std::move(t.bytes), now);
  if (t.aborted)
    return close(true);
  if (t.ended)
    end_exchange(t.close, now);
}

void connection_core::send_head(exchange_state::taken& t, instant now) {
  answer& a = *t.head;
  const bool no_body = a.status < 200 || a.status == 204 || a.status == 304;
  const auto how = no_body       ? framing::none
                   : !t.streams  ? framing::length
                   : old_client_ ? framing::close
                                 : framing::chunked;
  if (!keep_alive_ || draining_ || input_ended_ || how == framing::close
      || a.headers.has_token("connection", "close")
      || setup_.stats->full.load(std::memory_order_relaxed))
    must_close_ = true;
  std::string head;
  append_head(head, a.status, a.headers, how, a.body.size(), !must_close_, old_client_);
  const bool body = !t.streams && !no_body && !head_only_;
  current_->count(head.size() + (body ? a.body.size() : 0));
  queue(std::move(head), now);
  if (body)
    queue(std::move(a.body), now);
}

void connection_core::end_exchange(bool close, instant now) {
  setup_.stats->busy.fetch_sub(1, std::memory_order_relaxed);
  current_.reset();
  if (close || must_close_ || draining_ || input_ended_)
    return close_after_output(now);
  next_request(now);
}

void connection_core::next_request(instant now) {
  parser_.begin(setup_.limits, setup_.length_required);
  phase_ = phase::idle;
  since_ = now;
}

void connection_core::queue(std::string&& bytes, instant now) {
  if (output_.empty())
    progress_ = now;
  output_.append(std::move(bytes));
}

void connection_core::sent(std::size_t bytes, instant now) {
  setup_.stats->bytes_out.fetch_add(bytes, std::memory_order_relaxed);
  output_.consume(bytes);
  progress_ = now;
  const auto earlier = std::min(bytes, earlier_bytes_);
  earlier_bytes_ -= earlier;
  if (const auto state = current_; state && bytes > earlier)
    state->sent(bytes - earlier);
  if (!output_.empty())
    return;
  if (phase_ == phase::idle)
    since_ = now;
  if (phase_ == phase::closing) {
    since_ = now;
    if (input_ended_)
      return close(false);
  }
  advance(now);
}

// --- ends ---------------------------------------------------------------------------------------

void connection_core::refuse(const parse_refusal& why, instant now) {
  setup_.stats->refused.fetch_add(1, std::memory_order_relaxed);
  head_only_ = parser_.message().method == "HEAD";
  send_closing(formatted(*setup_.calls, {why.status, why.code, why.detail, &parser_.message()}),
               now);
}

/// Answers although the request has not been read to its end.
void connection_core::send_closing(answer a, instant now) {
  std::string bytes;
  append_head(bytes, a.status, a.headers, framing::length, a.body.size(), false, false);
  if (!head_only_)
    bytes += a.body;
  queue(std::move(bytes), now);
  close_after_output(now);
}

void connection_core::close_after_output(instant now) {
  release_body();
  input_.clear();
  phase_ = phase::closing;
  since_ = now;
  if (input_ended_ && output_.empty())
    close(false);
}

void connection_core::failed(gone why) {
  if (phase_ == phase::closed)
    return;
  const auto state = std::exchange(current_, nullptr);
  // What the operating system has taken of a whole answer still gets to its client.
  const bool cut = state != nullptr || !output_.empty();
  close(why == gone::stalled || (why == gone::stopped && cut));
  if (!state)
    return;
  setup_.stats->busy.fetch_sub(1, std::memory_order_relaxed);
  if (!input_ended_)
    setup_.stats->gone.fetch_add(1, std::memory_order_relaxed);
  state->lose(why, true);
}

void connection_core::close(bool reset) {
  if (phase_ == phase::closed)
    return;
  release_body();
  phase_ = phase::closed;
  reset_ = reset;
  input_.clear();
  if (const auto state = std::exchange(current_, nullptr)) {
    setup_.stats->busy.fetch_sub(1, std::memory_order_relaxed);
    state->lose(gone::closed, true);
  }
}

void connection_core::release_body() {
  setup_.stats->body_bytes.fetch_sub(std::exchange(body_counted_, 0));
}

void connection_core::shed() {
  if (phase_ == phase::idle && output_.empty())
    close(false);
}

void connection_core::drain(instant now) {
  const bool again = std::exchange(draining_, true);
  if (phase_ != phase::idle)
    return;
  if (requests_ == 0) { // its first request may be on its way
    if (!again)
      since_ = now;
    return;
  }
  if (output_.empty())
    close(false);
  else
    close_after_output(now);
}

void connection_core::tick(instant now) {
  if (now < deadline())
    return;
  if (!output_.empty() && now >= progress_ + setup_.timeouts.write) {
    setup_.stats->timed_out.fetch_add(1, std::memory_order_relaxed);
    return failed(gone::stalled);
  }
  switch (phase_) {
  case phase::idle:
  case phase::closing:
    return close(false);
  case phase::head:
    setup_.stats->timed_out.fetch_add(1, std::memory_order_relaxed);
    return refuse(
        {408, "header_timeout",
         fmt::format("the header did not come within {} ms", setup_.timeouts.header.count())},
        now);
  case phase::body:
    setup_.stats->timed_out.fetch_add(1, std::memory_order_relaxed);
    return refuse(
        {408, "body_timeout",
         fmt::format("the body came too slowly: {} bytes after {} ms",
                     parser_.message().body.size(),
                     std::chrono::duration_cast<std::chrono::milliseconds>(now - since_).count())},
        now);
  case phase::answering: // it has closed its side, and no answer came to still send
    return failed(gone::closed);
  case phase::closed:
    return;
  }
}

} // namespace di::http
