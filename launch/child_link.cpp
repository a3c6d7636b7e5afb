// SPDX-License-Identifier: Apache-2.0
// Lines and descriptors over a socket pair.
#include "launch/child_link.hpp"

#include "messaging/base/log.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <mutex>
#include <sys/socket.h>
#include <unistd.h>

namespace di::launch {
namespace {

using nlohmann::json;

constexpr std::string_view node_words[] = {
    "control_is",  "segment",      "reaped",       "rank_lost",  "rank_stuck",
    "rank_exited", "rank_started", "start_failed", "node_there", "node_lost",
    "admin",       "admin_gone",   "gateway_lost", "processes",  "reload"};
constexpr std::string_view child_words[] = {"start_rank", "kill_rank", "admin_reply"};
constexpr std::string_view child_word_head = "{\"order\":";
constexpr std::chrono::milliseconds retry_after{2};
constexpr std::size_t descriptors_max = 8; ///< with one recvmsg

template <std::size_t N>
result<std::size_t> index_of(const std::string_view (&names)[N], const std::string& word) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == word)
      return i;
  return fail(ec::bad_format, "child link: unknown word {}", word);
}

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Lines of several threads do not mix.
void put_line(std::string line) {
  static std::mutex guard;
  line += '\n';
  const std::lock_guard lock{guard};
  (void)write_all(status_fd, line);
}

} // namespace

std::string to_json(const node_word& w) {
  json j{{"word", std::string{node_words[static_cast<std::size_t>(w.kind)]}},
         {"node", w.node},
         {"rank", w.rank},
         {"life", w.life.v},
         {"number", w.number},
         {"what", w.what}};
  if (w.kind == node_word_kind::rank_stuck) {
    j["phase"] = w.phase;
    j["stuck_ms"] = w.stuck_ms;
  }
  if (w.kind == node_word_kind::rank_exited) {
    j["code"] = w.state.code;
    j["signal"] = w.state.signal;
  }
  if (w.kind == node_word_kind::control_is)
    j["peer"] = json::parse(to_json(w.peer));
  return dump(j);
}

result<node_word> parse_node_word(std::string_view line) {
  try {
    const auto j = json::parse(line);
    node_word w;
    DI_TRY(const auto kind, index_of(node_words, j.at("word").get<std::string>()));
    w.kind = static_cast<node_word_kind>(kind);
    w.node = j.at("node").get<std::uint32_t>();
    w.rank = j.at("rank").get<std::uint32_t>();
    w.life = incarnation{j.at("life").get<std::uint64_t>()};
    w.number = j.at("number").get<std::uint64_t>();
    w.what = j.at("what").get<std::string>();
    if (w.kind == node_word_kind::rank_stuck) {
      w.phase = j.at("phase").get<std::string>();
      w.stuck_ms = j.at("stuck_ms").get<std::uint32_t>();
    }
    if (w.kind == node_word_kind::rank_exited)
      w.state = {j.at("code").get<int>(), j.at("signal").get<int>()};
    if (w.kind == node_word_kind::control_is) {
      DI_TRY(w.peer, parse_peer(j.at("peer").dump()));
    }
    return w;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "child link: {}", e.what());
  }
}

std::string to_json(const child_word& w) {
  // The head tells a word from a status, so it is written by hand.
  const json rest{{"node", w.node},     {"rank", w.rank},         {"life", w.life.v},
                  {"number", w.number}, {"politely", w.politely}, {"last", w.last},
                  {"what", w.what}};
  return std::string{child_word_head} + '"'
         + std::string{child_words[static_cast<std::size_t>(w.kind)]} + "\","
         + dump(rest).substr(1);
}

