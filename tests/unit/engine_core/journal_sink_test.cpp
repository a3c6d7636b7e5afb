// SPDX-License-Identifier: Apache-2.0
// What JOURNAL tells when: nothing before it is written, and nothing wrong while the disk fails.
#include "engine/core/journal_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace di::engine {
namespace {

using test::only;
using test::sent;
using namespace std::chrono_literals;

/// A disk that writes when it is told to.
struct slow_disk final : journal_sink {
  void append(std::uint64_t position, std::uint64_t elapsed, any_record r) override {
    last = position;
    waiting.push_back({0, elapsed, std::move(r)});
  }
  void begin_file(std::uint64_t position, std::uint64_t elapsed,
                  std::vector<any_record> snapshot) override {
    ++files;
    last = position;
    log.clear();
    waiting.clear();
    for (any_record& r : snapshot)
      waiting.push_back({0, elapsed, std::move(r)});
  }
  void write() {
    for (framed_record& r : waiting) {
      r.number = ++number;
      EXPECT_TRUE(append_frame(log, r));
    }
    waiting.clear();
  }
  /// What a new life would find.
  journal_image found() const {
    auto read = recover_log(log, "j");
    EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().what);
    return read.ok() ? read->image : journal_image{};
  }

  std::vector<framed_record> waiting;
  std::vector<std::byte> log;
  std::uint64_t last = 0, number = 0, files = 0;
};

struct fixture : ::testing::Test {
  slow_disk disk;
  outbox out;
  instant now;

  journal_options options(std::optional<journal_image> recovered = {}) {
    journal_options o;
    o.sink = &disk;
    o.recovered = std::move(recovered);
    return o;
  }
  void written(journal_core& core, bool failing = false, std::uint64_t position = ~0ULL) {
    proto::journal_written m;
    if (!failing)
      disk.write();
    m.position = failing && position == ~0ULL ? 0 : std::min(position, disk.last);
    m.file = disk.files;
    m.file_bytes = disk.log.size();
    m.failing = failing;
    m.what = failing ? "No space left on device" : "";
    ASSERT_TRUE(core.on(m, now, out));
    core.check();
  }
};

proto::open_request request(std::uint64_t id, std::uint32_t n = 1, bool keep = true) {
  proto::open_request m;
  m.spec.request = request_id{id};
  m.spec.gateway = "/gateway/0";
  m.spec.prompt = {1, 2, 3};
  m.spec.sampling.max_tokens = 8;
  m.spec.sampling.n = n;
  m.keep = keep;
  return m;
}

proto::tokens_committed tokens(std::uint64_t id, std::uint32_t first, std::vector<token_id> ids,
                               bool ended = false) {
  proto::tokens_committed m;
  m.request = request_id{id};
  m.attempt = 1;
  m.rank = rank_id{2};
  m.life = incarnation{20};
  m.first_index = first;
  m.tokens = std::move(ids);
  if (ended)
    m.end = {proto::finish_reason::length,
             -1,
             first + static_cast<std::uint32_t>(m.tokens.size()),
             ec::ok,
             {}};
  return m;
}

TEST_F(fixture, tells_nobody_before_it_is_written) {
  journal_core core{options()};
  core.start(now, out);
  written(core);
  ASSERT_TRUE(core.on(request(1), now, out));
  EXPECT_TRUE(sent<proto::request_opened>(out).empty());
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  written(core);
  EXPECT_EQ(sent<proto::request_opened>(out).size(), 1U);
  EXPECT_EQ(sent<proto::admit_request>(out).size(), 1U);
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 0, {7, 8}), now, out));
  ASSERT_TRUE(core.on(tokens(1, 2, {9}, true), now, out));
  EXPECT_TRUE(sent<proto::commit_accepted>(out).empty());
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  core.check();
  ASSERT_TRUE(core.on_due({1, 0}, now + 10s, out)); // and not by repeating itself either
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  written(core);
  EXPECT_EQ(sent<proto::commit_accepted>(out).back().second.next_index, 3U);
  EXPECT_TRUE(sent<proto::commit_accepted>(out).back().second.ended);
  const auto shown = sent<proto::tokens_released>(out);
  ASSERT_EQ(shown.size(), 2U);
  EXPECT_EQ(shown[1].second.first_index, 2U);
}

TEST_F(fixture, writes_a_view_before_it_answers) {
  journal_core core{options()};
  core.start(now, out);
  const proto::view_committed view{epoch{4}, {{rank_id{0}, node_id{0}, incarnation{1}, "/rank/0"}}};
  ASSERT_TRUE(core.on(proto::record_view{view}, reply_to{"/control/membership", 9}, now, out));
  EXPECT_TRUE(out.empty());
  written(core);
  ASSERT_EQ(out.effects().size(), 1U);
  const auto* reply = std::get_if<effect::reply>(&out.effects()[0]);
  ASSERT_NE(reply, nullptr);
  EXPECT_EQ(reply->ticket.request, 9U);
  EXPECT_EQ(disk.found().view->view, epoch{4});
}

