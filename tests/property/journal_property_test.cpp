// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a crash of the control process takes, what anyone was told is recovered, and each
// (request, choice, index) is accepted once. Method: random requests, commits, repeats, view
// changes and deaths against a disk that writes late, fails at times and keeps any prefix of the
// last group at a crash.
#include "engine/core/journal_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <random>

namespace di::engine {
namespace {

using test::sent;
using namespace std::chrono_literals;

/// Token that every rank computes at a place: a changed one would show.
token_id token_at(std::uint64_t request, std::uint32_t choice, std::uint32_t index) {
  return static_cast<token_id>((request * 7919 + choice * 104'729 + index * 31) % 50'000);
}

struct late_disk final : journal_sink {
  std::vector<std::byte> log;
  std::vector<std::pair<std::uint64_t, framed_record>> waiting;
  std::uint64_t number = 0, written = 0, files = 0;

  void append(std::uint64_t position, std::uint64_t elapsed, any_record r) override {
    waiting.push_back({position, {0, elapsed, std::move(r)}});
  }
  void begin_file(std::uint64_t position, std::uint64_t elapsed,
                  std::vector<any_record> snapshot) override {
    log.clear();
    waiting.clear();
    ++files;
    for (any_record& r : snapshot)
      DI_CHECK(append_frame(log, {++number, elapsed, std::move(r)}));
    written = position;
  }
  std::vector<std::byte> group(std::size_t records) {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < records; ++i) {
      waiting[i].second.number = ++number;
      DI_CHECK(append_frame(bytes, waiting[i].second));
      written = waiting[i].first;
    }
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(records));
    return bytes;
  }
  void write(std::size_t records) {
    const auto bytes = group(std::min(records, waiting.size()));
    log.insert(log.end(), bytes.begin(), bytes.end());
  }
};

class story {
public:
  explicit story(std::uint64_t seed) : random_{seed} {}

  void run() {
    begin({});
    for (int step = 0; step < 400; ++step) {
      now_ = now_ + 10ms;
      switch (draw(12)) {
      case 0:
      case 1:
        open();
        break;
      case 2:
        disk_.write(draw(6));
        tell(draw(8) == 0);
        break;
      case 3:
        if (draw(12) == 0)
          crash();
        break;
      case 4:
        deliver();
        break;
      case 5:
        if (draw(4) == 0)
          lose_a_rank();
        break;
      default:
        commit();
      }
      hear();
      core_->check();
    }
    finish();
  }

private:
  struct of_request {
    bool delivered = false;
    std::uint32_t attempt = 0;
    std::uint32_t accepted = 0;  ///< index that the attempt goes on from
    std::uint32_t told = 0;      ///< index that any rank was told
    std::vector<token_id> shown; ///< by this life of GATEWAY
    bool end_shown = false;
  };
  static constexpr std::uint32_t length = 6;

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  void begin(std::optional<journal_image> found) {
    journal_options o;
    o.sink = &disk_;
    o.file_bytes_max = 2000;
    o.recovered = std::move(found);
    core_ = std::make_unique<journal_core>(o);
    core_->start(now_, out_);
    tell(false);
  }

  void open() { ask(1 + draw(12)); }

  void ask(std::uint64_t id) {
    if (known_[id].delivered)
      return;
    proto::open_request m;
    m.spec.request = request_id{id};
    m.spec.gateway = "/gateway/0";
    m.spec.prompt = {1, 2};
    m.spec.sampling.max_tokens = length;
    m.keep = true;
    ASSERT_TRUE(core_->on(m, now_, out_));
  }

  void commit() {
    const std::uint64_t id = 1 + draw(12);
    of_request& r = known_[id];
    if (r.attempt == 0)
      return;
    proto::tokens_committed m;
    m.request = request_id{id};
    m.attempt = draw(8) == 0 ? static_cast<std::uint32_t>(1 + draw(r.attempt)) : r.attempt;
    m.rank = rank_id{static_cast<std::uint32_t>(id % 3)};
    m.life = life_[id % 3];
    m.first_index = static_cast<std::uint32_t>(draw(r.accepted + 1)); // repeats some
    const auto end =
        std::min<std::uint32_t>(length, m.first_index + static_cast<std::uint32_t>(draw(4)));
    for (std::uint32_t i = m.first_index; i < end; ++i)
      m.tokens.push_back(token_at(id, 0, i));
    if (end == length)
      m.end = {proto::finish_reason::length, -1, length, ec::ok, {}};
    ASSERT_TRUE(core_->on(m, now_, out_));
  }

  void lose_a_rank() {
    const std::uint64_t rank = draw(3);
    life_[rank] = incarnation{++lives_};
    proto::view_committed v{epoch{++view_}, {}};
    for (std::uint32_t r = 0; r < 3; ++r)
      v.members.push_back({rank_id{r}, node_id{0}, life_[r], fmt::format("/rank/{}", r)});
    ASSERT_TRUE(core_->on(proto::record_view{v}, reply_to{"/control/membership", 1}, now_, out_));
    ASSERT_TRUE(core_->on(v, now_, out_));
  }

  void deliver() {
    for (auto& [id, r] : known_)
      if (r.end_shown && !r.delivered && draw(2) == 0) {
        r.delivered = true; // the line is written: no life will ask again
        ASSERT_TRUE(core_->on(proto::answer_delivered{request_id{id}}, now_, out_));
      }
  }

