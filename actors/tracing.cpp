// SPDX-License-Identifier: Apache-2.0
// Reading the ring, page by page and process by process.
#include "actors/tracing.hpp"

#include "messaging/base/trace.hpp"

#include <algorithm>

namespace di::actors {

tracer_core::tracer_core(address process) : process_{std::move(process)}, host_{trace::host_key()} {
}

result<proto::trace_part> tracer_core::on(const proto::get_trace& m) const {
  if (m.stop)
    trace::disable();
  trace::part read = trace::read(m.first, std::clamp(m.events_max, 1U, events_max));
  proto::trace_part p;
  p.process = process_;
  p.host = host_;
  p.monotonic_ns = read.clocks.monotonic_ns;
  p.wall_ns = read.clocks.wall_ns;
  p.next = read.next;
  p.lost = read.lost;
  p.more = read.more;
  p.tracks = std::move(read.tracks);
  p.events.reserve(read.events.size());
  for (const trace::event& e : read.events)
    p.events.push_back({static_cast<std::uint8_t>(e.what), e.track, e.begin_ns, e.end_ns, e.flow,
                        e.args.rows, e.args.layer, e.args.value});
  return p;
}

result<void> trace_collector_core::on(const proto::collect_trace&, instant, outbox& out) {
  if (begun_)
    return {};
  begun_ = true;
  left_ = options_.tracers.size();
  for (std::size_t i = 0; i < options_.tracers.size(); ++i)
    ask(i, 0, out);
  if (left_ == 0)
    options_.finished({});
  return {};
}

void trace_collector_core::ask(std::size_t tracer, std::uint64_t first, outbox& out) {
  out.request(options_.tracers[tracer], proto::get_trace{first, tracer_core::events_max, true},
              tracer, options_.timeout);
}

result<void> trace_collector_core::on_answer(std::uint64_t tag, result<parcel> answer, instant,
                                             outbox& out) {
  const auto tracer = static_cast<std::size_t>(tag);
  const proto::trace_part* part = answer ? answer->as<proto::trace_part>() : nullptr;
  if (!part) {
    done(tracer, answer ? std::string{"not a trace"} : answer.error().what);
    return {};
  }
  if (auto taken = options_.take(*part); !taken) {
    done(tracer, taken.error().what);
    return {};
  }
  if (part->more)
    ask(tracer, part->next, out);
  else
    done(tracer, {});
  return {};
}

void trace_collector_core::done(std::size_t tracer, const std::string& missing) {
  if (!missing.empty())
    missing_ +=
        fmt::format("{}{}: {}", missing_.empty() ? "" : "; ", options_.tracers[tracer], missing);
  if (--left_ > 0)
    return;
  if (missing_.empty())
    options_.finished({});
  else
    options_.finished(fail(ec::unavailable, "trace: {}", missing_));
}

std::unique_ptr<core_handle> make_tracer(address process) {
  return wrap_core<tracer>(std::move(process));
}

std::unique_ptr<core_handle> make_trace_collector(collector_options options) {
  return wrap_core<trace_collector>(std::move(options));
}

} // namespace di::actors
