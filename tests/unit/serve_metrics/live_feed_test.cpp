// SPDX-License-Identifier: Apache-2.0
// Slow viewers: they hold nobody, miss no event, and get no more than their buffer takes.
#include "launch/serve/live_feed.hpp"
#include "tests/unit/serve_metrics/fake_control.hpp"

#include <gtest/gtest.h>

namespace di::serve {
namespace {

using namespace std::chrono_literals;

/// A client that takes as many writes as a test allows.
class fake_viewer final : public http::exchange {
public:
  explicit fake_viewer(std::size_t room) : room_{room} {}

  bool respond(http::answer) override { return false; }
  bool begin_stream(int status, http::header_list) override { return status == 200; }
  http::written write(std::string_view chunk) override {
    const std::lock_guard lock{guard_};
    if (gone_)
      return http::written::gone;
    if (room_ == 0)
      return http::written::refused;
    text_ += chunk;
    changed_.notify_all();
    return --room_ == 0 ? http::written::full : http::written::ok;
  }
  void end(bool) override {
    const std::lock_guard lock{guard_};
    ended_ = true;
    changed_.notify_all();
  }
  void abort() override {}
  std::size_t queued() const override { return 0; }
  void on_drained(std::function<void()> callback) override { drained_ = std::move(callback); }
  void on_gone(std::function<void(http::gone)>) override {}
  bool is_gone() const override {
    const std::lock_guard lock{guard_};
    return gone_;
  }
  void post(std::function<void()> work) override { work(); }

  void drain(std::size_t room) {
    {
      const std::lock_guard lock{guard_};
      room_ = room;
    }
    drained_();
  }
  void leave() {
    const std::lock_guard lock{guard_};
    gone_ = true;
  }
  bool ended() const {
    const std::lock_guard lock{guard_};
    return ended_;
  }
  std::string text() const {
    const std::lock_guard lock{guard_};
    return text_;
  }
  bool wait_for(const std::string& part, std::size_t times = 1) {
    std::unique_lock lock{guard_};
    return changed_.wait_for(lock, 10s, [&] {
      std::size_t n = 0;
      for (auto at = text_.find(part); at != std::string::npos; at = text_.find(part, at + 1))
        ++n;
      return n >= times;
    });
  }

private:
  mutable std::mutex guard_;
  std::condition_variable changed_;
  std::string text_;
  std::size_t room_;
  bool gone_ = false, ended_ = false;
  std::function<void()> drained_;
};

live_feed_options fast() {
  live_feed_options o;
  o.period = 5ms;
  o.viewers = 2;
  return o;
}

TEST(live_feed, a_slow_viewer_holds_nobody_and_misses_no_event) {
  fake_control control;
  auto reader = *cluster_reader::open(control.office(), "/gateway/0/reader");
  live_feed feed{*reader, fast()};
  const auto slow = std::make_shared<fake_viewer>(3); // hello, the log so far, one state
  const auto quick = std::make_shared<fake_viewer>(1'000'000);
  ASSERT_TRUE(feed.add(slow));
  ASSERT_TRUE(feed.add(quick));
  EXPECT_FALSE(feed.add(std::make_shared<fake_viewer>(9))) << "two at most";
  ASSERT_TRUE(quick->wait_for("event: state", 5));
  auto next = control.get();
  next.keeper->ranks[0].deaths = 1;
  next.keeper->ranks[0].last_reason = "signal 9";
  control.set(next);
  ASSERT_TRUE(quick->wait_for("rank 0 died"));
  ASSERT_TRUE(quick->wait_for("event: state", 10));
  EXPECT_EQ(slow->text().find("rank 0 died"), std::string::npos);
  const auto before = slow->text().size();
  ASSERT_TRUE(quick->wait_for("event: state", 15));
  EXPECT_EQ(slow->text().size(), before) << "nothing is written to a full buffer";
  slow->drain(100);
  EXPECT_TRUE(slow->wait_for("rank 0 died"));
  EXPECT_TRUE(slow->wait_for("event: state", 2));
}

TEST(live_feed, forgets_who_left_and_ends_who_stays) {
  fake_control control;
  auto reader = *cluster_reader::open(control.office(), "/gateway/0/reader");
  const auto left = std::make_shared<fake_viewer>(1'000'000);
  const auto stays = std::make_shared<fake_viewer>(1'000'000);
  {
    live_feed feed{*reader, fast()};
    ASSERT_TRUE(feed.add(left));
    ASSERT_TRUE(feed.add(stays));
    ASSERT_TRUE(left->wait_for("event: state"));
    left->leave();
    ASSERT_TRUE(stays->wait_for("event: state", 3));
    EXPECT_TRUE(feed.add(std::make_shared<fake_viewer>(1'000'000)));
  }
  EXPECT_TRUE(stays->ended());
}

} // namespace
} // namespace di::serve