TEST_F(fixture, refuses_and_pauses_while_the_disk_is_full) {
  journal_core core{options()};
  core.start(now, out);
  ASSERT_TRUE(core.on(request(1), now, out));
  written(core);
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out));
  written(core);
  out.take();
  ASSERT_TRUE(core.on(tokens(1, 1, {8}), now, out));
  written(core, true, disk.last - 1);
  ASSERT_TRUE(core.on(request(2), now, out));
  const auto refused = only<proto::request_closed>(out);
  EXPECT_EQ(refused.end.code, ec::unavailable);
  EXPECT_NE(refused.end.what.find("No space left"), std::string::npos) << refused.end.what;
  EXPECT_TRUE(sent<proto::commit_accepted>(out).empty());
  EXPECT_TRUE(sent<proto::tokens_released>(out).empty());
  EXPECT_TRUE(core.on(proto::get_journal{}).value().failing);
  written(core); // it is back
  EXPECT_EQ(only<proto::commit_accepted>(out).next_index, 2U);
  EXPECT_EQ(only<proto::tokens_released>(out).tokens, (std::vector<token_id>{8}));
  ASSERT_TRUE(core.on(request(2), now, out)); // GATEWAY may ask again
  written(core);
  EXPECT_EQ(sent<proto::request_opened>(out).size(), 1U);
}

TEST_F(fixture, ends_a_request_at_its_deadline_with_what_was_written) {
  journal_core core{options()};
  core.start(now, out);
  auto m = request(1);
  m.spec.deadline_ms = 1000;
  ASSERT_TRUE(core.on(m, now, out));
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out));
  written(core);
  ASSERT_TRUE(core.on(tokens(1, 1, {8}), now, out));
  ASSERT_TRUE(core.on(tokens(1, 2, {9}, true), now, out));
  written(core, true, disk.last - 3); // two commits and the end
  out.take();
  now = now + 2s;
  ASSERT_TRUE(core.on_due({2, 1}, now, out));
  core.check();
  const auto shown = only<proto::tokens_released>(out);
  EXPECT_TRUE(shown.tokens.empty());
  written(core);
  const request_image kept = disk.found().requests.at(request_id{1});
  EXPECT_TRUE(kept.closed);
}

TEST_F(fixture, goes_on_from_memory_if_told_so) {
  journal_core core{options()};
  core.start(now, out);
  written(core);
  proto::journal_written m;
  m.failing = m.in_memory = true;
  m.file = disk.files;
  m.what = "Input/output error";
  ASSERT_TRUE(core.on(m, now, out));
  ASSERT_TRUE(core.on(request(1), now, out));
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out));
  m.position = disk.last; // as good as written
  ASSERT_TRUE(core.on(m, now, out));
  EXPECT_EQ(only<proto::commit_accepted>(out).next_index, 1U);
  m.needs_snapshot = true;
  ASSERT_TRUE(core.on(m, now, out));
  written(core);
  EXPECT_EQ(disk.found().requests.at(request_id{1}).choices[0].tokens, (std::vector<token_id>{7}));
}

TEST_F(fixture, begins_another_file_when_little_of_one_counts) {
  auto o = options();
  o.file_bytes_max = 4096;
  journal_core core{o};
  core.start(now, out);
  written(core);
  for (std::uint64_t id = 1; id <= 200; ++id) {
    ASSERT_TRUE(core.on(request(id), now, out));
    ASSERT_TRUE(core.on(tokens(id, 0, {7, 8}, true), now, out));
    written(core);
    ASSERT_TRUE(core.on(proto::answer_delivered{request_id{id}}, now, out));
    written(core);
    ASSERT_LT(disk.log.size(), 6000U);
    out.take();
  }
  EXPECT_GT(disk.files, 5U);
  EXPECT_EQ(disk.found().forgotten.runs().size(), 1U);
  EXPECT_TRUE(disk.found().requests.empty());
}

