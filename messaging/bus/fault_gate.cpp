// SPDX-License-Identifier: Apache-2.0
#include "messaging/bus/fault_gate.hpp"

#include "messaging/base/crc32c.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace di::bus {
namespace {

using words = std::map<std::string, std::string, std::less<>>;

/// `kind key=value ...`; kind is under the empty key.
words split(std::string_view line) {
  words out;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    const std::size_t eq = word.find('=');
    if (eq != std::string_view::npos)
      out.emplace(word.substr(0, eq), word.substr(eq + 1));
    else if (!word.empty())
      out.emplace("", word);
  }
  return out;
}

/// Takes the values of one line, complaining about the first that is wrong and about those left.
class line_reader {
public:
  line_reader(words w, std::size_t number) : words_{std::move(w)}, number_{number} {}

  std::string text(std::string_view key) {
    const auto at = words_.find(key);
    if (at == words_.end()) {
      complain(fmt::format("{} is missing", key));
      return {};
    }
    std::string value = std::move(at->second);
    words_.erase(at);
    return value;
  }
  template <class T>
  void number(std::string_view key, T& into) {
    const auto at = words_.find(key);
    if (at == words_.end())
      return;
    const std::string& s = at->second;
    const auto [end, wrong] = std::from_chars(s.data(), s.data() + s.size(), into);
    if (wrong != std::errc{} || end != s.data() + s.size())
      complain(fmt::format("{}={} is no number", key, s));
    words_.erase(at);
  }
  result<void> finish() {
    if (what_.empty() && !words_.empty())
      complain(fmt::format("unknown word {}", words_.begin()->first));
    if (!what_.empty())
      return fail(ec::bad_format, "line {}: {}", number_, what_);
    return {};
  }
  void complain(std::string what) {
    if (what_.empty())
      what_ = std::move(what);
  }

private:
  words words_;
  std::size_t number_;
  std::string what_;
};

/// Memory that is in use and says nothing. Touching it takes long: not on the bus thread.
void take_memory(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  log::warn("fault_ballast", {{"bytes", bytes}, {"taken", at != MAP_FAILED}});
}

} // namespace

bool matches_process(std::string_view pattern, std::string_view name) noexcept {
  if (pattern.ends_with('*'))
    return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

result<fault_rules> parse_fault_rules(std::string_view text) {
  fault_rules rules;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty())
      continue;
    line_reader r{split(line), number};
    const std::string kind = r.text("");
    if (kind == "link") {
      link_fault f;
      f.from = r.text("from");
      f.to = r.text("to");
      r.number("drop", f.drop);
      r.number("duplicate", f.duplicate);
      r.number("corrupt", f.corrupt);
      r.number("delay_us", f.delay_us);
      r.number("jitter_us", f.jitter_us);
      rules.links.push_back(std::move(f));
    } else if (kind == "point") {
      point_fault f;
      f.process = r.text("process");
      f.name = r.text("name");
      r.number("probability", f.probability);
      r.number("skip", f.skip);
      r.number("times", f.times);
      r.number("signal", f.signal);
      rules.points.push_back(std::move(f));
    } else if (kind == "ballast") {
      const std::string process = r.text("process");
      r.number("bytes", rules.ballast_bytes[process]);
    } else {
      r.complain(fmt::format("unknown rule {}", kind));
    }
    DI_TRY_VOID(r.finish());
  }
  return rules;
}

std::string to_text(const fault_rules& rules) {
  std::string out;
  for (const link_fault& f : rules.links)
    out +=
        fmt::format("link from={} to={} drop={} duplicate={} corrupt={} delay_us={} jitter_us={}\n",
                    f.from, f.to, f.drop, f.duplicate, f.corrupt, f.delay_us, f.jitter_us);
  for (const point_fault& f : rules.points)
    out += fmt::format("point process={} name={} probability={} skip={} times={} signal={}\n",
                       f.process, f.name, f.probability, f.skip, f.times, f.signal);
  for (const auto& [process, bytes] : rules.ballast_bytes)
    out += fmt::format("ballast process={} bytes={}\n", process, bytes);
  return out;
}

