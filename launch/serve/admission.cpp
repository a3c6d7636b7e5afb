// SPDX-License-Identifier: Apache-2.0
// The counts and the token budgets behind admission.
#include "launch/serve/admission.hpp"

#include "messaging/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::serve {

admission::ticket& admission::ticket::operator=(ticket&& other) noexcept {
  if (this != &other) {
    give_back();
    home_ = other.home_;
    key_ = std::move(other.key_);
    other.home_ = nullptr;
  }
  return *this;
}

void admission::ticket::spend(std::uint64_t tokens, instant now) {
  if (home_ != nullptr)
    home_->spend(key_, tokens, now);
}

void admission::ticket::give_back() {
  if (home_ != nullptr)
    home_->leave(key_);
  home_ = nullptr;
}

void admission::set_limits(admission_limits limits) {
  const std::scoped_lock lock{guard_};
  limits_ = limits;
}

std::variant<admission::ticket, api_error> admission::enter(const key_grant& who, instant now) {
  const std::scoped_lock lock{guard_};
  if (open_ >= limits_.requests) {
    ++refused_;
    return make_error(503, "overloaded",
                      fmt::format("{} requests are open here, the most there may be", open_));
  }
  auto [at, fresh] = accounts_.try_emplace(who.name);
  auto& a = at->second;
  if (fresh || a.per_minute != who.tokens_per_minute) {
    a.tokens = fresh ? who.tokens_per_minute : std::min<double>(a.tokens, who.tokens_per_minute);
    a.per_minute = who.tokens_per_minute;
    a.filled = now;
  }
  refill(a, now);
  if (auto no = refusal(a, who)) {
    ++refused_;
    return *no;
  }
  ++a.open;
  ++open_;
  return ticket{this, who.name};
}

std::optional<api_error> admission::refusal(const account& a, const key_grant& who) const {
  const auto bound = who.requests > 0 ? who.requests : limits_.requests_per_key;
  if (bound > 0 && a.open >= bound)
    return make_error(
        429, fmt::format("{} requests of this key are open, the most there may be", a.open));
  if (a.per_minute > 0 && a.tokens <= 0) {
    auto e = make_error(429, "tokens_exceeded",
                        fmt::format("this key may take {} tokens a minute, and has", a.per_minute));
    e.retry_after_ms = static_cast<std::uint64_t>((1 - a.tokens) / a.per_minute * 60'000.0) + 1;
    return e;
  }
  return std::nullopt;
}

void admission::refill(account& a, instant now) {
  const auto minutes =
      std::chrono::duration<double, std::ratio<60>>(std::max(now, a.filled) - a.filled).count();
  a.tokens = std::min<double>(a.per_minute, a.tokens + minutes * a.per_minute);
  a.filled = std::max(now, a.filled);
}

void admission::spend(const std::string& key, std::uint64_t tokens, instant now) {
  const std::scoped_lock lock{guard_};
  const auto at = accounts_.find(key);
  if (at == accounts_.end() || at->second.per_minute == 0)
    return;
  refill(at->second, now);
  at->second.tokens -= static_cast<double>(tokens);
}

void admission::leave(const std::string& key) {
  const std::scoped_lock lock{guard_};
  const auto at = accounts_.find(key);
  DI_CHECK(at != accounts_.end() && at->second.open > 0 && open_ > 0);
  --at->second.open;
  --open_;
  if (at->second.open == 0 && at->second.per_minute == 0)
    accounts_.erase(at);
}

std::uint32_t admission::open() const {
  const std::scoped_lock lock{guard_};
  return open_;
}

std::uint64_t admission::refused() const {
  const std::scoped_lock lock{guard_};
  return refused_;
}

} // namespace di::serve
