// SPDX-License-Identifier: Apache-2.0
// The gateway process: HTTP for clients, GATEWAY towards the cluster. It reads config.json and the
// tokenizer of the model, no weights.
#include "launch/serve/gateway_process.hpp"

#include "actors/control.hpp"
#include "actors/directory.hpp"
#include "actors/serving_boot.hpp"
#include "actors/telemetry.hpp"
#include "launch/cluster.hpp"
#include "launch/serve/routes_responses.hpp"
#include "launch/serve/settings_of.hpp"
#include "messaging/base/limits.hpp"
#include "messaging/base/log.hpp"
#include "messaging/proto/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace di::launch {
namespace {

using namespace std::chrono_literals;

/// How long the end of the last answers may take to its clients.
constexpr std::chrono::milliseconds last_bytes{5'000};

/// The inherited listening sockets; ours to close.
std::vector<int> inherited(std::uint32_t first, std::uint32_t count) {
  std::vector<int> all;
  for (std::uint32_t i = 0; i < count; ++i) {
    const int fd = segments_fd + static_cast<int>(first + i);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    all.push_back(fd);
  }
  return all;
}

/// Descriptors for so many connections besides all others. @return how many the system allows
std::size_t room_for(std::size_t connections, const topology& t) {
  const auto others = limits::descriptors_other
                      + (t.ep + t.gateway.replicas + 8) * limits::descriptors_per_peer + 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return connections;
  if (limit.rlim_cur < others + connections) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, others + connections);
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const std::size_t allowed = limit.rlim_cur > others + 16 ? limit.rlim_cur - others : 16;
  if (allowed < connections)
    log::warn(
        "descriptors_short",
        {{"wanted", connections + others}, {"allowed", limit.rlim_cur}, {"connections", allowed}});
  return std::min(allowed, connections);
}

} // namespace

result<void> gateway_host::start(child_context& c, end_latch& latch) {
  context_ = &c;
  latch_ = &latch;
  if (!c.boot.gateway)
    return fail(ec::bad_format, "boot configuration: a gateway without sockets");
  const auto& boot = *c.boot.gateway;
  const auto for_clients = inherited(0, boot.http_sockets);
  const auto for_operators = inherited(boot.http_sockets, boot.admin_sockets);
  DI_TRY_VOID(c.open(false));
  DI_TRY(model_, actors::read_model_outline(c.config.model_path, c.config.tokenizer_path));
  if (!model_.words)
    return fail(ec::bad_config, "{}: no tokenizer.json, which serving needs; write model.tokenizer",
                c.config.model_path);
  state_ = std::make_shared<serve::readiness>(c.config.ep, boot.recovering);
  state_->on_ready([] { report_status({status_kind::serving, {}, {}}); });
  DI_TRY_VOID(start_actors());
  DI_TRY_VOID(start_http(for_clients));
  DI_TRY_VOID(start_admin(for_operators));
  return {};
}

result<void> gateway_host::start_actors() {
  auto& c = *context_;
  actors::stream_gateway_settings s;
  s.path = c.prefix();
  s.life = c.boot.life;
  s.window = s.waiting = c.config.gateway.limits.queue;
  s.ended = [latch = latch_](const error& e) {
    if (e.code != ec::ok)
      latch->end(exit_gave_up, e.render());
  };
  DI_TRY(desk_, actors::spawn_stream_gateway(*c.system, s));

  actors::registrar_options r;
  r.process = actors::to_process(c.office->self());
  r.process.role = "gateway";
  r.office = c.office.get();
  r.join_within = c.config.start_timeout;
  r.installed = [state = state_](const proto::directory_snapshot& all) {
    for (const auto& p : all.processes)
      if (p.role == "rank") {
        state->contract(p.contract_id);
        break;
      }
    report_status({status_kind::ready, {}, {}});
  };
  actors::spawn_options ended;
  ended.ended = s.ended;
  DI_TRY_VOID(c.system->spawn(c.prefix() + "/registrar", actors::make_registrar(std::move(r)),
                              std::move(ended)));
  actors::sampler_options m;
  m.source = c.prefix();
  m.life = c.boot.life;
  m.counters = &c.system->counters();
  DI_TRY_VOID(c.system->spawn(c.prefix() + "/sampler", actors::make_sampler(std::move(m))));
  serve::probe_options p;
  p.state = state_;
  p.desk = desk_;
  p.token = model_.spec.bos_token_id;
  return c.system->spawn(c.prefix() + "/probe", serve::make_probe(std::move(p)));
}

