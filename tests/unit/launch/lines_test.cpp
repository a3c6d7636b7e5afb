// SPDX-License-Identifier: Apache-2.0
// Lines to receivers that are slow: a full link, a full pipe.
#include "launch/boot.hpp"
#include "launch/line_backlog.hpp"
#include "launch/log_writer.hpp"
#include "launch/node.hpp"
#include "launch/node_link.hpp"
#include "launch/poll_loop.hpp"
#include "launch/process.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sstream>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace di::launch {
namespace {

/// A link that takes as many lines as it is given room for.
struct narrow_link {
  int room = 0;
  ec refusal = ec::limit_exceeded;
  std::vector<std::string> sent;

  result<void> post(const std::string& line) {
    if (room == 0)
      return fail(refusal, "full");
    --room;
    sent.push_back(line);
    return {};
  }
};

TEST(line_backlog, keeps_order_and_drops_only_logs_while_the_link_is_full) {
  narrow_link link{1, ec::limit_exceeded, {}};
  line_backlog lines{[&](const std::string& l) { return link.post(l); }, 8};
  lines.put("first", line_worth::spare);
  lines.put("log one", line_worth::spare); // 7 bytes wait
  lines.put("log two", line_worth::spare); // would be 14
  lines.put("a rank exited", line_worth::keep);
  lines.put("log three", line_worth::spare);
  EXPECT_FALSE(lines.flush());
  EXPECT_EQ(lines.take_dropped(), 2U);
  EXPECT_EQ(lines.take_dropped(), 0U);
  link.room = 10;
  EXPECT_TRUE(lines.flush());
  EXPECT_EQ(link.sent, (std::vector<std::string>{"first", "log one", "a rank exited"}));
}

TEST(line_backlog, does_not_wait_for_a_receiver_that_is_gone) {
  narrow_link link{0, ec::peer_lost, {}};
  line_backlog lines{[&](const std::string& l) { return link.post(l); }};
  lines.put("x", line_worth::keep);
  EXPECT_TRUE(lines.empty());
}

/// A launcher that starts one child, has no room for its end at first, and says leave when it
/// hears of it.
class slow_launcher : public node_voice {
public:
  slow_launcher() : event_{::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)} {
    boot_config boot;
    orders_.push_back(to_json({order_kind::start, "rank 1", {}, to_json(boot), 0}));
  }
  int fd() const override { return event_.get(); }
  bool read(const std::function<void(const std::string&)>& line) override {
    eventfd_t n = 0;
    ::eventfd_read(event_.get(), &n);
    for (const auto& o : std::exchange(orders_, {}))
      line(o);
    return true;
  }
  void write(const std::string& line, line_worth worth) override { lines_.put(line, worth); }
  bool flush() override { return lines_.flush(); }

  bool heard_exit = false;
  int refusals = 3;

private:
  result<void> post(const std::string& line) {
    const auto report = parse_report(line).value();
    if (report.kind != report_kind::exited)
      return {};
    if (refusals-- > 0)
      return fail(ec::limit_exceeded, "no credit");
    heard_exit = true;
    orders_.push_back(to_json({order_kind::leave, {}, {}, {}, 0}));
    ::eventfd_write(event_.get(), 1);
    return {};
  }

  unique_fd event_;
  std::vector<std::string> orders_;
  line_backlog lines_{[this](const std::string& l) { return post(l); }};
};

TEST(node, reports_the_end_of_a_child_once_the_launcher_has_room) {
  slow_launcher voice;
  EXPECT_EQ(serve_node({1, "/bin/true"}, voice), 0);
  EXPECT_TRUE(voice.heard_exit);
}

TEST(write_all, loses_nothing_on_a_full_non_blocking_pipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  unique_fd out{ends[0]}, in{ends[1]};
  ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  const std::string text(1U << 20U, 'x'); // sixteen pipes full
  std::string got;
  std::thread reader{[&] { got = read_all(out.get(), 2U << 20U).value(); }};
  const auto written = write_all(in.get(), text);
  in.reset();
  reader.join();
  EXPECT_TRUE(written.ok());
  EXPECT_EQ(got.size(), text.size());
}

TEST(log_writer, drops_the_oldest_lines_and_counts_them_while_nobody_reads) {
  constexpr std::size_t lines = 20'000;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  unique_fd out{ends[0]}, in{ends[1]};
  ::fcntl(in.get(), F_SETPIPE_SZ, 4096);
  std::string got;
  std::thread reader;
  {
    log_writer log{in.get(), 8192};
    for (std::size_t i = 0; i < lines; ++i)
      log.out(fmt::format("line {}\n", i)); // comes back though the pipe is full
    reader = std::thread{[&] { got = read_all(out.get(), 2U << 20U).value(); }};
  }
  in.reset();
  reader.join();
  std::istringstream words{got};
  std::size_t seen = 0, dropped = 0, next = 0;
  for (std::string word; words >> word;) {
    std::size_t n = 0;
    if (word == "dilaunch:") {
      ASSERT_TRUE(words >> n);
      dropped += n;
      words.ignore(1000, '\n');
    } else {
      ASSERT_TRUE(words >> n);
      EXPECT_GE(n, next);
      next = n + 1;
      ++seen;
    }
  }
  EXPECT_GT(dropped, 0U);
  EXPECT_EQ(seen + dropped, lines);
  EXPECT_EQ(next, lines); // the last one is there
}

TEST(log_writer, writes_files_while_standard_error_is_stuck_and_gives_that_up) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const unique_fd out{ends[0]}, in{ends[1]};
  const auto path = fmt::format("{}log_writer_{}.log", ::testing::TempDir(), ::getpid());
  log_writer log{in.get()};
  log.out(std::string(1U << 20U, 'x') + "\n");
  log.file(path, "one\n");
  log.file(path, "two\n");
  log.finish(std::chrono::milliseconds{50});
  const unique_fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  ASSERT_TRUE(file);
  EXPECT_EQ(read_all(file.get(), 100).value(), "one\ntwo\n");
  ::unlink(path.c_str());
}

TEST(line_reader, ends_a_stream_that_cannot_be_read) {
  const unique_fd folder{::open("/", O_RDONLY | O_CLOEXEC)}; // read gives EISDIR
  ASSERT_TRUE(folder);
  line_reader lines;
  EXPECT_FALSE(lines.read(folder.get(), [](const std::string&) {}));
}

} // namespace
} // namespace di::launch
