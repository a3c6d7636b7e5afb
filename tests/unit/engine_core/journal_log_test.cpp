// SPDX-License-Identifier: Apache-2.0
// The journal as bytes: what is written is read; every cut and every flipped bit gives the prefix
// before it, or an error that says where.
#include "engine/core/journal_image.hpp"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

namespace record = journal_record;

proto::request_spec spec(std::uint64_t id, std::uint32_t n = 1) {
  proto::request_spec s;
  s.request = request_id{id};
  s.gateway = "/gateway/0";
  s.prompt = {1, 200, 70'000};
  s.sampling.n = n;
  s.sampling.max_tokens = 8;
  s.sampling.seed = 0xfedcba9876543210U;
  s.sampling.stop = {"end"};
  s.sampling.logit_bias = {{5, -1.5}};
  s.deadline_ms = 5'000;
  return s;
}

/// A log with a record of every kind.
std::vector<any_record> story() {
  std::vector<any_record> all;
  run_identity run{"contract", "17 bytes", "roles.decode.ep=4", 99};
  all.emplace_back(record::begun{std::string{record::begun::magic_text}, run});
  all.emplace_back(record::snapshot_end{0});
  proto::view_committed view{epoch{3}, {{rank_id{1}, node_id{0}, incarnation{7}, "/rank/1"}}};
  all.emplace_back(record::view{view});
  all.emplace_back(record::opened{spec(1), 1, 5'000, true});
  record::opened followed{spec(2, 2), 1, 4'000, false};
  followed.note = "how to show it";
  followed.dedup = "key";
  followed.dedup_digest = "digest";
  followed.keep_ms = 60'000;
  followed.detached_ms = 1'000;
  followed.attended = true;
  followed.age_ms = 7;
  all.emplace_back(followed);
  all.emplace_back(record::placed{request_id{1}, 1, true, rank_id{1}, incarnation{7}});
  all.emplace_back(record::tokens{request_id{1}, 0, 0, {4, -1, 128}, {}, {}, {}, true, 128});
  record::tokens last{request_id{2}, 1, 0, {9}, {{-0.5, {9, 3}, {-0.5, -2}}}, {}, {}, false, 0};
  last.end = {proto::finish_reason::stop, 0, 1, ec::ok, {}};
  last.timings = {1, 2, 300};
  all.emplace_back(last);
  all.emplace_back(record::placed{request_id{1}, 2, false, {}, {}});
  all.emplace_back(record::tokens{request_id{1}, 0, 3, {5}, {}, {}, {}, true, 128});
  all.emplace_back(record::opened{spec(3), 1, 5'000, false});
  record::closed gone;
  gone.request = request_id{2};
  gone.end.reason = proto::finish_reason::cancelled;
  gone.end.code = ec::cancelled;
  gone.end.what = "gone";
  gone.cut = {{0, 0}};
  all.emplace_back(gone);
  record::closed done;
  done.request = request_id{3};
  all.emplace_back(done);
  all.emplace_back(record::forgotten{3, 3});
  return all;
}

std::vector<std::byte> bytes_of(const std::vector<any_record>& all, std::vector<std::size_t>* ends,
                                std::uint64_t number = 0) {
  std::vector<std::byte> log;
  for (const any_record& r : all) {
    EXPECT_TRUE(append_frame(log, {++number, 10 * number, r}));
    if (ends)
      ends->push_back(log.size());
  }
  return log;
}

TEST(journal_log, gives_back_what_was_written) {
  const auto log = bytes_of(story(), nullptr);
  const auto read = recover_log(log, "j");
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_EQ(read->ended, log_end::clean);
  EXPECT_TRUE(read->complete);
  EXPECT_EQ(read->whole_bytes, log.size());
  const journal_image& image = read->image;
  EXPECT_EQ(image.run, (run_identity{"contract", "17 bytes", "roles.decode.ep=4", 99}));
  ASSERT_TRUE(image.view.has_value());
  EXPECT_EQ(image.view->members[0].life, incarnation{7});
  EXPECT_TRUE(image.forgotten.contains(3));
  ASSERT_EQ(image.requests.size(), 2U);
  const request_image& one = image.requests.at(request_id{1});
  EXPECT_EQ(one.spec.prompt, spec(1).prompt);
  const request_image& followed = image.requests.at(request_id{2});
  EXPECT_EQ(followed.note, "how to show it");
  EXPECT_EQ(followed.dedup + followed.dedup_digest, "keydigest");
  EXPECT_EQ(followed.keep_ms + followed.detached_ms, 61'000U);
  EXPECT_TRUE(followed.attended && followed.closed && !one.attended);
  EXPECT_EQ(followed.opened_at_ms, 50U - 7U);
  EXPECT_EQ(followed.closed_at_ms, 120U);
  EXPECT_EQ(one.spec.sampling.seed, spec(1).sampling.seed);
  EXPECT_EQ(one.spec.sampling.stop, spec(1).sampling.stop);
  EXPECT_EQ(one.spec.sampling.logit_bias[0].bias, -1.5);
  EXPECT_TRUE(one.spec.prefix_recorded);
  EXPECT_EQ(one.attempt, 2U);
  EXPECT_FALSE(one.rank.has_value());
  EXPECT_TRUE(one.keep);
  EXPECT_FALSE(one.closed);
  EXPECT_EQ(one.choices[0].tokens, (std::vector<token_id>{4, -1, 128, 5}));
  EXPECT_EQ(one.deadline_at_ms, 40U + 5'000U); // opened at 40 ms of the journal's time
  const request_image& two = image.requests.at(request_id{2});
  EXPECT_TRUE(two.closed);
  EXPECT_TRUE(two.choices[0].cut);
  EXPECT_EQ(two.choices[0].end.reason, proto::finish_reason::cancelled);
  EXPECT_FALSE(two.choices[1].cut);
  EXPECT_EQ(two.choices[1].end.reason, proto::finish_reason::stop);
  EXPECT_EQ(two.choices[1].timings.decode_us, 300U);
  EXPECT_EQ(two.choices[1].logprobs[0].top_logprobs[1], -2);
}

TEST(journal_log, keeps_the_bytes_of_its_format) {
  std::vector<std::byte> log;
  ASSERT_TRUE(append_frame(
      log, {0x0102, 0x30, record::tokens{request_id{300}, 1, 2, {-3, 64}, {}, {}, {}, false, 0}}));
  std::string hex;
  for (const std::byte b : log)
    hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex, "17000000"         // length
                 "d24da0c5"         // crc32c of all behind it
                 "0201000000000000" // number
                 "3000000000000000" // elapsed [ms]
                 "04"               // kind: tokens
                 "0aac020102"       // ten fields: request, choice, first_index
                 "02058001"         // ids
                 "00"               // logprobs
                 "050001000000"     // end: reason, stop_index, kept_tokens, code, what
                 "03000000"         // timings
                 "0000"             // prefix
                 "00");             // cached_tokens
}

TEST(journal_log, reads_a_log_of_a_build_whose_records_had_fewer_fields) {
  // Without notes, keys, times of keeping, ages and cached_tokens, as 1b21b48 wrote it.
  constexpr std::string_view hex =
      "1b000000c4e0b9f501000000000000000a0000000000000001020c6469206a6f75726e616c2031040863"
      "6f6e7472616374000007030000006dcd9084020000000000000014000000000000000602030560000000"
      "9c5f177603000000000000001e00000000000000020410090a2f676174657761792f300202d804120400"
      "01000000000000f03f000000000000f03f00000000000000000000000000000000000000000000000000"
      "000000000000f03f00010000000000000000000000000100008827000002a01f015e000000b542374c04"
      "000000000000002800000000000000020410080a2f676174657761792f300202d8041204000100000000"
      "0000f03f000000000000f03f000000000000000000000000000000000000000000000000000000000000"
      "00f03f0001000000000000000000000000010000000000010000020000004975ebe40500000000000000"
      "3200000000000000080102060000005834e0bf06000000000000003c0000000000000003050902010107"
      "140000006be22a8107000000000000004600000000000000040909000002080a00050001000000030000"
      "000000100000003cc8339f08000000000000005000000000000000050308050401001404676f6e650102"
      "0000";
  std::vector<std::byte> log;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    log.push_back(static_cast<std::byte>(std::stoul(std::string{hex.substr(i, 2)}, nullptr, 16)));
  const auto read = recover_log(log, "old");
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_TRUE(read->complete);
  EXPECT_EQ(read->ended, log_end::clean);
  EXPECT_TRUE(read->image.forgotten.contains(4));
  ASSERT_EQ(read->image.requests.size(), 2U);
  const request_image& open = read->image.requests.at(request_id{9});
  EXPECT_EQ(open.spec.prompt, (std::vector<token_id>{1, 300}));
  EXPECT_EQ(open.rank, rank_id{1});
  EXPECT_EQ(open.deadline_at_ms, 30U + 4'000U);
  EXPECT_EQ(open.choices[0].tokens, (std::vector<token_id>{4, 5}));
  EXPECT_TRUE(open.keep && !open.attended && open.note.empty() && open.dedup.empty());
  EXPECT_EQ(open.keep_ms + open.detached_ms + open.cached_tokens, 0U);
  const request_image& cut = read->image.requests.at(request_id{8});
  EXPECT_TRUE(cut.closed && cut.choices[0].cut);
  EXPECT_EQ(cut.closed_at_ms, 80U);
}

TEST(journal_log, recovers_the_whole_records_before_every_cut) {
  std::vector<std::size_t> ends;
  const auto log = bytes_of(story(), &ends);
  for (std::size_t cut = 0; cut < log.size(); ++cut) {
    const auto read = recover_log(std::span{log}.first(cut), "j");
    ASSERT_TRUE(read.ok()) << cut << ": " << read.error().what;
    std::size_t whole = 0;
    std::uint64_t records = 0;
    for (const std::size_t end : ends)
      if (end <= cut) {
        whole = end;
        ++records;
      }
    ASSERT_EQ(read->whole_bytes, whole) << cut;
    ASSERT_EQ(read->image.number, records) << cut;
    ASSERT_EQ(read->ended == log_end::torn, whole != cut) << cut;
    if (whole != cut) {
      ASSERT_NE(read->why.find(fmt::format("offset {}", whole)), std::string::npos) << read->why;
    }
  }
}

TEST(journal_log, finds_every_flipped_bit) {
  std::vector<std::size_t> ends;
  auto log = bytes_of(story(), &ends);
  for (std::size_t bit = 0; bit < 8 * log.size(); ++bit) {
    log[bit / 8] ^= std::byte{1} << (bit % 8);
    const std::size_t hit = static_cast<std::size_t>(
        std::upper_bound(ends.begin(), ends.end(), bit / 8) - ends.begin());
    const std::size_t before = hit == 0 ? 0 : ends[hit - 1];
    const auto read = recover_log(log, "j");
    if (hit + 1 == ends.size()) { // as a write that was cut off would leave it
      ASSERT_TRUE(read.ok()) << bit << ": " << read.error().what;
      ASSERT_EQ(read->whole_bytes, before) << bit;
      ASSERT_EQ(read->ended, log_end::torn) << bit;
    } else {
      ASSERT_FALSE(read.ok()) << bit;
      ASSERT_EQ(read.error().code, ec::corrupt) << bit;
      ASSERT_NE(read.error().what.find(fmt::format("j: offset {}:", before)), std::string::npos)
          << read.error().what;
    }
    log[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(journal_log, says_where_an_intact_record_does_not_fit) {
  auto all = story();
  all.push_back(record::tokens{request_id{1}, 0, 9, {5}, {}, {}, {}, false, 0});
  std::vector<std::size_t> ends;
  auto read = recover_log(bytes_of(all, &ends), "j");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().what, fmt::format("j: offset {}: record 15: request 1 choice 0: tokens "
                                           "from 9 on, it has 4",
                                           ends[ends.size() - 2]));
  std::vector<std::byte> doubled;
  ASSERT_TRUE(append_frame(doubled, {1, 0, story()[0]}));
  ASSERT_TRUE(append_frame(doubled, {1, 0, story()[1]}));
  read = recover_log(doubled, "j");
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().what.find("record 1 follows record 1"), std::string::npos);
  std::vector<std::byte> other;
  ASSERT_TRUE(append_frame(other, {1, 0, record::begun{"di journal 2", {}}}));
  read = recover_log(other, "j");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ec::bad_format);
}

TEST(journal_log, says_again_what_a_snapshot_says) {
  const auto first = recover_log(bytes_of(story(), nullptr), "j");
  ASSERT_TRUE(first.ok());
  const auto log = bytes_of(first->image.snapshot(), nullptr, 1U << 30U);
  const auto second = recover_log(log, "k");
  ASSERT_TRUE(second.ok()) << second.error().what;
  EXPECT_TRUE(second->complete);
  ASSERT_EQ(second->image.snapshot().size(), first->image.snapshot().size());
  // Times are relative, so the bytes are the same at the same time.
  const auto bytes_at_same_time = [&](journal_image image) {
    for (auto& [id, r] : image.requests) {
      if (r.deadline_at_ms > 0)
        r.deadline_at_ms = first->image.requests.at(id).deadline_at_ms + 1'000;
      r.opened_at_ms = r.closed_at_ms = 0;
    }
    image.elapsed_ms = first->image.elapsed_ms;
    std::vector<std::byte> bytes;
    for (const any_record& r : image.snapshot())
      EXPECT_TRUE(append_frame(bytes, {1, 0, r}));
    return bytes;
  };
  EXPECT_EQ(bytes_at_same_time(first->image), bytes_at_same_time(second->image));
  for (const auto& [id, r] : first->image.requests)
    EXPECT_GE(second->image.elapsed_ms - second->image.requests.at(id).opened_at_ms,
              first->image.elapsed_ms - r.opened_at_ms);
}

TEST(number_ranges, joins_runs_and_drops_the_lowest) {
  number_ranges set;
  set.add(5);
  set.add(7, 9);
  set.add(6);
  EXPECT_EQ(set.runs().size(), 1U);
  EXPECT_TRUE(set.contains(5) && set.contains(9));
  EXPECT_FALSE(set.contains(4) || set.contains(10));
  set.add(20, 30);
  set.add(1);
  set.add(8, 25);
  EXPECT_EQ(set.runs(), (std::map<std::uint64_t, std::uint64_t>{{1, 1}, {5, 30}}));
  set.keep_last(1);
  EXPECT_FALSE(set.contains(1));
}

} // namespace
} // namespace di::engine
