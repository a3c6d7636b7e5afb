// SPDX-License-Identifier: Apache-2.0
// Reading, comparing, telling.
#include "launch/serve/live_feed.hpp"

#include "messaging/base/env.hpp"
#include "messaging/http/sse.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>

namespace di::serve {
namespace {

constexpr std::size_t events_at_once = 64; ///< of the log in one SSE event

std::int64_t ms_of(auto time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

} // namespace

struct live_feed::slot {
  std::mutex guard;
  std::condition_variable wake;
  std::optional<cluster_reading> reading;
  bool newcomers = false, stop = false;
};

live_feed::live_feed(cluster_reader& reader, live_feed_options options)
    : reader_{reader},
      options_{std::move(options)},
      run_{fmt::format("{:x}", real_env().random())},
      slot_{std::make_shared<slot>()},
      thread_{[this] { run(); }} {
}

live_feed::~live_feed() {
  stop();
}

void live_feed::stop() {
  {
    const std::lock_guard lock{guard_};
    if (std::exchange(stopped_, true))
      return;
  }
  {
    const std::lock_guard lock{slot_->guard};
    slot_->stop = true;
  }
  slot_->wake.notify_all();
  thread_.join();
  for (auto* all : {&viewers_, &arriving_})
    for (auto& v : *all)
      v.to->end(true);
}

bool live_feed::add(http::exchange_ptr to, std::string_view last_id) {
  viewer v{to, 0, std::make_shared<std::atomic<bool>>(false)};
  if (last_id.starts_with(run_ + ":"))
    std::from_chars(last_id.data() + run_.size() + 1, last_id.data() + last_id.size(), v.after);
  {
    const std::lock_guard lock{guard_};
    std::erase_if(viewers_, [](const viewer& old) { return old.to->is_gone(); });
    if (stopped_ || viewers_.size() + arriving_.size() >= options_.viewers)
      return false;
    to->on_drained([full = v.full] { full->store(false); });
    if (!to->begin_stream(200, http::sse_headers()))
      return true; // it left already
    const nlohmann::json hello{{"run", run_},
                               {"topology", options_.topology},
                               {"model", options_.model},
                               {"period_ms", options_.period.count()}};
    say(v, http::sse_retry(std::chrono::milliseconds{1'000})
               + http::sse_event(
                   hello.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "hello"));
    arriving_.push_back(std::move(v));
  }
  {
    const std::lock_guard lock{slot_->guard};
    slot_->newcomers = true;
  }
  slot_->wake.notify_all();
  return true;
}

std::size_t live_feed::viewers() const {
  const std::lock_guard lock{guard_};
  return viewers_.size() + arriving_.size();
}

http::written live_feed::say(viewer& v, const std::string& event) {
  v.full->store(true); // before: it may drain before write() is back
  const auto how = v.to->write(event);
  if (how == http::written::ok)
    v.full->store(false);
  return how;
}

void live_feed::tell(viewer& v, const std::string& state, const std::string& heat) {
  while (v.after < core_.last_event() && !v.full->load()) {
    const auto [events, last] = core_.events_json(v.after, events_at_once);
    if (last == v.after)
      break;
    if (const auto how = say(v, http::sse_event(events, "log", fmt::format("{}:{}", run_, last)));
        how == http::written::refused || how == http::written::gone)
      return; // said again when it has drained
    v.after = last;
  }
  if (!v.full->load() && !state.empty())
    say(v, http::sse_event(state, "state"));
  if (!v.full->load() && !heat.empty())
    say(v, http::sse_event(heat, "heat"));
}

/// Newcomers get all there is.
void live_feed::greet() {
  const std::lock_guard lock{guard_};
  for (viewer& v : arriving_) {
    tell(v, state_, heat_);
    viewers_.push_back(std::move(v));
  }
  arriving_.clear();
}

/// One reading at a time; the next one a period after the last began.
void live_feed::run() {
  for (std::uint32_t readings = 0;; ++readings) {
    const auto began = clock::now();
    reader_.read(readings % options_.heat_every == 0, [s = slot_](cluster_reading r) {
      {
        const std::lock_guard lock{s->guard};
        s->reading = std::move(r);
      }
      s->wake.notify_all();
    });
    cluster_reading now;
    {
      std::unique_lock lock{slot_->guard};
      slot_->wake.wait(lock, [&] { return slot_->reading || slot_->stop; });
      if (slot_->stop)
        return;
      now = std::move(*std::exchange(slot_->reading, std::nullopt));
    }
    core_.update(now, ms_of(std::chrono::system_clock::now()), ms_of(clock::now()));
    state_ = core_.state_json();
    std::string heat = now.heat ? core_.heat_json() : std::string{};
    if (heat == heat_)
      heat.clear(); // it is known
    if (!heat.empty())
      heat_ = heat;
    {
      const std::lock_guard lock{guard_};
      std::erase_if(viewers_, [](const viewer& v) { return v.to->is_gone(); });
      for (viewer& v : viewers_)
        tell(v, state_, heat);
    }
    greet();
    if (!wait_until_due(began))
      return;
  }
}

/// Waits for the next reading; newcomers are greeted meanwhile, and make it come sooner.
/// @return false: stop
bool live_feed::wait_until_due(clock::time_point began) {
  for (;;) {
    const auto until = began + (viewers() > 0 ? options_.period : options_.period_alone);
    std::unique_lock lock{slot_->guard};
    slot_->wake.wait_until(lock, until, [&] { return slot_->newcomers || slot_->stop; });
    if (slot_->stop)
      return false;
    if (!std::exchange(slot_->newcomers, false))
      return true;
    lock.unlock();
    greet();
  }
}

} // namespace di::serve
