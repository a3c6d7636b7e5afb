// SPDX-License-Identifier: Apache-2.0
#include "chaos/injector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <sys/mman.h>

namespace di::chaos {
namespace {

using std::chrono::milliseconds;

/// A slow process runs so long at a time.
constexpr milliseconds slow_run{4};

constexpr std::string_view disk_full_point = "journal.write.enospc";
constexpr std::string_view disk_error_point = "journal.write.eio";

} // namespace

std::int64_t monotonic_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

injector::injector(launch::poll_loop& loop, injector_options options)
    : loop_{loop}, options_{std::move(options)}, random_{options_.seed} {
}

injector::~injector() {
  heal();
}

// --- targets ----------------------------------------------------------------------------------

std::vector<std::uint32_t> injector::ranks_of(const fault_target& t) {
  std::vector<std::uint32_t> out;
  switch (t.kind) {
  case target_kind::rank:
    out.push_back(t.index);
    break;
  case target_kind::random_rank:
    out.push_back(static_cast<std::uint32_t>(random_() % std::max(options_.ranks, 1U)));
    break;
  case target_kind::all_ranks:
    for (std::uint32_t r = 0; r < options_.ranks; ++r)
      out.push_back(r);
    break;
  case target_kind::node:
    if (t.index < options_.nodes.size())
      out = options_.nodes[t.index];
    break;
  case target_kind::control:
  case target_kind::none:
    break;
  }
  return out;
}

std::vector<std::string> injector::prefixes_of(const fault_target& t,
                                               const std::vector<std::uint32_t>& ranks) {
  if (t.kind == target_kind::none)
    return {"*"};
  if (t.kind == target_kind::control)
    return {"/control"};
  std::vector<std::string> out;
  for (const std::uint32_t r : ranks)
    out.push_back(fmt::format("/rank/{}", r));
  return out;
}

/// The newest process of each target: an older one of the same rank is on its way out.
std::vector<process_entry> injector::processes_of(const fault_target& t,
                                                  const std::vector<std::uint32_t>& ranks) const {
  std::map<std::pair<process_kind, std::uint32_t>, process_entry> newest;
  for (const process_entry& p : find_processes(options_.fault_folder)) {
    bool wanted = false;
    if (t.kind == target_kind::control)
      wanted = p.kind == process_kind::control;
    else if (t.kind == target_kind::node)
      wanted = t.index == 0 ? p.kind == process_kind::launcher
                            : p.kind == process_kind::node && p.index == t.index;
    else
      wanted = p.kind == process_kind::rank
               && std::find(ranks.begin(), ranks.end(), p.index) != ranks.end();
    if (!wanted)
      continue;
    process_entry& best = newest[{p.kind, p.index}];
    if (best.pid == 0 || p.started > best.started)
      best = p;
  }
  std::vector<process_entry> out;
  for (const auto& [key, p] : newest)
    out.push_back(p);
  return out;
}

// --- doing ------------------------------------------------------------------------------------

void injector::start(std::size_t number, const fault& f, bool in_step) {
  const std::size_t index = done_.size();
  injected& record = done_.emplace_back();
  fault now = f;
  record.number = number;
  record.kind = f.kind;
  record.ranks = ranks_of(f.target);
  if (f.target.kind == target_kind::random_rank)
    now.target = {target_kind::rank, record.ranks.front()};
  record.control = f.target.kind == target_kind::control;
  record.what = fmt::format("{} {}", to_string(f.kind),
                            f.kind == fault_kind::command ? f.command : to_string(now.target));
  if (f.peer.kind != target_kind::none)
    record.what += fmt::format(" - {}", to_string(f.peer));
  faults_.push_back(now);
  record.begin_us = monotonic_us();
  switch (now.kind) {
  case fault_kind::kill:
  case fault_kind::stop: {
    const int signal = now.kind == fault_kind::kill ? SIGKILL : SIGSTOP;
    if (in_step)
      add_point(now, index, "rank.waits_for_experts", signal, 1);
    else
      signal_targets(now, signal, record);
    break;
  }
  case fault_kind::cont:
    signal_targets(now, SIGCONT, record);
    break;
  case fault_kind::slow:
    begin_slow(now, record);
    break;
  case fault_kind::crash:
    add_point(now, index, now.point, SIGKILL, 1);
    break;
  case fault_kind::hang:
    add_point(now, index, now.point, 0, 1);
    break;
  case fault_kind::point:
    add_point(now, index, now.point, 0, ~0ULL);
    break;
  case fault_kind::disk_full:
  case fault_kind::disk_error:
    now.target = {target_kind::control, 0};
    add_point(now, index,
              std::string{now.kind == fault_kind::disk_full ? disk_full_point : disk_error_point},
              0, ~0ULL);
    break;
  case fault_kind::cut:
  case fault_kind::delay:
  case fault_kind::drop:
  case fault_kind::duplicate:
  case fault_kind::corrupt:
    add_links(now, index);
    break;
  case fault_kind::ballast:
    for (const std::string& process : prefixes_of(now.target, record.ranks))
      rules_[index].ballast_bytes[process] = now.size_bytes;
    write_rules();
    break;
  case fault_kind::memory:
  case fault_kind::hog:
    load_host(now, index);
    break;
  case fault_kind::clock_jump:
    jump_clock(now.jump);
    break;
  case fault_kind::command:
    run_command(now, record);
    break;
  }
  if (now.lasts > nanoseconds{})
    loop_.at(launch::poll_loop::clock::now() + now.lasts, [this, index] { finish(index); });
}

void injector::signal_targets(const fault& f, int number, injected& record) {
  for (const process_entry& p : processes_of(f.target, record.ranks)) {
    if (p.pid <= 1)
      continue;
    if (record.pids.empty())
      record.begin_us = monotonic_us();
    if (::kill(p.pid, number) != 0)
      record.trouble = fmt::format("pid {}: {}", p.pid, std::strerror(errno));
    record.pids.push_back(p.pid);
    if (number == SIGSTOP)
      stopped_.insert(p.pid);
    if (number == SIGCONT)
      stopped_.erase(p.pid);
  }
  if (record.pids.empty())
    record.trouble = nobody_there;
}

void injector::begin_slow(const fault& f, injected& record) {
  slowness s;
  for (const process_entry& p : processes_of(f.target, record.ranks))
    s.pids.push_back(p.pid);
  record.pids = s.pids;
  if (s.pids.empty())
    record.trouble = nobody_there;
  s.run = slow_run;
  s.pause = std::chrono::duration_cast<nanoseconds>(slow_run * (f.factor - 1));
  const std::uint64_t id = done_.size();
  slow_[id] = std::move(s);
  beat(id, false);
  if (f.lasts > nanoseconds{})
    loop_.at(launch::poll_loop::clock::now() + f.lasts, [this, id] { slow_[id].over = true; });
}

/// Stops and thaws in turn.
void injector::beat(std::uint64_t id, bool stopped) {
  slowness& s = slow_[id];
  const bool stop = !stopped && !s.over;
  for (const pid_t pid : s.pids) {
    ::kill(pid, stop ? SIGSTOP : SIGCONT);
    if (stop)
      stopped_.insert(pid);
    else
      stopped_.erase(pid);
  }
  if (stop || !s.over)
    loop_.at(launch::poll_loop::clock::now() + (stop ? s.pause : s.run),
             [this, id, stop] { beat(id, stop); });
}

void injector::add_links(const fault& f, std::size_t index) {
  bus::link_fault l;
  switch (f.kind) {
  case fault_kind::cut:
    l.drop = 1;
    break;
  case fault_kind::drop:
    l.drop = f.rate;
    break;
  case fault_kind::duplicate:
    l.duplicate = f.rate;
    break;
  case fault_kind::corrupt:
    l.corrupt = f.rate;
    break;
  default:
    l.delay_us = static_cast<std::uint64_t>(f.delay.count() / 1000);
    l.jitter_us = static_cast<std::uint64_t>(f.jitter.count() / 1000);
    break;
  }
  const auto peers = ranks_of(f.peer);
  for (const std::string& from : prefixes_of(f.target, done_[index].ranks))
    for (const std::string& to : prefixes_of(f.peer, peers)) {
      l.from = from;
      l.to = to;
      rules_[index].links.push_back(l);
      if (!f.one_way) {
        std::swap(l.from, l.to);
        rules_[index].links.push_back(l);
      }
    }
  write_rules();
}

void injector::add_point(const fault& f, std::size_t index, std::string point, int signal,
                         std::uint64_t times) {
  bus::point_fault p;
  p.name = std::move(point);
  p.probability = f.rate;
  p.skip = f.skip;
  p.times = times;
  p.signal = signal;
  const bool ends = signal != 0 || f.kind == fault_kind::hang;
  const std::vector<process_entry> targets =
      ends ? processes_of(f.target, done_[index].ranks) : std::vector<process_entry>{};
  for (const process_entry& t : targets)
    done_[index].pids.push_back(t.pid);
  for (const std::string& process : prefixes_of(f.target, done_[index].ranks)) {
    p.process = process;
    rules_[index].points.push_back(p);
  }
  write_rules();
  if (!ends)
    return;
  done_[index].armed = true;
  // One death or hang each: whoever comes after the victim must not find the rule any more.
  loop_.at(launch::poll_loop::clock::now() + milliseconds{500}, [this, index] {
    rules_.erase(index);
    write_rules();
  });
}

void injector::load_host(const fault& f, std::size_t index) {
  if (f.kind == fault_kind::memory) {
    void* at = ::mmap(nullptr, f.size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED)
      done_[index].trouble = std::strerror(errno);
    else
      memory_[index] = {at, f.size_bytes};
    return;
  }
  for (std::uint32_t i = 0; i < f.threads; ++i) {
    launch::process_options o;
    o.argv = {"/bin/sh", "-c", "while :; do :; done"};
    if (auto hog = launch::child_process::start(o); hog.ok())
      hogs_[index].push_back(std::move(*hog));
    else
      done_[index].trouble = hog.error().what;
  }
}

void injector::run_command(const fault& f, injected& record) {
  launch::process_options o;
  o.argv = {options_.dilaunch};
  std::stringstream words{f.command};
  for (std::string word; words >> word;)
    o.argv.push_back(word);
  auto command = launch::child_process::start(o);
  if (!command.ok()) {
    record.trouble = command.error().what;
    return;
  }
  const std::size_t index = done_.size() - 1;
  const int pidfd = command->pidfd();
  hogs_[index].push_back(std::move(*command));
  loop_.watch(pidfd, [this, index, pidfd] { end_of_command(index, pidfd); });
}

/// A command that fails is no fault that was injected.
void injector::end_of_command(std::size_t index, int pidfd) {
  const auto at = hogs_.find(index);
  if (at == hogs_.end())
    return loop_.forget(pidfd);
  launch::child_process& command = at->second.front();
  const auto state = command.poll();
  if (!state)
    return;
  loop_.forget(pidfd);
  done_[index].end_us = monotonic_us();
  if (state->ok())
    return;
  std::string said;
  (void)launch::line_reader{}.read(command.err.get(), [&](const std::string& l) { said = l; });
  done_[index].trouble = fmt::format("{}: {}", launch::to_string(*state), said);
}

/// The preloaded clock (chaos/clock_shim.cpp) maps this file.
void injector::jump_clock(nanoseconds by) {
  const std::int64_t offset_ns = by.count();
  std::fstream file{options_.fault_folder + "/clock",
                    std::ios::binary | std::ios::in | std::ios::out};
  file.write(reinterpret_cast<const char*>(&offset_ns), sizeof offset_ns); // NOLINT: raw number
}

// --- undoing ----------------------------------------------------------------------------------

void injector::finish(std::size_t index) {
  injected& record = done_[index];
  if (record.end_us != 0)
    return;
  record.end_us = monotonic_us();
  if (record.kind == fault_kind::stop)
    for (const pid_t pid : record.pids) {
      ::kill(pid, SIGCONT);
      stopped_.erase(pid);
    }
  if (record.kind == fault_kind::clock_jump)
    jump_clock({});
  if (rules_.erase(index) != 0)
    write_rules();
  hogs_.erase(index);
  if (const auto at = memory_.find(index); at != memory_.end()) {
    ::munmap(at->second.first, at->second.second);
    memory_.erase(at);
  }
}

void injector::heal() {
  for (auto& [id, s] : slow_)
    s.over = true;
  for (const pid_t pid : stopped_)
    ::kill(pid, SIGCONT);
  stopped_.clear();
  hogs_.clear();
  for (const auto& [index, block] : memory_)
    ::munmap(block.first, block.second);
  memory_.clear();
  if (!rules_.empty()) {
    rules_.clear();
    write_rules();
  }
}

void injector::write_rules() {
  bus::fault_rules all;
  for (const auto& [index, rules] : rules_) {
    all.links.insert(all.links.end(), rules.links.begin(), rules.links.end());
    all.points.insert(all.points.end(), rules.points.begin(), rules.points.end());
    all.ballast_bytes.insert(rules.ballast_bytes.begin(), rules.ballast_bytes.end());
  }
  const std::string path = options_.fault_folder + "/rules";
  {
    std::ofstream file{path + ".new", std::ios::binary};
    file << bus::to_text(all);
  }
  if (std::rename((path + ".new").c_str(), path.c_str()) != 0)
    std::fprintf(stderr, "dichaos: %s: %s\n", path.c_str(), std::strerror(errno));
}

} // namespace di::chaos
