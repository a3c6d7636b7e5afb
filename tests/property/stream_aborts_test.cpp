// SPDX-License-Identifier: Apache-2.0
// Goal: a client that goes away costs at most the step that is being computed, in whatever phase
// its request is, and leaves nothing behind. Method: ten thousand of them at random moments, with
// small windows, queues and KV, so that requests wait everywhere.
#include "tests/support/stream_world.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::test {
namespace {

using namespace std::chrono_literals;

struct listener final : actors::stream_listener {
  void opened() override { is_opened = true; }
  void known(request_id, bool) override {}
  void tokens(const proto::tokens_released& m) override {
    seen += m.tokens.size();
    ends += m.end.reason != proto::finish_reason::none;
  }
  void ended(const proto::choice_end& why, std::uint32_t) override {
    EXPECT_EQ(why.reason, proto::finish_reason::cancelled) << why.what;
  }
  bool is_opened = false;
  std::size_t seen = 0, ends = 0, choices = 1;
};

struct running {
  request_id id;
  std::uint32_t desk = 0;
  std::shared_ptr<listener> client;
};

class aborts {
public:
  explicit aborts(std::uint64_t seed) : random_{seed}, world_{seed} {}

  void run(std::size_t wanted) {
    while (aborted_.size() < wanted && world_.net().failure().empty()) {
      world_.turn(1s);
      if (open_.size() < 60 && draw(4) == 0)
        submit();
      if (!open_.empty() && draw(12) == 0)
        abort();
      std::erase_if(open_, [](const running& r) { return r.client->ends == r.client->choices; });
    }
    for (const running& r : open_)
      world_.desk(r.desk).leave(r.id, r.client);
    world_.run_for(3s);
    EXPECT_EQ(world_.net().failure(), "");
    EXPECT_TRUE(world_.empty());
    EXPECT_TRUE(world_.image().requests.empty());
    for (const auto& [id, steps] : aborted_)
      for (std::size_t r = 0; r < steps.size(); ++r) {
        const auto& rows = world_.logs()[r].rows_in;
        const auto at = rows.find(id);
        ASSERT_LE(at == rows.end() ? 0 : at->second, steps[r] + 1)
            << "request " << id.v << " on rank " << r;
      }
    for (const auto& [phase, n] : phases_)
      fmt::print("{}: {}\n", phase, n);
    for (const char* phase : {"at the desk", "opened", "prefill", "decode"})
      EXPECT_GT(phases_[phase], wanted / 100) << phase;
  }

private:
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  void submit() {
    actors::stream_order o;
    for (std::uint64_t n = 1 + draw(60); n > 0; --n)
      o.spec.prompt.push_back(static_cast<token_id>(1 + draw(12)));
    o.spec.sampling.max_tokens = static_cast<std::uint32_t>(1 + draw(60));
    o.spec.sampling.n = static_cast<std::uint32_t>(1 + draw(2));
    o.spec.sampling.seed = random_();
    running r;
    r.desk = static_cast<std::uint32_t>(draw(2));
    r.client = std::make_shared<listener>();
    r.client->choices = o.spec.sampling.n;
    r.id = world_.desk(r.desk).submit(std::move(o), r.client);
    open_.push_back(std::move(r));
  }

  void abort() {
    const auto at = open_.begin() + static_cast<std::ptrdiff_t>(draw(open_.size()));
    running r = std::move(*at);
    open_.erase(at);
    std::vector<std::uint64_t> steps;
    bool has_rows = false;
    for (const rank_log& log : world_.logs()) {
      steps.push_back(log.steps);
      has_rows = has_rows || log.rows_in.contains(r.id);
    }
    ++phases_[r.client->seen > 0    ? "decode"
              : has_rows            ? "prefill"
              : r.client->is_opened ? "opened"
                                    : "at the desk"];
    if (draw(2) == 0)
      world_.desk(r.desk).cancel(r.id);
    else
      world_.desk(r.desk).leave(r.id, r.client);
    aborted_.emplace(r.id, std::move(steps));
  }

  std::mt19937_64 random_;
  stream_world world_;
  std::vector<running> open_;
  std::map<request_id, std::vector<std::uint64_t>> aborted_; ///< steps of the ranks at that moment
  std::map<std::string, std::size_t> phases_;
};

TEST(stream_aborts, ten_thousand_leave_nothing_and_cost_one_step_each) {
  aborts one{7};
  one.run(10'000);
}

} // namespace
} // namespace di::test
