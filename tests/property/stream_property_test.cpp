// SPDX-License-Identifier: Apache-2.0
// Goal: whatever dies and whatever clients do, each client hears each index once, in order and with
// the tokens that any rank must answer, and nothing is kept longer than it should. Method: clients
// that submit, leave, come back, cancel and find ends at random, while gateways, ranks and the
// control process die; then calm, and everything must be empty.
#include "tests/support/stream_world.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::test {
namespace {

using namespace std::chrono_literals;
using ::testing::Test;

/// One logical client; may have had several connections.
struct client {
  request_id id;
  actors::stream_order order;
  std::vector<toy_steps::answer> oracle; ///< per choice
  std::vector<std::uint32_t> seen;       ///< per choice, over all connections
  std::vector<bool> ended;
  std::vector<std::uint32_t> kept; ///< by its own end_choice; 0: none
  std::shared_ptr<actors::stream_listener> connection;
  bool opened = false, over = false, asking = false;
  instant away_since;
  std::string why; ///< how it was over, if not by its ends

  bool complete() const {
    return std::all_of(ended.begin(), ended.end(), [](bool e) { return e; });
  }
};

/// Hears for its client as long as it is the client's connection.
class connection final : public actors::stream_listener {
public:
  connection(client& c, stream_world& world) : client_{c}, world_{world} {}
  void opened() override { client_.opened = true; }
  void known(request_id, bool) override { ADD_FAILURE() << "known without dedup"; }
  void tokens(const proto::tokens_released& m) override {
    if (!current())
      return; // its client has gone; the desk has not heard of it yet
    client_.opened = true;
    ASSERT_LT(m.choice, client_.seen.size());
    std::uint32_t& seen = client_.seen[m.choice];
    const toy_steps::answer& expected = client_.oracle[m.choice];
    ASSERT_FALSE(ended_.contains(m.choice)) << "tokens behind the end";
    ASSERT_EQ(m.first_index, seen) << "request " << client_.id.v;
    ASSERT_LE(seen + m.tokens.size(), expected.tokens.size());
    for (const token_id t : m.tokens)
      ASSERT_EQ(t, expected.tokens[seen++]) << "request " << client_.id.v;
    if (m.end.reason == proto::finish_reason::none)
      return;
    ended_.insert(m.choice);
    client_.ended[m.choice] = true;
    if (m.end.reason == proto::finish_reason::stop
        || m.end.reason == proto::finish_reason::length) {
      if (seen < expected.tokens.size()) {
        EXPECT_GT(client_.kept[m.choice], 0U) << "ended early";
        EXPECT_EQ(m.end.kept_tokens, client_.kept[m.choice]);
      }
    } else {
      client_.why = m.end.what;
    }
    if (client_.complete())
      end();
  }
  void ended(const proto::choice_end& why, std::uint32_t) override {
    if (!current())
      return;
    client_.connection.reset();
    client_.away_since = world_.net().now();
    if (why.code == ec::unavailable && client_.opened && client_.order.detached_ms > 0)
      return; // its gateway died: it comes back
    client_.why = why.what;
    client_.over = true;
  }

private:
  bool current() const { return client_.connection.get() == this; }
  void end() {
    client_.over = true;
    client_.connection.reset();
  }
  client& client_;
  stream_world& world_;
  std::set<std::uint32_t> ended_;
};

struct story_counts {
  int crashes = 0, gateways = 0, ranks = 0, resumed = 0, aborts = 0, stops = 0, complete = 0;
};

class story {
public:
  explicit story(std::uint64_t seed)
      : random_{seed}, stored_bytes_{seed % 2 == 0 ? 6'000U : 1U << 30U}, world_{seed, options()} {}

  void run(story_counts& counts) {
    counts_ = &counts;
    for (int turns = 0; turns < 4000 && ok(); ++turns) {
      world_.turn(1s);
      if (draw(6) == 0)
        act();
    }
    calm();
  }

private:
  engine::journal_options options() const {
    engine::journal_options o;
    o.orphaned_after = 5s;
    o.stored_bytes_max = stored_bytes_;
    o.file_bytes_max = 20'000;
    return o;
  }
  bool ok() const { return !Test::HasFailure(); }
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  actors::gateway_desk& any_desk() { return world_.desk(static_cast<std::uint32_t>(draw(2))); }

  client* any(bool connected) {
    if (clients_.empty())
      return nullptr;
    client& c = *clients_[draw(clients_.size())];
    return !c.over && !c.asking && (c.connection != nullptr) == connected ? &c : nullptr;
  }

  void act() {
    switch (draw(40)) {
    case 0:
      if (draw(8) == 0) {
        ++counts_->crashes;
        world_.restart_control(draw(2) == 0);
      }
      break;
    case 1:
      if (draw(4) == 0) {
        ++counts_->gateways;
        const auto g = static_cast<std::uint32_t>(draw(2));
        world_.kill_gateway(g);
        world_.start_gateway(g);
      }
      break;
    case 2:
      if (draw(6) == 0) {
        ++counts_->ranks;
        world_.replace_rank(static_cast<std::uint32_t>(draw(2)));
      }
      break;
    case 3:
    case 4:
      cancel();
      break;
    case 5:
    case 6:
      leave();
      break;
    case 7:
    case 8:
      if (client* c = any(true))
        find_end(*c);
      break;
    case 9:
      if (client* c = any(true))
        attach(*c); // a second connection
      break;
    case 10:
    case 11:
    case 12:
    case 13:
      if (client* c = any(false))
        attach(*c);
      break;
    default:
      if (open_clients() < 24)
        submit();
    }
  }

  std::size_t open_clients() const {
    return static_cast<std::size_t>(
        std::count_if(clients_.begin(), clients_.end(), [](const auto& c) { return !c->over; }));
  }

  void submit() {
    auto c = std::make_unique<client>();
    proto::request_spec& spec = c->order.spec;
    for (std::uint64_t n = 1 + draw(30); n > 0; --n)
      spec.prompt.push_back(static_cast<token_id>(1 + draw(12)));
    spec.sampling.max_tokens = static_cast<std::uint32_t>(1 + draw(40));
    spec.sampling.n = static_cast<std::uint32_t>(1 + draw(2));
    spec.sampling.seed = random_();
    spec.prefix = proto::prefix_mode::exact;
    c->order.detached_ms = draw(3) == 0 ? 0 : 3'000;
    c->order.keep_ms = draw(2) == 0 ? 0 : 20'000;
    for (std::uint32_t i = 0; i < spec.sampling.n; ++i)
      c->oracle.push_back(toy_steps::generate(spec, i));
    c->seen.resize(spec.sampling.n);
    c->kept.resize(spec.sampling.n);
    c->ended.resize(spec.sampling.n);
    c->connection = std::make_shared<connection>(*c, world_);
    c->id = any_desk().submit(c->order, c->connection);
    clients_.push_back(std::move(c));
  }

  void cancel() {
    client* c = any(draw(2) == 0);
    if (!c)
      return;
    ++counts_->aborts;
    c->connection.reset();
    c->over = true;
    any_desk().cancel(c->id); // any gateway may
  }

  void leave() {
    client* c = any(true);
    if (!c)
      return;
    const auto connection = std::exchange(c->connection, nullptr);
    for (std::uint32_t g = 0; g < stream_world::gateways; ++g)
      world_.desk(g).leave(c->id, connection);
    c->away_since = world_.net().now();
    if (c->order.detached_ms == 0) {
      ++counts_->aborts;
      c->over = true;
    }
  }

  void find_end(client& c) {
    const auto choice = static_cast<std::uint32_t>(draw(c.seen.size()));
    if (c.seen[choice] == 0 || c.ended[choice] || c.kept[choice] > 0)
      return;
    ++counts_->stops;
    c.kept[choice] = c.seen[choice];
    for (std::uint32_t g = 0; g < stream_world::gateways; ++g)
      world_.desk(g).end_choice(c.id, choice, c.kept[choice], 0);
  }

  /// It comes back, at any gateway, with what it has seen.
  void attach(client& c) {
    if (!c.opened)
      return;
    c.asking = true;
    c.connection.reset();
    std::fill(c.ended.begin(), c.ended.end(), false); // ends come again
    auto fresh = std::make_shared<connection>(c, world_);
    any_desk().attach(c.id, c.seen, fresh, [&c, fresh, this](auto answer) {
      c.asking = false;
      if (c.over)
        return;
      if (answer.ok()) {
        ++counts_->resumed;
        EXPECT_EQ(answer->spec.prompt, c.order.spec.prompt);
        c.connection = fresh;
        return;
      }
      if (answer.error().code != ec::not_found) {
        c.away_since = std::min(c.away_since, world_.net().now());
        return; // it tries again
      }
      c.over = true;
      c.why = "gone";
      const auto away = world_.net().now() - c.away_since;
      EXPECT_TRUE(c.order.detached_ms == 0 || away >= 2'900ms || stored_bytes_ == 6'000)
          << "request " << c.id.v << " is gone after " << away / 1ms << " ms";
    });
  }

  void calm() {
    for (int round = 0; round < 400 && ok(); ++round) {
      world_.run_for(50ms);
      bool all = true;
      for (auto& c : clients_) {
        all = all && c->over;
        if (!c->over && !c->asking && !c->connection) {
          if (c->opened)
            attach(*c);
          else
            c->over = true; // it never heard of it
        }
      }
      if (all)
        break;
    }
    for (auto& c : clients_) {
      EXPECT_TRUE(c->over) << "request " << c->id.v << " never ended";
      counts_->complete += c->complete();
    }
    EXPECT_EQ(world_.net().failure(), "");
    world_.run_for(12s); // detached ones and orphans are given up
    EXPECT_TRUE(world_.empty());
    const proto::journal_state held = world_.journal_state();
    EXPECT_EQ(held.open, 0U);
    EXPECT_EQ(held.detached, 0U);
    EXPECT_LE(held.stored_bytes, stored_bytes_);
    world_.run_for(30s); // what was kept is forgotten
    EXPECT_EQ(world_.journal_state().stored, 0U);
    EXPECT_TRUE(world_.image().requests.empty());
    EXPECT_EQ(world_.net().failure(), "");
  }

  std::mt19937_64 random_;
  std::uint64_t stored_bytes_;
  story_counts* counts_ = nullptr;
  std::vector<std::unique_ptr<client>> clients_; // outlive the world, whose desks tell them
  stream_world world_;
};

TEST(stream_property, clients_hear_each_index_once_whatever_dies) {
  story_counts counts;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    story one{seed};
    one.run(counts);
    if (HasFailure())
      return;
  }
  fmt::print("crashes {}, gateways {}, ranks {}, resumed {}, aborts {}, stops {}, complete {}\n",
             counts.crashes, counts.gateways, counts.ranks, counts.resumed, counts.aborts,
             counts.stops, counts.complete);
  EXPECT_GT(counts.crashes, 100);
  EXPECT_GT(counts.gateways, 100);
  EXPECT_GT(counts.resumed, 300);
  EXPECT_GT(counts.stops, 100);
  EXPECT_GT(counts.complete, 1'000);
}

} // namespace
} // namespace di::test
