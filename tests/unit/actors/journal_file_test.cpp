// SPDX-License-Identifier: Apache-2.0
// The journal's files: what the writer said is written is found again, whatever the disk does.
#include "actors/journal_file.hpp"
#include "messaging/base/probe.hpp"
#include "tests/support/temporary_directory.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

namespace di::actors {
namespace {

namespace record = engine::journal_record;
using namespace std::chrono_literals;

/// What the writer told.
class listener {
public:
  std::function<void(const proto::journal_written&)> ear() {
    return [this](const proto::journal_written& m) {
      {
        const std::lock_guard lock{guard_};
        last_ = m;
        all_.push_back(m);
      }
      news_.notify_all();
    };
  }
  template <class F>
  proto::journal_written wait(F wanted) {
    std::unique_lock lock{guard_};
    EXPECT_TRUE(news_.wait_for(lock, 20s, [&] { return wanted(last_); })) << "no such news";
    return last_;
  }
  proto::journal_written written(std::uint64_t position) {
    return wait([position](const auto& m) { return m.position >= position && !m.failing; });
  }

private:
  std::mutex guard_;
  std::condition_variable news_;
  proto::journal_written last_;
  std::vector<proto::journal_written> all_;
};

struct journal_files : ::testing::Test {
  void TearDown() override { probe::reset(); }

  journal_file_options options(journal_trouble on_error = journal_trouble::pause,
                               bool sync = false) {
    journal_file_options o;
    o.folder = folder.path() + "/journal";
    o.on_error = on_error;
    o.sync_groups = sync;
    o.retry_after = 1ms;
    o.tell = heard.ear();
    return o;
  }
  std::unique_ptr<journal_file> open(journal_file_options o) {
    auto found = find_journal(o.folder);
    EXPECT_TRUE(found.ok()) << (found.ok() ? "" : found.error().what);
    auto file = journal_file::open(std::move(o), *found);
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().what);
    engine::journal_image image = *found ? (*found)->image : engine::journal_image{};
    (*file)->begin_file(0, 0, image.snapshot());
    return std::move(*file);
  }
  engine::journal_image found() {
    auto f = find_journal(folder.path() + "/journal");
    EXPECT_TRUE(f.ok()) << (f.ok() ? "" : f.error().what);
    EXPECT_TRUE(f.ok() && f->has_value());
    return f.ok() && *f ? (*f)->image : engine::journal_image{};
  }
  std::filesystem::path only_file() {
    std::filesystem::path path;
    for (const auto& e : std::filesystem::directory_iterator{folder.path() + "/journal"})
      if (e.path().extension() == ".log") {
        EXPECT_TRUE(path.empty()) << path << " and " << e.path();
        path = e.path();
      }
    return path;
  }

