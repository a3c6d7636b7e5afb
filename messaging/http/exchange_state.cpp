// SPDX-License-Identifier: Apache-2.0
// The shared half of an exchange.
#include "messaging/http/exchange_state.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace di::http {

std::string_view to_string(gone why) noexcept {
  switch (why) {
  case gone::closed:
    return "closed";
  case gone::reset:
    return "reset";
  case gone::stalled:
    return "stalled";
  case gone::stopped:
    return "stopped";
  }
  return "unknown";
}

exchange_state::exchange_state(std::shared_ptr<loop_face> loop, std::function<void()> wake,
                               bool chunked, bool head_only, std::size_t buffer_bytes)
    : loop_{std::move(loop)},
      wake_{std::move(wake)},
      buffer_bytes_{buffer_bytes},
      body_{head_only ? body::dropped
            : chunked ? body::chunked
                      : body::raw} {
}

void exchange_state::wake_locked() {
  if (!std::exchange(woken_, true))
    loop_->post(wake_);
}

/// Callbacks are moved out, so that what they capture is released without the lock.
void exchange_state::end_locked(std::function<void()>& drained, std::function<void(gone)>& left) {
  stage_ = stage::ended;
  drained.swap(drained_);
  left.swap(left_);
  wake_locked();
}

bool exchange_state::respond(answer a) {
  std::function<void()> drained;
  std::function<void(gone)> left;
  const std::lock_guard lock{mutex_};
  if (stage_ != stage::waiting || broken_)
    return false;
  next_.head = std::move(a);
  next_.ended = true;
  end_locked(drained, left);
  return true;
}

bool exchange_state::begin_stream(int status, header_list headers) {
  const std::lock_guard lock{mutex_};
  if (stage_ != stage::waiting || broken_)
    return false;
  stage_ = stage::streaming;
  if (status < 200 || status == 204 || status == 304)
    body_ = body::dropped;
  next_.head = answer{status, std::move(headers), {}};
  next_.streams = true;
  wake_locked();
  return true;
}

written exchange_state::write(std::string_view chunk) {
  const std::lock_guard lock{mutex_};
  if (stage_ != stage::streaming || broken_)
    return written::gone;
  if (chunk.empty() || body_ == body::dropped)
    return written::ok;
  if (queued_ > 0 && queued_ + chunk.size() > 2 * buffer_bytes_) {
    was_full_ = true;
    return written::refused;
  }
  const auto before = next_.bytes.size();
  if (body_ == body::chunked)
    fmt::format_to(std::back_inserter(next_.bytes), "{:x}\r\n", chunk.size());
  next_.bytes += chunk;
  if (body_ == body::chunked)
    next_.bytes += "\r\n";
  queued_ += next_.bytes.size() - before;
  wake_locked();
  if (queued_ <= buffer_bytes_)
    return written::ok;
  was_full_ = true;
  return written::full;
}

void exchange_state::end(bool close) {
  std::function<void()> drained;
  std::function<void(gone)> left;
  const std::lock_guard lock{mutex_};
  if (stage_ != stage::streaming || broken_)
    return;
  if (body_ == body::chunked) {
    constexpr std::string_view last = "0\r\n\r\n";
    next_.bytes += last;
    queued_ += last.size();
  }
  next_.ended = true;
  next_.close = close;
  end_locked(drained, left);
}

void exchange_state::abort() {
  std::function<void()> drained;
  std::function<void(gone)> left;
  const std::lock_guard lock{mutex_};
  if (stage_ == stage::ended || broken_)
    return;
  next_.aborted = true;
  end_locked(drained, left);
}

void exchange_state::abandon() {
  std::function<void()> drained;
  std::function<void(gone)> left;
  const std::lock_guard lock{mutex_};
  if (stage_ == stage::ended || broken_)
    return;
  next_.abandoned = stage_ == stage::waiting;
  next_.aborted = stage_ == stage::streaming;
  end_locked(drained, left);
}

std::size_t exchange_state::queued() const {
  const std::lock_guard lock{mutex_};
  return queued_;
}

void exchange_state::on_drained(std::function<void()> callback) {
  const std::lock_guard lock{mutex_};
  if (stage_ != stage::ended && !broken_)
    drained_.swap(callback);
}

void exchange_state::on_gone(std::function<void(gone)> callback) {
  std::optional<gone> why;
  {
    const std::lock_guard lock{mutex_};
    if (stage_ == stage::ended || told_)
      return;
    if (gone_)
      told_ = true;
    else
      left_.swap(callback);
    why = gone_;
  }
  if (why) // without the lock: a deaf loop drops the callback and what it holds
    loop_->post([callback = std::move(callback), reason = *why] { callback(reason); });
}

bool exchange_state::is_gone() const {
  const std::lock_guard lock{mutex_};
  return gone_.has_value();
}

exchange_state::taken exchange_state::take() {
  const std::lock_guard lock{mutex_};
  return std::exchange(next_, taken{});
}

void exchange_state::awake(bool on) {
  const std::lock_guard lock{mutex_};
  woken_ = on;
}

void exchange_state::count(std::size_t bytes) {
  const std::lock_guard lock{mutex_};
  queued_ += bytes;
}

void exchange_state::sent(std::size_t bytes) {
  std::function<void()> call;
  {
    const std::lock_guard lock{mutex_};
    queued_ -= bytes < queued_ ? bytes : queued_;
    if (!was_full_ || queued_ > buffer_bytes_ / 2)
      return;
    was_full_ = false;
    call = drained_;
  }
  if (call)
    call();
}

void exchange_state::lose(gone why, bool broken) {
  std::function<void()> drained;
  std::function<void(gone)> left;
  {
    const std::lock_guard lock{mutex_};
    if (broken) {
      broken_ = true;
      next_ = taken{};
      queued_ = 0;
      drained.swap(drained_);
    }
    if (!gone_)
      gone_ = why;
    left.swap(left_);
    told_ = told_ || left != nullptr;
  }
  if (left)
    left(why);
}

} // namespace di::http