  void tell(bool failing) {
    proto::journal_written m;
    m.position = disk_.written;
    m.file = disk_.files;
    m.file_bytes = disk_.log.size();
    m.failing = failing;
    ASSERT_TRUE(core_->on(m, now_, out_));
  }

  /// Takes what was told to others as given from now on.
  void hear() {
    for (const auto& [to, m] : sent<proto::admit_request>(out_)) {
      of_request& r = known_[m.spec.request.v];
      ASSERT_GE(m.attempt, r.attempt) << "an attempt was opened twice";
      r.attempt = m.attempt;
      if (!m.progress.empty())
        r.accepted = static_cast<std::uint32_t>(m.progress[0].tokens.size());
    }
    for (const auto& [to, m] : sent<proto::commit_accepted>(out_)) {
      of_request& r = known_[m.request.v];
      if (m.attempt == r.attempt)
        r.accepted = std::max(r.accepted, m.next_index);
      r.told = std::max(r.told, m.next_index);
    }
    for (const auto& [to, m] : sent<proto::tokens_released>(out_)) {
      of_request& r = known_[m.request.v];
      ASSERT_LE(m.first_index, r.shown.size());
      for (std::size_t i = 0; i < m.tokens.size(); ++i) {
        const std::size_t index = m.first_index + i;
        ASSERT_EQ(m.tokens[i], token_at(m.request.v, 0, static_cast<std::uint32_t>(index)));
        if (index == r.shown.size())
          r.shown.push_back(m.tokens[i]);
      }
      r.end_shown |= m.end.reason != proto::finish_reason::none;
    }
    for (const any_effect& e : out_.effects())
      if (const auto* reply = std::get_if<effect::reply>(&e))
        if (const auto* v = reply->body.as<proto::view_recorded>())
          view_told_ = std::max(view_told_, v->view.v);
    for (const auto& [to, m] : sent<proto::request_closed>(out_))
      ASSERT_NE(m.end.code, ec::corrupt) << m.end.what;
    out_.take();
  }

  void crash() {
    hear();
    // Some of the last group may have got out, in part.
    auto rest = disk_.group(draw(disk_.waiting.size() + 1));
    rest.resize(draw(rest.size() + 1));
    disk_.log.insert(disk_.log.end(), rest.begin(), rest.end());
    auto found = recover_log(disk_.log, "j");
    ASSERT_TRUE(found.ok()) << found.error().what;
    ASSERT_TRUE(found->complete);
    const journal_image& image = found->image;
    ASSERT_GE(image.view ? image.view->view.v : 0, view_told_);
    for (auto& [id, r] : known_) {
      if (r.delivered && !image.requests.contains(request_id{id}))
        continue;
      const auto at = image.requests.find(request_id{id});
      if (at == image.requests.end()) {
        ASSERT_EQ(r.attempt, 0U) << "request " << id << " is lost";
        continue;
      }
      ASSERT_GE(at->second.attempt, r.attempt) << id;
      ASSERT_GE(at->second.choices[0].tokens.size(), r.shown.size()) << id;
      ASSERT_GE(at->second.choices[0].tokens.size(), r.told) << id;
      if (r.end_shown) {
        ASSERT_NE(at->second.choices[0].end.reason, proto::finish_reason::none) << id;
      }
      r.shown.clear(); // a fresh GATEWAY
      r.end_shown = false;
    }
    disk_.waiting.clear();
    disk_.number = image.number;
    disk_.written = 0;
    now_ = now_ + 1s;
    begin(image);
    ++crashes_;
    for (auto& [id, r] : known_)
      if (r.attempt > 0 && !r.delivered)
        ask(id);
  }

  void finish() {
    for (int round = 0; round < 60; ++round) {
      now_ = now_ + 10s;
      disk_.write(~std::size_t{0});
      tell(false);
      ASSERT_TRUE(core_->on_due({1, 0}, now_, out_));
      hear();
      for (auto& [id, r] : known_) {
        if (r.attempt == 0 || r.end_shown)
          continue;
        proto::tokens_committed m;
        m.request = request_id{id};
        m.attempt = r.attempt;
        m.rank = rank_id{static_cast<std::uint32_t>(id % 3)};
        m.life = life_[id % 3];
        for (std::uint32_t i = 0; i < length; ++i)
          m.tokens.push_back(token_at(id, 0, i));
        m.end = {proto::finish_reason::length, -1, length, ec::ok, {}};
        ASSERT_TRUE(core_->on(m, now_, out_));
      }
      core_->check();
    }
    for (auto& [id, r] : known_)
      if (r.attempt > 0) {
        ASSERT_TRUE(r.end_shown || r.delivered) << "request " << id << " never ended";
        ASSERT_TRUE(r.delivered || r.shown.size() == length) << id;
      }
  }

  std::mt19937_64 random_;
  late_disk disk_;
  std::unique_ptr<journal_core> core_;
  outbox out_;
  instant now_;
  std::map<std::uint64_t, of_request> known_;
  incarnation life_[3] = {incarnation{1}, incarnation{2}, incarnation{3}};
  std::uint64_t lives_ = 3, view_ = 0, view_told_ = 0;

public:
  int crashes_ = 0;
};

TEST(journal_property, recovers_what_anyone_was_told) {
  int crashes = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    story one{seed};
    one.run();
    crashes += one.crashes_;
    if (HasFatalFailure())
      return;
  }
  EXPECT_GT(crashes, 300);
}

} // namespace
} // namespace di::engine
