// SPDX-License-Identifier: Apache-2.0
// From exec to the role's own code.
#include "launch/child_main.hpp"

#include "actors/tracing.hpp"
#include "launch/child_context.hpp"
#include "launch/cluster.hpp"
#include "launch/segment_set.hpp"
#include "launch/signals.hpp"
#include "messaging/base/log.hpp"
#include "messaging/base/trace.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace di::launch {

end_latch::end_latch() : event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  DI_CHECK(static_cast<bool>(event_));
}

void end_latch::end(int code, std::string why) {
  const std::lock_guard lock{guard_};
  if (verdict_)
    return;
  verdict_ = verdict{code, std::move(why)};
  (void)::eventfd_write(event_.get(), 1);
}

end_latch::verdict end_latch::wait(const std::function<void()>& drain, node_word_fn heard) {
  poll_loop loop;
  std::optional<node_listener> node;
  if (heard)
    node.emplace(loop, std::move(heard));
  signal_source signals{loop, [&](int number) {
                          if (number == SIGINT)
                            drain();
                          else
                            end(exit_gave_up);
                        }};
  loop.watch(event_.get(), [&] { loop.stop(); });
  loop.run();
  const std::lock_guard lock{guard_};
  return *verdict_;
}

address child_context::prefix() const {
  return boot.role == process_role::control
             ? address{"/control"}
             : fmt::format("/{}/{}", to_string(boot.role), boot.index);
}

result<child_context> child_context::take() {
  constexpr std::size_t boot_bytes_max = 16U << 20U;
  child_context c;
  DI_TRY(const auto json, read_all(boot_fd, boot_bytes_max));
  ::close(boot_fd);
  ::fcntl(status_fd, F_SETFD, FD_CLOEXEC);
  DI_TRY(c.boot, parse_boot(json));
  if (c.boot.life_page) {
    DI_TRY(c.life, hold_life());
  }
  log::set_process(c.prefix());
  log::set_level(c.boot.log_level);
  auto read = read_topology(c.boot.topology_text, c.boot.topology_file, c.boot.sets);
  if (!read.value)
    return fail(error{ec::bad_config, render(read.problems, c.boot.topology_file, c.boot.sets)});
  c.config = std::move(*read.value);
  DI_TRY(c.types, actors::make_registry());
  return c;
}

result<void> child_context::open(bool with_plugins) {
  if (with_plugins)
    for (const auto& plugin : config.plugins)
      DI_TRY_VOID(actors::load_plugin(plugin, types));
  bus::post_office_options o;
  o.prefix = prefix();
  o.life = boot.life;
  o.control_endpoint = boot.control_endpoint;
  o.bulk_endpoint = boot.bulk_endpoint;
  if (boot.curve) {
    o.keys = {boot.curve->public_key, boot.curve->secret_key};
    o.allowed_keys = boot.curve->allowed;
  }
  o.codecs = types.codecs();
  o.segments = inherited_segments(boot, shares_memory());
  o.peers = std::max(limits::peers_default, std::size_t{config.ep} + config.gateway.replicas + 8);
  DI_TRY(office, bus::make_post_office(std::move(o)));
  if (boot.trace_spans > 0)
    trace::enable(boot.trace_spans);
  report_status({status_kind::bound, office->self(), {}});
  if (boot.control)
    DI_TRY_VOID(office->add_route(*boot.control));
  actors::system_options s;
  s.threads = boot.role == process_role::rank ? 1 : 2;
  system = std::make_unique<actors::system>(std::move(s), *office);
  if (boot.trace_spans > 0)
    return system->spawn(actors::tracer_path(prefix()), actors::make_tracer(prefix()));
  return {};
}

void child_context::log_counters() const {
  if (!config.log_counters || !system)
    return;
  std::string all;
  const auto add = [&all](std::string_view name, auto total) {
    all += fmt::format("{}{}={}", all.empty() ? "" : " ", name, total);
  };
  for (const auto& [name, total] : system->counters().totals())
    add(name, total);
  const auto s = office->stats();
  add("di_bus_mails_sent_total", s.sent);
  add("di_bus_mails_received_total", s.received);
  add("di_bus_mails_dropped_total", s.dropped);
  add("di_bus_frames_sent_total", s.frames_sent);
  add("di_bus_sent_bytes_total", s.bytes_sent);
  add("di_bus_sequence_gaps_total", s.sequence_gaps);
  add("di_bus_peers_lost_total", s.peers_lost);
  add("di_bus_segment_mails_sent_total", s.segment_mails_sent);
  add("di_bus_segment_sent_bytes_total", s.segment_bytes_sent);
  add("di_bus_segment_full_total", s.segment_full);
  add("di_bus_segment_refused_total", s.segment_refused);
  add("di_bus_segment_overwritten_total", s.segment_overwritten);
  log::info("process_counters", {{"counters", all}});
}

int give_up(const error& why) {
  log::error("process_failed", {{"code", to_string(why.code)}, {"what", why.what}});
  report_status({status_kind::failed, {}, why.what});
  return why.code == ec::bad_config || why.code == ec::bad_argument ? exit_usage : exit_gave_up;
}

int child_main() {
  block_signals();
  end_latch latch; // before the context: its actors use it to their end
  auto context = child_context::take();
  if (!context.ok())
    return give_up(context.error());
  switch (context->boot.role) {
  case process_role::control:
    return control_process(*context, latch);
  case process_role::rank:
    return rank_process(*context, latch);
  case process_role::gateway:
    return gateway_process(*context, latch);
  }
  return exit_gave_up;
}

} // namespace di::launch
