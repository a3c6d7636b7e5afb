// SPDX-License-Identifier: Apache-2.0
// Goal: whatever comes and goes, each accepted request gets exactly one answer, in time. Method:
// three steady post offices ask each other and a fourth that is replaced again and again; answers
// are counted per request number.
#include "messaging/proto/bus.hpp"
#include "tests/support/bus_pair.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

namespace di::test {
namespace {

constexpr int steady = 3;
constexpr int lives = 8;
constexpr int asks_per_life = 400; ///< per steady office

/// One process: an actor that echoes, and one that asks and counts what comes back.
class station {
public:
  station(const run_dir& dir, address prefix)
      : prefix_{std::move(prefix)}, office_{start(ipc_options(dir, prefix_))} {
    bus::post_office* o = office_.get();
    DI_CHECK(o->bind(prefix_ + "/echo", [o](envelope mail) {
                if (mail.kind != mail_kind::request)
                  return;
                if (const auto* m = mail.body.as<ping>())
                  static_cast<void>(o->post(reply(mail, *m)));
                else if (const auto* r = mail.body.as<rows>())
                  static_cast<void>(o->post(reply(mail, *r)));
              }).ok());
    DI_CHECK(o->bind(prefix_ + "/asker", [c = counts_](envelope mail) {
                const std::lock_guard lock{c->guard};
                ++c->answers[mail.request];
                c->replies += mail.kind == mail_kind::reply;
              }).ok());
  }

  void ask(const address& whom, std::uint64_t n) {
    envelope mail = n % 4 == 0 ? request(*office_, whom + "/echo", prefix_ + "/asker",
                                         rows{n, data_}, std::chrono::seconds{5})
                               : request(*office_, whom + "/echo", prefix_ + "/asker", ping{n, ""},
                                         std::chrono::seconds{5});
    const std::uint64_t number = mail.request;
    if (office_->post(std::move(mail)).ok())
      asked_.insert(number);
  }

  bool all_answered() const {
    const std::lock_guard lock{counts_->guard};
    return counts_->answers.size() >= asked_.size();
  }
  void expect_one_answer_each() const {
    const std::lock_guard lock{counts_->guard};
    EXPECT_EQ(counts_->answers.size(), asked_.size());
    for (const auto& [number, answers] : counts_->answers) {
      EXPECT_EQ(answers, 1) << number;
      EXPECT_TRUE(asked_.contains(number)) << number;
    }
    EXPECT_GT(counts_->replies, asked_.size() / 4);
    EXPECT_EQ(office_->stats().malformed, 0u);
    EXPECT_EQ(office_->stats().attachment_bytes_copied, 0u);
  }
  bus::post_office& office() { return *office_; }

private:
  struct counts {
    std::mutex guard;
    std::map<std::uint64_t, int> answers;
    std::size_t replies = 0;
  };
  address prefix_;
  std::shared_ptr<counts> counts_ = std::make_shared<counts>();
  std::set<std::uint64_t> asked_; ///< used by the asking thread only
  shared_bytes data_ = shared_bytes::adopt(std::vector<char>(20'000, 's'));
  std::unique_ptr<bus::post_office> office_;
};

TEST(bus_storm, gives_each_request_one_answer_while_a_peer_comes_and_goes) {
  const run_dir dir;
  std::vector<std::unique_ptr<station>> stations;
  for (int i = 0; i < steady; ++i)
    stations.push_back(std::make_unique<station>(dir, "/rank/" + std::to_string(i)));
  for (const auto& a : stations)
    for (const auto& b : stations)
      ASSERT_TRUE(a->office().add_route(b->office().self()).ok());

  for (int life = 0; life < lives; ++life) {
    auto guest = std::make_unique<station>(dir, "/rank/9");
    for (const auto& s : stations)
      ASSERT_TRUE(s->office().add_route(guest->office().self()).ok());
    std::atomic<int> half_done{0};
    std::vector<std::thread> askers;
    for (int i = 0; i < steady; ++i)
      askers.emplace_back([&, i] {
        for (int n = 0; n < asks_per_life; ++n) {
          const int whom = n % (steady + 1);
          stations[static_cast<std::size_t>(i)]->ask(
              whom == steady ? "/rank/9" : "/rank/" + std::to_string(whom),
              static_cast<std::uint64_t>(n / 4));
          if (n == asks_per_life / 2)
            ++half_done;
        }
      });
    EXPECT_TRUE(eventually([&] { return half_done == steady; }));
    guest.reset(); // in the middle of it
    for (std::thread& t : askers)
      t.join();
  }
  for (const auto& s : stations) {
    EXPECT_TRUE(eventually([&] { return s->all_answered(); }));
    s->expect_one_answer_each();
  }
}

} // namespace
} // namespace di::test