TEST_F(fixture, goes_on_where_an_earlier_life_stopped) {
  journal_image found;
  {
    journal_core core{options()};
    core.start(now, out);
    auto m = request(1);
    m.spec.deadline_ms = 10'000;
    ASSERT_TRUE(core.on(m, now, out));
    ASSERT_TRUE(core.on(request(2, 2), now, out));
    ASSERT_TRUE(core.on(request(3), now, out));
    proto::request_admitted placed{request_id{1}, 1, true, rank_id{2}, incarnation{20}};
    ASSERT_TRUE(core.on(placed, now, out));
    ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out));
    ASSERT_TRUE(core.on(tokens(3, 0, {5, 6}, true), now, out));
    written(core);
    now = now + 4s;
    ASSERT_TRUE(core.on(tokens(1, 1, {8}), now, out));
    ASSERT_TRUE(core.on(proto::answer_delivered{request_id{4}}, now, out)); // unknown: nothing
    written(core);
    found = disk.found();
  }
  out.take();
  now = now + 60s; // as long as nobody was there
  journal_core core{options(found)};
  core.start(now, out);
  core.check();
  written(core);
  const auto admitted = sent<proto::admit_request>(out);
  ASSERT_EQ(admitted.size(), 2U); // 3 had ended
  EXPECT_EQ(admitted[0].second.attempt, 1U);
  EXPECT_EQ(admitted[0].second.placed_rank, rank_id{2});
  EXPECT_EQ(admitted[0].second.placed_life, incarnation{20});
  EXPECT_EQ(admitted[0].second.progress[0].tokens, (std::vector<token_id>{7, 8}));
  EXPECT_EQ(admitted[0].second.deadline_left_ms, 6'000U);
  out.take();
  ASSERT_TRUE(core.on(request(3), now, out)); // a fresh GATEWAY asks
  EXPECT_EQ(sent<proto::request_opened>(out).size(), 1U);
  const auto shown = only<proto::tokens_released>(out);
  EXPECT_EQ(shown.first_index, 0U);
  EXPECT_EQ(shown.tokens, (std::vector<token_id>{5, 6}));
  EXPECT_EQ(shown.end.reason, proto::finish_reason::length);
  ASSERT_TRUE(core.on(proto::answer_delivered{request_id{3}}, now, out));
  out.take();
  ASSERT_TRUE(core.on(request(3), now, out)); // late: opens nothing
  EXPECT_EQ(only<proto::request_closed>(out).end.code, ec::duplicate);
  ASSERT_TRUE(core.on(tokens(1, 0, {7, 8, 9}), now, out)); // a rank that heard nothing
  written(core);
  EXPECT_EQ(only<proto::commit_accepted>(out).next_index, 3U);
  EXPECT_EQ(core.on(proto::get_journal{}).value().repeated, 2U);
}

/// A rank that has dropped an attempt never takes it again.
TEST_F(fixture, lets_ranks_drop_a_request_only_when_its_end_is_written) {
  journal_core core{options()};
  core.start(now, out);
  ASSERT_TRUE(core.on(request(1), now, out));
  ASSERT_TRUE(core.on(proto::request_admitted{request_id{1}, 1, true, rank_id{2}, incarnation{20}},
                      now, out));
  written(core);
  out.take();
  ASSERT_TRUE(core.on(proto::cancel_request{request_id{1}}, now, out));
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out));
  EXPECT_TRUE(sent<proto::release_request>(out).empty());
  EXPECT_TRUE(sent<proto::commit_refused>(out).empty());
  EXPECT_FALSE(disk.found().requests.at(request_id{1}).closed) << "what a later life would find";
  written(core);
  EXPECT_TRUE(only<proto::release_request>(out).withdraw);
  ASSERT_TRUE(core.on(tokens(1, 0, {7}), now, out)); // it asks again
  EXPECT_EQ(sent<proto::commit_refused>(out).size(), 1U);
}

TEST_F(fixture, opens_requests_beside_any_number_that_are_kept) {
  auto o = options();
  o.open_max = 2;
  journal_core core{o};
  core.start(now, out);
  written(core);
  for (std::uint64_t id = 1; id <= 5; ++id) { // nobody says that they are delivered
    ASSERT_TRUE(core.on(request(id), now, out));
    ASSERT_TRUE(core.on(tokens(id, 0, {7, 8}, true), now, out));
    written(core);
  }
  EXPECT_TRUE(sent<proto::request_closed>(out).empty());
  EXPECT_EQ(core.on(proto::get_journal{}).value().closed, 5U);
  for (std::uint64_t id = 6; id <= 8; ++id)
    ASSERT_TRUE(core.on(request(id), now, out));
  EXPECT_EQ(only<proto::request_closed>(out).request, request_id{8}) << "two are open";
  core.check();
}

/// All choices had ended, but the life before did not say so.
TEST_F(fixture, begins_its_file_before_it_writes_to_it) {
  struct strict final : journal_sink {
    void append(std::uint64_t, std::uint64_t, any_record) override { EXPECT_TRUE(begun); }
    void begin_file(std::uint64_t, std::uint64_t, std::vector<any_record> all) override {
      begun = true;
      snapshot = std::move(all);
    }
    bool begun = false;
    std::vector<any_record> snapshot;
  } strict_disk;
  journal_image found;
  request_image& had = found.requests[request_id{1}];
  had.spec = request(1).spec;
  had.keep = true;
  had.choices.resize(1);
  had.choices[0].tokens = {7};
  had.choices[0].end.reason = proto::finish_reason::stop;
  auto o = options(found);
  o.sink = &strict_disk;
  journal_core core{o};
  core.start(now, out);
  core.check();
  EXPECT_TRUE(sent<proto::admit_request>(out).empty());
  const auto closed =
      std::count_if(strict_disk.snapshot.begin(), strict_disk.snapshot.end(), [](const auto& r) {
        return std::holds_alternative<journal_record::closed>(r);
      });
  EXPECT_EQ(closed, 1);
}

} // namespace
} // namespace di::engine