  testing::temporary_directory folder{"journal_file"};
  listener heard;
};

engine::any_record request(std::uint64_t id) {
  record::opened r;
  r.spec.request = request_id{id};
  r.spec.prompt = {1, 2, 3};
  return r;
}

TEST_F(journal_files, finds_what_was_written) {
  EXPECT_FALSE(find_journal(folder.path() + "/nowhere")->has_value());
  auto o = options();
  {
    auto file = open(o);
    for (std::uint64_t i = 1; i <= 100; ++i)
      file->append(i, i, request(i));
    const auto m = heard.written(100);
    EXPECT_EQ(m.file, 1U);
    EXPECT_EQ(m.file_bytes, std::filesystem::file_size(only_file()));
    EXPECT_EQ(found().requests.size(), 100U);
    // Nobody else may write there meanwhile.
    EXPECT_EQ(journal_file::open(o, std::nullopt).error().code, ec::unavailable);
  }
  std::ofstream{only_file(), std::ios::app | std::ios::binary} << "torn";
  {
    auto file = open(o); // a new life
    file->append(1, 200, request(101));
    EXPECT_EQ(heard.wait([](const auto& m) { return m.file == 2 && m.position == 1; }).file, 2U);
    EXPECT_EQ(found().requests.size(), 101U);
    EXPECT_EQ(only_file().filename(), "journal-00000002.log");
  }
  remove_journal(o.folder);
  EXPECT_FALSE(std::filesystem::exists(o.folder));
}

TEST_F(journal_files, replaces_a_file_by_what_still_counts) {
  auto file = open(options());
  for (std::uint64_t i = 1; i <= 100; ++i)
    file->append(i, i, request(i));
  engine::journal_image little;
  little.forgotten.add(1, 100);
  file->begin_file(100, 100, little.snapshot());
  file->append(101, 101, request(101));
  heard.written(101);
  EXPECT_EQ(found().requests.size(), 1U);
  EXPECT_TRUE(found().forgotten.contains(100));
  EXPECT_EQ(only_file().filename(), "journal-00000002.log");
}

struct fault {
  const char* point;
  bool sync;
};

class disk_trouble : public journal_files, public ::testing::WithParamInterface<fault> {};

TEST_P(disk_trouble, is_over_when_the_disk_is_back) {
  auto file = open(options(journal_trouble::pause, GetParam().sync));
  file->append(1, 1, request(1));
  heard.written(1);
  probe::arm(GetParam().point, {});
  file->append(2, 2, request(2));
  file->append(3, 3, request(3));
  auto m = heard.wait([](const auto& x) { return x.failing; });
  EXPECT_EQ(m.position, 1U);
  EXPECT_FALSE(m.in_memory);
  EXPECT_NE(m.what.find("journal-00000001.log"), std::string::npos) << m.what;
  if (m.needs_snapshot) { // fdatasync failed: what is on disk is not known
    engine::journal_image all = found();
    for (std::uint64_t id = 2; id <= 3; ++id) // as JOURNAL knows them
      ASSERT_TRUE(all.apply({all.number + 1, 3, request(id)}));
    probe::reset();
    file->begin_file(3, 4, all.snapshot());
  } else {
    EXPECT_EQ(found().requests.size(), 1U); // a part of a record is cut off at once
    EXPECT_EQ(std::filesystem::file_size(only_file()), m.file_bytes);
    probe::reset();
  }
  file->append(4, 5, request(4));
  heard.written(4);
  EXPECT_EQ(found().requests.size(), 4U);
}

INSTANTIATE_TEST_SUITE_P(each, disk_trouble,
                         ::testing::Values(fault{"journal.write.enospc", false},
                                           fault{"journal.write.eio", false},
                                           fault{"journal.write.short", false},
                                           fault{"journal.sync.eio", true}));

TEST_F(journal_files, goes_on_from_memory_and_comes_back) {
  auto file = open(options(journal_trouble::memory));
  file->append(1, 1, request(1));
  heard.written(1);
  probe::arm("journal.write.eio", {});
  file->append(2, 2, request(2));
  auto m = heard.wait([](const auto& x) { return x.failing && x.position == 2; });
  EXPECT_TRUE(m.in_memory);
  file->append(3, 3, request(3));
  heard.wait([](const auto& x) { return x.position == 3; });
  heard.wait([](const auto& x) { return x.needs_snapshot; });
  engine::journal_image all;
  all.forgotten.add(1, 3);
  file->begin_file(3, 4, all.snapshot()); // the disk still fails
  probe::reset();
  heard.wait([](const auto& x) { return x.needs_snapshot; });
  file->begin_file(3, 5, all.snapshot());
  file->append(4, 6, request(4));
  heard.written(4);
  EXPECT_TRUE(found().forgotten.contains(3));
  EXPECT_TRUE(found().requests.contains(request_id{4}));
}

TEST_F(journal_files, keeps_the_old_file_if_no_new_one_fits) {
  auto file = open(options());
  file->append(1, 1, request(1));
  heard.written(1);
  probe::arm("journal.write.enospc", {1.0, 0, 1}); // the snapshot alone
  file->begin_file(1, 1, engine::journal_image{}.snapshot());
  file->append(2, 2, request(2));
  EXPECT_EQ(heard.written(2).file, 1U);
  EXPECT_EQ(found().requests.size(), 2U);
}

TEST_F(journal_files, refuses_a_file_that_was_damaged) {
  {
    auto file = open(options());
    for (std::uint64_t i = 1; i <= 3; ++i)
      file->append(i, i, request(i));
    heard.written(3);
  }
  {
    std::fstream log{only_file(), std::ios::in | std::ios::out | std::ios::binary};
    log.seekp(100);
    log.put('x');
  }
  const auto read = find_journal(folder.path() + "/journal");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ec::corrupt);
  EXPECT_NE(read.error().what.find("journal-00000001.log: offset "), std::string::npos)
      << read.error().what;
}

} // namespace
} // namespace di::actors
