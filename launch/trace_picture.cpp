// SPDX-License-Identifier: Apache-2.0
// Aligning clocks, laying out lanes, tying arrows.
#include "launch/trace_picture.hpp"

#include "messaging/base/trace.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>

namespace di::launch {
namespace {

constexpr std::size_t block_bytes = 1U << 20U;
/// Points in time get this width, so that an arrow has a span to end at.
constexpr std::int64_t mark_ns = 1;
/// A gateway's track of a request whose client sent `traceparent`: "trace <id>".
constexpr std::string_view trace_track = "trace ";

struct drawn_span {
  const proto::trace_event* event = nullptr;
  std::int64_t begin_ns = 0, end_ns = 0; ///< on the common line
  std::uint32_t pid = 0, tid = 0;
};

struct track_spans {
  std::string name; ///< path of the actor
  std::vector<drawn_span> spans;
};

/// "/control" -> 1, "/gateway/2" -> 102, "/rank/3" -> 1003; others behind them.
std::uint32_t pid_of(const std::string& process, std::uint32_t fallback) {
  if (process == "/control")
    return 1;
  const bool rank = process.starts_with("/rank/");
  if (!rank && !process.starts_with("/gateway/"))
    return fallback;
  std::uint32_t number = 0;
  for (const char c : process.substr(process.rfind('/') + 1)) {
    if (c < '0' || c > '9' || number > (rank ? 1'000'000U : 80U))
      return fallback;
    number = number * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return (rank ? 1'000U : 100U) + number;
}

std::string json_text(std::string_view s) {
  return nlohmann::json(s).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// ns as microseconds with three digits.
std::string micros_of(std::int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

/// Puts each span into the first lane where it nests. `spans` by begin, longer ones first.
class lane_layout {
public:
  std::uint32_t place(const drawn_span& s) {
    for (std::uint32_t lane = 0;; ++lane) {
      if (lane == open_.size())
        open_.emplace_back();
      auto& ends = open_[lane]; // of the spans that lie around this moment, innermost last
      while (!ends.empty() && ends.back() <= s.begin_ns)
        ends.pop_back();
      if (ends.empty() || s.end_ns <= ends.back()) {
        ends.push_back(s.end_ns);
        return lane;
      }
    }
  }
  std::uint32_t lanes() const { return static_cast<std::uint32_t>(open_.size()); }

private:
  std::vector<std::vector<std::int64_t>> open_;
};

class picture {
public:
  explicit picture(const std::function<result<void>(std::string_view)>& write) : write_{write} {}

  result<picture_summary> draw(std::span<const proto::trace_part> parts) {
    gather(parts);
    line(R"({"displayTimeUnit":"ns","traceEvents":[)", true);
    for (auto& [process, tracks] : processes_)
      DI_TRY_VOID(draw_process(process, tracks));
    DI_TRY_VOID(draw_flows());
    out_ += "\n]}\n";
    DI_TRY_VOID(flush(0));
    return summary_;
  }

private:
  void gather(std::span<const proto::trace_part> parts) {
    std::map<std::string, std::int64_t> offset; // host -> wall - monotonic, of its first part
    const auto host_of = [](const proto::trace_part& p) {
      return p.host.empty() ? p.process : p.host;
    };
    std::int64_t first = INT64_MAX;
    for (const proto::trace_part& p : parts) {
      const std::int64_t o = offset.emplace(host_of(p), p.wall_ns - p.monotonic_ns).first->second;
      for (const proto::trace_event& e : p.events)
        first = std::min(first, e.begin_ns + o);
    }
    for (const proto::trace_part& p : parts) {
      const std::int64_t o = offset.at(host_of(p)) - first;
      auto& tracks = processes_[p.process];
      summary_.lost += p.lost;
      for (const proto::trace_event& e : p.events) {
        const std::string& name = e.track < p.tracks.size() ? p.tracks[e.track] : p.process;
        track_spans& t = tracks[name];
        t.name = name;
        if (e.flow.v != 0 && name.starts_with(trace_track))
          trace_of_[e.flow.v] = name.substr(trace_track.size());
        t.spans.push_back({&e, e.begin_ns + o, std::max(e.end_ns, e.begin_ns + mark_ns) + o, 0, 0});
      }
    }
  }

  result<void> draw_process(const std::string& process,
                            std::map<std::string, track_spans>& tracks) {
    const std::uint32_t pid = pid_of(process, 1'000'000 + next_pid_++);
    ++summary_.processes;
    const std::string shown = process.empty() ? "process" : process.substr(process[0] == '/');
    line(fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", pid,
                     json_text(shown)));
    line(fmt::format(
        R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})", pid));
    std::uint32_t tid = 1;
    for (auto& [name, track] : tracks)
      DI_TRY_VOID(draw_track(process, track, pid, tid));
    return {};
  }

  result<void> draw_track(const std::string& process, track_spans& track, std::uint32_t pid,
                          std::uint32_t& tid) {
    std::stable_sort(track.spans.begin(), track.spans.end(),
                     [](const drawn_span& a, const drawn_span& b) {
                       return std::tuple{a.begin_ns, b.end_ns} < std::tuple{b.begin_ns, a.end_ns};
                     });
    lane_layout lanes;
    for (drawn_span& s : track.spans) {
      s.pid = pid;
      s.tid = tid + lanes.place(s);
      draw_span(s);
      DI_TRY_VOID(flush(block_bytes));
      if (s.event->flow.v != 0)
        flows_[s.event->flow.v].push_back(s);
    }
    std::string shown = track.name;
    if (shown.size() > process.size() + 1 && shown.starts_with(process + "/"))
      shown.erase(0, process.size() + 1);
    for (std::uint32_t lane = 0; lane < lanes.lanes(); ++lane) {
      line(fmt::format(
          R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", pid,
          tid + lane, json_text(lane == 0 ? shown : fmt::format("{} ({})", shown, lane + 1))));
      line(fmt::format(
          R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}}}})",
          pid, tid + lane));
    }
    summary_.tracks += lanes.lanes();
    summary_.spans += track.spans.size();
    tid += std::max(1U, lanes.lanes());
    return {};
  }

