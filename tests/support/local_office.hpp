// SPDX-License-Identifier: Apache-2.0
// A post office without a wire, for tests of one process.
#pragma once

#include "messaging/bus/post_office.hpp"
#include "messaging/proto/bus.hpp"

#include <atomic>
#include <map>
#include <mutex>

namespace di::test {

/// Delivers in the caller's thread. Thread-safe. Requests whose receiver ends are not bounced.
class local_office final : public bus::post_office {
public:
  result<void> bind(const address& path, bus::deliver_fn deliver) override {
    const std::lock_guard lock{guard_};
    if (!bound_.emplace(path, std::move(deliver)).second)
      return fail(ec::duplicate, "{} is bound already", path);
    return {};
  }

  void unbind(const address& path, const error& reason) override {
    std::vector<address> watchers;
    bus::deliver_fn last; // its destructor may end an actor: outside the lock
    {
      const std::lock_guard lock{guard_};
      if (const auto found = bound_.find(path); found != bound_.end()) {
        last = std::move(found->second);
        bound_.erase(found);
      }
      if (const auto found = watched_.find(path); found != watched_.end()) {
        watchers = std::move(found->second);
        watched_.erase(found);
      }
    }
    for (const auto& watcher : watchers)
      tell_down(path, watcher, reason);
  }

  result<void> add_route(const bus::peer& p) override {
    const std::lock_guard lock{guard_};
    routes_[p.prefix] = p;
    return {};
  }
  void remove_route(const address& prefix, const error& /*reason*/) override {
    const std::lock_guard lock{guard_};
    routes_.erase(prefix);
  }
  std::vector<bus::peer> routes() const override {
    const std::lock_guard lock{guard_};
    std::vector<bus::peer> all;
    for (const auto& [prefix, p] : routes_)
      all.push_back(p);
    return all;
  }

  result<void> post(envelope mail) override {
    if (mail.view.v == 0)
      mail.view = epoch{view_.load()};
    bus::deliver_fn deliver;
    {
      const std::lock_guard lock{guard_};
      const auto found = bound_.find(mail.to);
      if (found == bound_.end())
        return fail(ec::not_found, "no actor at {}", mail.to);
      deliver = found->second;
    }
    deliver(std::move(mail));
    return {};
  }
  std::uint64_t number() override { return ++last_number_; }

  result<void> watch(const address& path, const address& watcher) override {
    {
      const std::lock_guard lock{guard_};
      if (bound_.contains(path)) {
        watched_[path].push_back(watcher);
        return {};
      }
    }
    tell_down(path, watcher, {ec::not_found, "no actor at " + path});
    return {};
  }

  void unwatch(const address& path, const address& watcher) override {
    const std::lock_guard lock{guard_};
    if (const auto found = watched_.find(path); found != watched_.end())
      std::erase(found->second, watcher);
  }
  void set_view(epoch view) override { view_.store(view.v); }

  bus::peer self() const override { return {"/test", incarnation{1}, {}, {}, {}}; }
  bus::post_office_stats stats() const override { return {}; }

private:
  void tell_down(const address& path, const address& watcher, const error& reason) {
    envelope mail;
    mail.to = watcher;
    mail.from = path;
    mail.body = parcel::of(proto::actor_down{path, {}, reason.code, reason.what});
    [[maybe_unused]] const auto outcome = post(std::move(mail));
  }

  mutable std::mutex guard_;
  std::map<address, bus::deliver_fn> bound_;
  std::map<address, std::vector<address>> watched_;
  std::map<address, bus::peer> routes_;
  std::atomic<std::uint64_t> last_number_{0}, view_{0};
};

} // namespace di::test