result<void> gateway_host::start_http(const std::vector<int>& sockets) {
  const auto& c = *context_;
  serve::serving_metrics_options counted;
  counted.gateway = c.boot.index;
  counted.model = c.config.gateway.model_names.front();
  counted.compat_metrics = c.config.gateway.compat_metrics;
  metrics_ = std::make_shared<serve::serving_metrics>(counted);
  serve::service_parts parts;
  parts.settings = serve::settings_of(c.config, model_, c.boot.index);
  parts.words = model_.words;
  parts.desk = desk_;
  parts.health = state_;
  parts.metrics = metrics_.get();
  service_ = std::make_unique<serve::service>(std::move(parts));
  DI_TRY_VOID(service_->load_keys());
  router_ = std::make_unique<serve::router>(*service_);
  serve::add_public_routes(*router_, *service_);
  serve::add_responses_routes(*router_, *service_);
  auto options = serve::http_options_of(c.config.gateway);
  options.listening = sockets;
  options.limits.connections = room_for(options.limits.connections, c.config);
  DI_TRY(http_, http::server::start(std::move(options), router_->callbacks()));
  metrics_->server_counts_from([http = http_.get()] {
    const auto n = http->count();
    return serve::server_counts{n.refused, n.timed_out, n.gone};
  });
  DI_TRY(metrics_desk_, serve::metrics_desk::open(*c.office, c.prefix(), metrics_));
  service_->start_clock();
  log::info("gateway_listens", {{"gateway", c.boot.index}, {"port", c.boot.gateway->http_port}});
  return {};
}

result<void> gateway_host::start_admin(const std::vector<int>& sockets) {
  if (sockets.empty())
    return {}; // of the first gateway only
  auto& c = *context_;
  serve::admin_listener_options o;
  o.listening = sockets;
  o.port = static_cast<std::uint16_t>(c.boot.gateway->admin_port);
  o.prefix = c.prefix();
  o.topology = c.config.name;
  o.model = c.config.gateway.model_names.front();
  o.compat_metrics = c.config.gateway.compat_metrics;
  DI_TRY(admin_, serve::admin_listener::start(*c.office, std::move(o)));
  return {};
}

void gateway_host::hear(const node_word& word) {
  auto& c = *context_;
  switch (word.kind) {
  case node_word_kind::control_is:
    for (const auto& to : {c.prefix() + "/registrar", c.prefix()}) {
      envelope mail;
      mail.to = to;
      mail.from = c.prefix();
      mail.body = parcel::of(proto::control_moved{actors::to_process(word.peer)});
      if (const auto sent = c.office->post(std::move(mail)); !sent.ok())
        log::warn("control_moved_untold", {{"to", to}, {"what", sent.error().what}});
    }
    return;
  case node_word_kind::processes:
    return state_->processes(static_cast<std::uint32_t>(word.number), word.rank, word.what);
  case node_word_kind::reload:
    if (const auto done = reload(word.what); !done.ok())
      report_status({status_kind::notice,
                     {},
                     fmt::format("reload: {}; what it would have changed stays as it was",
                                 done.error().what)});
    return;
  default:
    return;
  }
}

result<void> gateway_host::reload(const std::string& text) {
  auto& c = *context_;
  auto read = read_topology(text, c.boot.topology_file, c.boot.sets);
  if (!read.value)
    return fail(error{ec::bad_config, render(read.problems, c.boot.topology_file, c.boot.sets)});
  const auto& g = read.value->gateway;
  const auto kept = service_->settings();
  auto next = serve::settings_of(*read.value, model_, c.boot.index);
  next.model.created = kept->model.created;
  next.keys_file = kept->keys_file; // another file needs a new start, as other sockets do
  auto bounds = serve::http_limits_of(g);
  bounds.connections = room_for(bounds.connections, c.config);
  http_->reload(bounds, serve::http_timeouts_of(g));
  const auto keys = service_->reload(std::move(next));
  if (g.tls())
    DI_TRY_VOID(http_->reload_tls({g.tls_cert, g.tls_key}));
  DI_TRY_VOID(keys);
  log::info("gateway_reloaded", {{"gateway", c.boot.index}});
  return {};
}

/// New requests are refused from now on; the process ends when nobody waits any more.
void gateway_host::drain() {
  state_->drain();
  desk_->drain();
  if (drainer_.joinable())
    return;
  log::warn("gateway_drains", {{"open", desk_->open()}});
  drainer_ = std::jthread{[this](const std::stop_token& stopped) {
    std::mutex unused;
    std::condition_variable_any wake;
    std::unique_lock lock{unused};
    while (!wake.wait_for(lock, stopped, 20ms,
                          [this] { return desk_->open() == 0 && http_->count().busy == 0; }))
      if (stopped.stop_requested())
        return;
    drained_ = true;
    report_status({status_kind::drained, {}, {}});
    latch_->end(exit_done);
  }};
}

void gateway_host::stop() {
  if (drainer_.joinable()) {
    drainer_.request_stop();
    drainer_.join();
  }
  metrics_desk_.reset();
  if (metrics_)
    metrics_->server_counts_from({}); // the server goes before the page
  if (http_)
    http_->stop(drained_ ? last_bytes : 200ms);
  if (admin_)
    admin_->stop(50ms);
}

int gateway_process(child_context& c, end_latch& latch) {
  gateway_host host;
  if (const auto started = host.start(c, latch); !started.ok()) {
    const int code = give_up(started.error());
    host.stop();
    if (c.system && !c.system->stop_all(200ms))
      ::_exit(code);
    return code;
  }
  const auto verdict = latch.wait([&host] { host.drain(); },
                                  [&host](const node_word& word, unique_fd) { host.hear(word); });
  if (!verdict.why.empty()) {
    log::error("gateway_failed", {{"what", verdict.why}});
    report_status({status_kind::failed, {}, verdict.why});
  }
  host.stop();
  c.log_counters();
  if (!c.system->stop_all(200ms))
    ::_exit(verdict.code);
  return verdict.code;
}

} // namespace di::launch
