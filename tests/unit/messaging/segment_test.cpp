// SPDX-License-Identifier: Apache-2.0
// Goal: a send segment has one writer, its slots never overlap, and no descriptor reads what it
// should not. Method: the parts of shared memory without a bus.
#include "messaging/base/limits.hpp"
#include "messaging/bus/segment_readers.hpp"
#include "messaging/bus/send_segment.hpp"
#include "tests/support/segments.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <sys/mman.h>

namespace di::test {
namespace {

using bus::segment_map;
using bus::slot_book;
using wire::segment_slot;

constexpr std::uint64_t segment_size = 64u << 10;
constexpr incarnation writer{7}, reader{8}, other_reader{9};

TEST(segment, has_one_writer_for_ever) {
  auto files = bus::make_segment("di-test", segment_size).value();
  {
    const auto first = segment_map::for_writer(files.writer.get());
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(segment_map::for_writer(files.writer.get()).error().code, ec::refused);
  }
  // Nor when the first one is gone: a new life gets a new segment.
  EXPECT_EQ(segment_map::for_writer(files.writer.get()).error().code, ec::refused);
}

TEST(segment, cannot_be_written_or_resized_by_readers) {
  auto files = bus::make_segment("di-test", segment_size).value();
  const int fd = files.reader.get();
  EXPECT_EQ(::mmap(nullptr, segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
  EXPECT_LT(::ftruncate(files.writer.get(), 64), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_LT(::ftruncate(files.writer.get(), 2 * segment_size), 0);
  const auto own = segment_map::for_writer(files.writer.get());
  ASSERT_TRUE(own.ok());
  EXPECT_LT(::pwrite(files.writer.get(), "x", 1, 0), 0); // sealed against write() too
  const auto read = segment_map::for_reader(fd);
  ASSERT_TRUE(read.ok());
  *own->at(100) = std::byte{42};
  EXPECT_EQ(*read->at(100), std::byte{42});
}

TEST(segment, is_refused_if_its_size_is_wrong_or_may_change) {
  EXPECT_EQ(bus::make_segment("di-test", segment_size + 1).error().code, ec::bad_argument);
  EXPECT_EQ(bus::make_segment("di-test", 64).error().code, ec::bad_argument);
  const bus::owned_fd loose{::memfd_create("di-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(::ftruncate(loose.get(), static_cast<off_t>(segment_size)), 0);
  EXPECT_EQ(segment_map::for_reader(loose.get()).error().code, ec::refused);
}

// --- the book of slots ------------------------------------------------------------------------

TEST(slot_book, takes_the_lowest_room_and_refuses_when_full) {
  slot_book book{1024, 4, 100};
  const auto a = book.take(256, reader), b = book.take(256, reader), c = book.take(512, reader);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->offset, 0u);
  EXPECT_EQ(b->offset, 256u);
  EXPECT_EQ(c->offset, 512u);
  EXPECT_FALSE(book.take(64, reader));
  EXPECT_TRUE(book.give_back(b->offset, b->generation, reader));
  EXPECT_FALSE(book.take(320, reader)); // 256 are free
  const auto d = book.take(128, reader);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->offset, 256u);
  EXPECT_NE(d->generation, b->generation);
  EXPECT_TRUE(book.take(64, reader));
  EXPECT_FALSE(book.take(64, reader)); // four slots are taken
  EXPECT_TRUE(book.check().ok());
}

TEST(slot_book, frees_a_slot_only_for_its_reader_and_generation) {
  slot_book book{1024, 16, 100};
  const auto a = book.take(256, reader);
  EXPECT_FALSE(book.give_back(a->offset + 64, a->generation, reader));
  EXPECT_FALSE(book.give_back(a->offset, a->generation + 1, reader));
  EXPECT_FALSE(book.give_back(a->offset, a->generation, other_reader));
  EXPECT_EQ(book.taken(), 1u);
  EXPECT_TRUE(book.give_back(a->offset, a->generation, reader));
  EXPECT_FALSE(book.give_back(a->offset, a->generation, reader)); // once
  EXPECT_EQ(book.taken_bytes(), 0u);
}

TEST(slot_book, covers_every_byte_once_whatever_happens) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random{seed};
    slot_book book{segment_size, 32, random()};
    std::vector<std::pair<segment_slot, incarnation>> held;
    std::uint64_t last = 0;
    for (int step = 0; step < 1000; ++step) {
      const incarnation who{1 + random() % 3};
      switch (random() % 8) {
      default: {
        const auto slot = book.take(64 * (1 + random() % 100), who);
        if (!slot)
          break;
        EXPECT_TRUE(last == 0 || slot->generation > last);
        last = slot->generation;
        for (const auto& [h, w] : held)
          EXPECT_TRUE(slot->offset + slot->bytes <= h.offset || h.offset + h.bytes <= slot->offset);
        held.emplace_back(*slot, who);
        break;
      }
      case 0:
      case 1:
      case 2:
        if (!held.empty()) {
          const std::size_t i = random() % held.size();
          EXPECT_TRUE(
              book.give_back(held[i].first.offset, held[i].first.generation, held[i].second));
          EXPECT_FALSE(
              book.give_back(held[i].first.offset, held[i].first.generation, held[i].second));
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        }
        break;
      case 3: // wrong words change nothing
        EXPECT_FALSE(book.give_back(64 * (random() % 1024), random(), who));
        break;
      case 4:
        if (step % 50 == 0) {
          const auto mine = std::erase_if(held, [&](const auto& h) { return h.second == who; });
          EXPECT_EQ(book.free_reader(who, [](std::uint64_t) {}), mine);
        }
        break;
      }
      ASSERT_EQ(book.taken(), held.size());
      ASSERT_TRUE(book.check().ok()) << book.check().error().what;
    }
  }
}

// --- writing and reading ----------------------------------------------------------------------

struct segment_pair : ::testing::Test {
  void SetUp() override {
    sender = bus::send_segment::open(files.writer.get()).value();
    readers.add(writer, bus::owned_fd{::dup(files.reader.get())});
  }
  shared_bytes bytes(std::size_t n, char fill) {
    return shared_bytes::adopt(std::vector<char>(n, fill));
  }
  segment_slot put(std::vector<shared_bytes> attachments) {
    std::vector<std::uint64_t> sizes;
    for (const auto& a : attachments)
      sizes.push_back(a.size());
    auto lease = sender->reserve(sizes, reader);
    DI_CHECK(lease.has_value());
    lease->write(attachments);
    lease->sent();
    return lease->slot();
  }
  ec fetch_fails(const segment_slot& s, std::vector<std::uint64_t> sizes = {100}) {
    std::vector<shared_bytes> out;
    const auto got = readers.fetch(writer, s, sizes, out);
    EXPECT_TRUE(out.empty());
    return got.ok() ? ec::ok : got.error().code;
  }
  /// Carries due releases back to the writer.
  void carry() {
    for (const auto& r : readers.take_due())
      for (const auto& s : r.slots)
        EXPECT_TRUE(sender->release(reader, s.offset, s.generation));
  }

  bus::segment_files files = bus::make_segment("di-test", segment_size).value();
  std::shared_ptr<bus::send_segment> sender;
  std::atomic<std::uint64_t> overwritten{0};
  int due = 0;
  bus::segment_readers readers{[this] { ++due; }, overwritten};
};

TEST_F(segment_pair, carries_attachments_without_a_copy_and_gives_the_slot_back) {
  const auto slot = put({bytes(20'000, 'a'), {}, bytes(3, 'c')});
  std::vector<shared_bytes> got;
  const std::uint64_t sizes[] = {20'000, 0, 3};
  ASSERT_TRUE(readers.fetch(writer, slot, sizes, got).ok());
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0], bytes(20'000, 'a'));
  EXPECT_TRUE(got[1].empty());
  EXPECT_EQ(got[2], bytes(3, 'c'));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got[0].data()) % 64, 0u);
  got.erase(got.begin());
  carry();
  EXPECT_EQ(sender->slots(), 1u); // the small one still lives
  got.clear();
  EXPECT_EQ(due, 1);
  carry();
  EXPECT_EQ(sender->slots(), 0u);
  EXPECT_EQ(overwritten.load(), 0u);
}

TEST_F(segment_pair, refuses_descriptors_that_name_no_slot) {
  const auto s = put({bytes(100, 'a')});
  const auto changed = [&](std::uint64_t offset, std::uint64_t size, std::uint64_t generation) {
    return segment_slot{offset, size, generation};
  };
  EXPECT_EQ(fetch_fails(changed(s.offset + 1, s.bytes, s.generation)), ec::corrupt);
  EXPECT_EQ(fetch_fails(changed(segment_size, s.bytes, s.generation)), ec::corrupt);
  EXPECT_EQ(fetch_fails(changed(segment_size - 64, s.bytes, s.generation)), ec::corrupt);
  EXPECT_EQ(fetch_fails(changed(~0ull - 63, s.bytes, s.generation)), ec::corrupt);
  EXPECT_EQ(fetch_fails(changed(s.offset, ~0ull, s.generation)), ec::corrupt);
  EXPECT_EQ(fetch_fails(changed(s.offset, s.bytes + 64, s.generation), {164}), ec::corrupt);
  EXPECT_EQ(fetch_fails(s, {200}), ec::corrupt);
  EXPECT_EQ(fetch_fails(changed(s.offset, s.bytes, s.generation + 1)), ec::stale_incarnation);
  EXPECT_EQ(fetch_fails(changed(s.offset, s.bytes, 0)), ec::stale_incarnation);
  EXPECT_EQ(fetch_fails(changed(s.offset + 64, s.bytes, s.generation)), ec::stale_incarnation);
  std::vector<shared_bytes> out;
  const std::uint64_t sizes[] = {100};
  EXPECT_EQ(readers.fetch(other_reader, s, sizes, out).error().code, ec::not_found);
}

TEST_F(segment_pair, refuses_slots_that_were_released_or_never_published) {
  const std::uint64_t sizes[] = {100};
  auto lease = sender->reserve(sizes, reader);
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(fetch_fails(lease->slot()), ec::stale_incarnation); // not published
  const segment_slot first = lease->slot();
  lease.reset(); // its mail never left
  EXPECT_EQ(sender->slots(), 0u);
  const segment_slot second = put({bytes(100, 'b')});
  EXPECT_EQ(second.offset, first.offset);
  EXPECT_EQ(fetch_fails(first), ec::stale_incarnation);
  EXPECT_TRUE(sender->release(reader, second.offset, second.generation));
  EXPECT_EQ(fetch_fails(second), ec::stale_incarnation);
}

TEST_F(segment_pair, releases_in_bundles_and_each_slot_once) {
  std::vector<shared_bytes> held;
  for (std::size_t i = 0; i < 3 * limits::segment_releases_bundled; ++i) {
    const std::uint64_t sizes[] = {10};
    ASSERT_TRUE(readers.fetch(writer, put({bytes(10, 'x')}), sizes, held).ok());
  }
  std::size_t messages = 0;
  while (!held.empty()) {
    held.pop_back();
    for (const auto& r : readers.take_due()) {
      ++messages;
      EXPECT_EQ(r.writer, writer);
      for (const auto& s : r.slots)
        EXPECT_TRUE(sender->release(reader, s.offset, s.generation));
    }
  }
  EXPECT_EQ(messages, 3u);
  EXPECT_EQ(sender->slots(), 0u);
}

TEST_F(segment_pair, counts_a_slot_that_changed_while_it_was_read) {
  std::vector<shared_bytes> got;
  const std::uint64_t sizes[] = {40'000};
  const auto slot = put({bytes(40'000, 'a')});
  ASSERT_TRUE(readers.fetch(writer, slot, sizes, got).ok());
  EXPECT_EQ(sender->free_reader(reader), 1u); // "certified dead", while it lives
  got.clear();
  EXPECT_EQ(overwritten.load(), 1u);
}

TEST_F(segment_pair, keeps_what_is_held_when_the_writer_is_forgotten) {
  std::vector<shared_bytes> got;
  const std::uint64_t sizes[] = {40'000};
  const auto slot = put({bytes(40'000, 'a')});
  ASSERT_TRUE(readers.fetch(writer, slot, sizes, got).ok());
  readers.forget(writer);
  sender.reset();
  EXPECT_EQ(got[0], bytes(40'000, 'a'));
  EXPECT_EQ(mapped_segments(), 1u);
  EXPECT_EQ(fetch_fails(slot, {40'000}), ec::not_found);
  got.clear();
  EXPECT_EQ(mapped_segments(), 0u);
  EXPECT_TRUE(readers.take_due().empty());
}

TEST_F(segment_pair, says_none_when_full_and_goes_on_after_a_certified_death) {
  const std::uint64_t sizes[] = {30'000};
  put({bytes(30'000, 'a')});
  put({bytes(30'000, 'b')});
  EXPECT_FALSE(sender->reserve(sizes, other_reader));
  EXPECT_EQ(sender->free_reader(other_reader), 0u);
  EXPECT_EQ(sender->free_reader(reader), 2u);
  EXPECT_TRUE(sender->reserve(sizes, other_reader));
  EXPECT_TRUE(sender->check().ok());
}

} // namespace
} // namespace di::test