  void draw_span(const drawn_span& s) {
    const proto::trace_event& e = *s.event;
    const auto kind = static_cast<trace::kind>(e.what);
    std::string args;
    const auto add = [&](std::string_view name, const std::string& value) {
      args += fmt::format("{}\"{}\":{}", args.empty() ? "" : ",", name, value);
    };
    if (e.flow.v != 0)
      add("request", json_text(fmt::format("{:016x}", e.flow.v)));
    if (const auto found = trace_of_.find(e.flow.v); found != trace_of_.end())
      add("trace_id", json_text(found->second));
    if (e.rows != 0)
      add("rows", std::to_string(e.rows));
    if (e.layer >= 0)
      add("layer", std::to_string(e.layer));
    if (e.value != 0 || kind == trace::kind::assign)
      add(kind == trace::kind::balance || kind == trace::kind::plan ? "moe_lb"
          : kind == trace::kind::verify                             ? "accepted"
          : kind == trace::kind::assign                             ? "rank"
                                                                    : "value",
          fmt::format("{}", e.value));
    line(fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":"{}","args":{{{}}}}})",
        s.pid, s.tid, micros_of(s.begin_ns), micros_of(s.end_ns - s.begin_ns),
        kind <= trace::kind::prefill  ? "step"
        : kind < trace::kind::balance ? "request"
                                      : "experts",
        trace::to_string(kind), args));
  }

  result<void> draw_flows() {
    for (auto& [flow, spans] : flows_) {
      if (spans.size() < 2)
        continue;
      std::stable_sort(spans.begin(), spans.end(), [](const drawn_span& a, const drawn_span& b) {
        return a.begin_ns < b.begin_ns;
      });
      ++summary_.flows;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const bool last = i + 1 == spans.size();
        line(fmt::format(
            R"({{"ph":"{}","pid":{},"tid":{},"ts":{},"cat":"request","name":"request","id":"0x{:x}"{}}})",
            i == 0 ? "s"
            : last ? "f"
                   : "t",
            spans[i].pid, spans[i].tid, micros_of(spans[i].begin_ns), flow,
            last ? R"(,"bp":"e")" : ""));
      }
      DI_TRY_VOID(flush(block_bytes));
    }
    return {};
  }

  void line(std::string_view text, bool head = false) {
    out_ += head || first_ ? "" : ",";
    out_ += head ? "" : "\n";
    out_ += text;
    first_ = head;
  }

  result<void> flush(std::size_t above) {
    if (out_.size() <= above)
      return {};
    DI_TRY_VOID(write_(out_));
    out_.clear();
    return {};
  }

  const std::function<result<void>(std::string_view)>& write_;
  std::map<std::string, std::map<std::string, track_spans>> processes_;
  std::map<std::uint64_t, std::vector<drawn_span>> flows_;
  std::map<std::uint64_t, std::string> trace_of_; ///< request -> its client's trace
  picture_summary summary_;
  std::string out_;
  bool first_ = true;
  std::uint32_t next_pid_ = 0;
};

} // namespace

result<picture_summary> write_picture(std::span<const proto::trace_part> parts,
                                      const std::function<result<void>(std::string_view)>& write) {
  return picture{write}.draw(parts);
}

} // namespace di::launch