std::unique_ptr<fault_gate> fault_gate::from_environment(std::string self) {
  const char* folder = std::getenv("DI_FAULTS");
  if (folder == nullptr || *folder == '\0')
    return nullptr;
  auto gate = std::make_unique<fault_gate>(std::move(self), folder);
  gate->reload();
  return gate;
}

fault_gate::fault_gate(std::string self, std::string folder)
    : self_{std::move(self)}, folder_{std::move(folder)} {
  random_.seed(crc32c(std::as_bytes(std::span{self_})));
  if (folder_.empty())
    return;
  watch_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (watch_ >= 0 && ::inotify_add_watch(watch_, folder_.c_str(), IN_MOVED_TO) < 0) {
    ::close(watch_);
    watch_ = -1;
  }
}

fault_gate::~fault_gate() {
  if (watch_ >= 0)
    ::close(watch_);
}

void fault_gate::reload() {
  alignas(inotify_event) char events[4096];
  while (watch_ >= 0 && ::read(watch_, events, sizeof events) > 0) {
  }
  std::ifstream file{folder_ + "/rules", std::ios::binary};
  if (!file)
    return; // none yet
  std::stringstream text;
  text << file.rdbuf();
  const auto rules = parse_fault_rules(text.str());
  if (!rules)
    return log::error("fault_rules_refused", {{"what", rules.error().what}});
  put_in_force(*rules);
}

void fault_gate::put_in_force(const fault_rules& rules) {
  links_.clear();
  for (const link_fault& f : rules.links)
    if (matches_process(f.to, self_))
      links_.push_back(f);
  std::vector<point_fault> points;
  for (const point_fault& f : rules.points)
    if (matches_process(f.process, self_))
      points.push_back(f);
  for (const point_fault& f : points_)
    if (std::find(points.begin(), points.end(), f) == points.end())
      probe::disarm(f.name);
  for (const point_fault& f : points) // what is armed already goes on counting
    if (std::find(points_.begin(), points_.end(), f) == points_.end())
      probe::arm(f.name, {f.probability, f.skip, f.times, f.signal});
  points_ = std::move(points);
  std::uint64_t ballast = 0;
  for (const auto& [process, bytes] : rules.ballast_bytes)
    if (matches_process(process, self_))
      ballast += bytes;
  if (ballast > ballast_bytes_)
    std::thread{take_memory, ballast - ballast_bytes_}.detach();
  ballast_bytes_ = std::max(ballast, ballast_bytes_);
  log::warn("faults_in_force", {{"links", links_.size()}, {"points", points_.size()}});
}

fault_gate::verdict fault_gate::judge(std::string_view routing_id, std::size_t bits) {
  verdict v;
  const std::string_view from = routing_id.substr(0, routing_id.rfind('#'));
  const auto draw = [this] { return static_cast<double>(random_() >> 11) * 0x1p-53; };
  std::uint64_t hold_us = 0;
  for (const link_fault& f : links_) {
    if (!matches_process(f.from, from))
      continue;
    v.drop = v.drop || (f.drop > 0 && draw() < f.drop);
    v.twice = v.twice || (f.duplicate > 0 && draw() < f.duplicate);
    if (f.corrupt > 0 && draw() < f.corrupt && bits > 0)
      v.flip = random_() % bits;
    hold_us += f.delay_us + (f.jitter_us > 0 ? random_() % f.jitter_us : 0);
  }
  v.hold = std::chrono::microseconds{hold_us};
  return v;
}

void fault_gate::hold(held frame) {
  const instant due = frame.due;
  held_.emplace(due, std::move(frame));
}

std::optional<instant> fault_gate::next_due() const noexcept {
  return held_.empty() ? std::nullopt : std::optional{held_.begin()->first};
}

std::optional<fault_gate::held> fault_gate::take_due(instant now) {
  if (held_.empty() || now < held_.begin()->first)
    return std::nullopt;
  held out = std::move(held_.begin()->second);
  held_.erase(held_.begin());
  return out;
}

} // namespace di::bus