result<child_word> parse_child_word(std::string_view line) {
  try {
    const auto j = json::parse(line);
    child_word w;
    DI_TRY(const auto kind, index_of(child_words, j.at("order").get<std::string>()));
    w.kind = static_cast<child_word_kind>(kind);
    w.node = j.at("node").get<std::uint32_t>();
    w.rank = j.at("rank").get<std::uint32_t>();
    w.life = incarnation{j.at("life").get<std::uint64_t>()};
    w.number = j.at("number").get<std::uint64_t>();
    w.politely = j.at("politely").get<bool>();
    w.last = j.at("last").get<bool>();
    w.what = j.at("what").get<std::string>();
    return w;
  } catch (const json::exception& e) {
    return fail(ec::bad_format, "child link: {}", e.what());
  }
}

bool is_child_word(std::string_view line) noexcept {
  return line.starts_with(child_word_head);
}

void report_status(const child_status& status) {
  put_line(to_json(status));
}

void tell_node(const child_word& word) {
  put_line(to_json(word));
}

node_listener::node_listener(poll_loop& loop, node_word_fn heard, int fd)
    : loop_{loop}, heard_{std::move(heard)}, fd_{fd} {
  loop_.watch(fd_, [this] { read(); });
}

node_listener::~node_listener() {
  loop_.forget(fd_);
}

void node_listener::read() {
  std::array<char, 16384> block{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(descriptors_max * sizeof(int))> room{};
  while (true) {
    iovec part{block.data(), block.size()};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room.data();
    m.msg_controllen = room.size();
    const auto n = ::recvmsg(fd_, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN)
      return;
    if (n <= 0) // the node process is gone; SIGKILL is on its way
      return loop_.forget(fd_);
    for (auto* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        continue;
      const auto count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        descriptors_.emplace_back(fd);
      }
    }
    pending_.append(block.data(), static_cast<std::size_t>(n));
    std::size_t start = 0;
    for (auto end = pending_.find('\n'); end != std::string::npos;
         end = pending_.find('\n', start)) {
      take(std::string_view{pending_}.substr(start, end - start));
      start = end + 1;
    }
    pending_.erase(0, start);
  }
}

void node_listener::take(std::string_view line) {
  const auto word = parse_node_word(line);
  if (!word.ok()) // of a newer node process
    return log::warn("node_word_unknown", {{"what", word.error().what}});
  unique_fd descriptor;
  if (word->kind == node_word_kind::segment && !descriptors_.empty()) {
    descriptor = std::move(descriptors_.front());
    descriptors_.pop_front();
  }
  heard_(*word, std::move(descriptor));
}

child_speaker::~child_speaker() {
  loop_.cancel(timer_);
}

void child_speaker::send(const node_word& word, int descriptor) {
  if (broken_)
    return;
  line l;
  l.text = to_json(word) + "\n";
  if (descriptor >= 0)
    l.descriptor = unique_fd{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)};
  waiting_bytes_ += l.text.size();
  waiting_.push_back(std::move(l));
  broken_ = waiting_bytes_ > waiting_bytes_max;
  retry();
}

void child_speaker::retry() {
  loop_.cancel(timer_);
  timer_ = 0;
  if (!flush())
    timer_ = loop_.at(poll_loop::clock::now() + retry_after, [this] { retry(); });
}

bool child_speaker::flush() {
  while (!waiting_.empty() && !broken_) {
    auto& l = waiting_.front();
    iovec part{l.text.data() + l.sent, l.text.size() - l.sent};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
    if (l.descriptor) {
      m.msg_control = room.data();
      m.msg_controllen = room.size();
      auto* c = CMSG_FIRSTHDR(&m);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = l.descriptor.get();
      std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    const auto n = ::sendmsg(fd_, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN)
      return false;
    if (n < 0) { // the child is gone; its pidfd says so
      broken_ = true;
      waiting_.clear();
      return true;
    }
    l.descriptor.reset();
    l.sent += static_cast<std::size_t>(n);
    if (l.sent < l.text.size())
      continue;
    waiting_bytes_ -= l.text.size();
    waiting_.pop_front();
  }
  return true;
}

} // namespace di::launch
