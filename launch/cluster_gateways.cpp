// SPDX-License-Identifier: Apache-2.0
// Gateway processes of `dilaunch up`: their lives, what they are told, the drain, and the orders
// that node 0 carries out itself.
#include "launch/cluster_run.hpp"
#include "launch/units.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <unistd.h>

namespace di::launch {
namespace {

using clock = poll_loop::clock;
using nlohmann::json;

/// Deaths of one gateway within the span after which it starts again at once.
constexpr std::size_t deaths_at_once = 5;
constexpr std::chrono::minutes deaths_span{10};
constexpr std::chrono::milliseconds hold_off{500}, hold_off_max{30'000}; ///< then; doubles
constexpr std::uint32_t useless_lives_max = 5;
constexpr std::string_view name_head = "gateway ";

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace

std::string gateway_name(std::uint32_t gateway) {
  return fmt::format("{}{}", name_head, gateway);
}

std::optional<std::uint32_t> cluster::gateway_of(const std::string& child) const {
  std::uint32_t gateway = 0;
  if (!child.starts_with(name_head))
    return std::nullopt;
  const auto* end = child.data() + child.size();
  const auto read = std::from_chars(child.data() + name_head.size(), end, gateway);
  if (read.ec != std::errc{} || read.ptr != end || gateway >= gateways_.size())
    return std::nullopt;
  return gateway;
}

void cluster::start_gateways() {
  if (std::exchange(gateways_started_, true))
    return;
  for (std::uint32_t g = 0; g < gateways_.size() && !ending_; ++g)
    if (const auto started = start_gateway(g); !started.ok())
      end(exit_gave_up, fmt::format("{}: {}", gateway_name(g), started.error().what));
}

result<void> cluster::start_gateway(std::uint32_t gateway) {
  auto& lives = gateways_[gateway];
  const auto& sockets = o_.serve->gateways[gateway];
  auto boot = boot_for(process_role::gateway, gateway, lives.id);
  gateway_boot own;
  own.http_sockets = static_cast<std::uint32_t>(sockets.http.size());
  own.admin_sockets = static_cast<std::uint32_t>(sockets.admin.size());
  own.http_port = sockets.http_port;
  own.admin_port = o_.serve->admin_port;
  own.recovering = lives.started > 0;
  boot.gateway = own;
  child_spec spec;
  spec.name = gateway_name(gateway);
  spec.argv = {o_.program, "child", "gateway", std::to_string(gateway)};
  spec.boot = to_json(boot);
  spec.segments = sockets.http;
  spec.segments.insert(spec.segments.end(), sockets.admin.begin(), sockets.admin.end());
  DI_TRY_VOID(host_.start_other(spec, stopped_max()));
  lives.running = true;
  lives.serving = lives.drained = false;
  ++lives.started;
  tell_progress();
  return {};
}

void cluster::tell_gateways(const node_word& word) {
  for (std::uint32_t g = 0; g < gateways_.size(); ++g)
    children_.tell(gateway_name(g), word);
}

/// For the start-up state that gateways show.
void cluster::tell_progress() {
  if (gateways_.empty())
    return;
  node_word word;
  word.kind = node_word_kind::processes;
  word.rank = static_cast<std::uint32_t>(1 + ranks_.size() + gateways_.size());
  word.number = word.rank - not_ready_.size();
  for (const auto& name : not_ready_)
    word.what += (word.what.empty() ? "" : ", ") + name;
  tell_gateways(word);
}

void cluster::gateway_serves(std::uint32_t gateway) {
  auto& lives = gateways_[gateway];
  lives.serving = lives.running;
  const bool all = std::all_of(gateways_.begin(), gateways_.end(),
                               [](const gateway_lives& g) { return g.serving; });
  if (!all || ending_ || std::exchange(announced_, true))
    return;
  std::string line = "serving";
  for (const auto& url : o_.serve->urls)
    line += " " + url;
  log_.note(line);
  line += fmt::format(" (operators: {}; model: {})\n", o_.serve->admin_url,
                      o_.config.gateway.model_names.front());
  (void)write_all(o_.lines_to, line);
}

void cluster::gateway_exited(std::uint32_t gateway, exit_state state, const std::string& reason) {
  remove_sockets(gateways_[gateway].id);
  if (draining_) {
    gateways_[gateway].serving = false;
    if (!state.ok())
      log_.note(reason);
    return end_drained();
  }
  if (!formed_)
    return death_at_start(state, reason);
  restart_gateway(gateway, reason);
}

/// One that has served is started again whatever happens, after a few deaths not at once: what
/// kills it may come from a client. One that never comes so far has a defect.
void cluster::restart_gateway(std::uint32_t gateway, const std::string& reason) {
  auto& lives = gateways_[gateway];
  const auto now = clock::now();
  lives.useless = std::exchange(lives.serving, false) ? 0 : lives.useless + 1;
  if (lives.useless >= useless_lives_max)
    return end(exit_gave_up,
               fmt::format("{}; {} lives of it ended before they served", reason, lives.useless));
  while (!lives.deaths.empty() && lives.deaths.front() + deaths_span < now)
    lives.deaths.pop_front();
  lives.deaths.push_back(now);
  if (lives.deaths.size() <= deaths_at_once) {
    log_.note(fmt::format("{}; starting it again", reason));
    return start_gateway_again(gateway);
  }
  const auto wait = std::min<std::chrono::milliseconds>(
      hold_off * (1U << std::min<std::size_t>(lives.deaths.size() - deaths_at_once - 1, 8)),
      hold_off_max);
  log_.note(fmt::format("{}; it was the {}th time in 10 min: starting it again in {}", reason,
                        lives.deaths.size(), format_time(wait)));
  loop_.at(now + wait, [this, gateway] {
    if (!ending_ && !draining_)
      start_gateway_again(gateway);
  });
}

void cluster::start_gateway_again(std::uint32_t gateway) {
  auto& lives = gateways_[gateway];
  const auto started = [&]() -> result<void> {
    DI_TRY(lives.id,
           next_life(lives.id, o_.plan.tcp, dir_.path(), fmt::format("gateway{}", gateway)));
    return start_gateway(gateway);
  }();
  if (!started.ok())
    end(exit_gave_up, fmt::format("{}: {}", gateway_name(gateway), started.error().what));
}

void cluster::drain_gateways(const std::string& why) {
  if (std::exchange(draining_, true) || ending_)
    return;
  log_.note(fmt::format("{}: no new requests; open ones get {}; a second signal aborts", why,
                        format_time(o_.config.drain_timeout)));
  for (std::uint32_t g = 0; g < gateways_.size(); ++g)
    children_.signal(gateway_name(g), SIGINT); // they drain at SIGINT, end at SIGTERM
  loop_.at(clock::now() + o_.config.drain_timeout, [this] {
    log_.note(fmt::format("requests still ran after {} (supervisor.drain_timeout): cut off",
                          format_time(o_.config.drain_timeout)));
    end(exit_done, {});
  });
  end_drained();
}

void cluster::end_drained() {
  if (std::none_of(gateways_.begin(), gateways_.end(),
                   [](const gateway_lives& g) { return g.running; }))
    end(exit_done, {});
}

/// The file may be wrong by now: then everything stays as it is.
void cluster::reload() {
  std::ifstream file{o_.config.file, std::ios::binary};
  std::stringstream text;
  text << file.rdbuf();
  const auto read = read_topology(text.str(), o_.config.file, o_.sets);
  if (!file || !read.value)
    return log_.tell(fmt::format("reload: {}; everything stays as it was",
                                 !file ? o_.config.file + " cannot be read"
                                       : render(read.problems, o_.config.file, o_.sets)));
  node_word word;
  word.kind = node_word_kind::reload;
  word.what = text.str();
  tell_gateways(word);
  log_.note("reload: gateways take limits and keys from " + o_.config.file);
}

/// What this run is, for operators; before and after its control process too.
std::string cluster::state_line() const {
  json all{{"ok", true},
           {"topology", o_.config.name},
           {"file", o_.config.file},
           {"run", dir_.path()},
           {"log", o_.log_dir.empty() ? dir_.path() + "/log" : o_.log_dir},
           {"pid", ::getpid()},
           {"state", ending_       ? "ending"
                     : draining_   ? "draining"
                     : !formed_    ? "starting"
                     : !control_   ? "recovering"
                     : !o_.serve   ? "running"
                     : !announced_ ? "starting"
                                   : "serving"}};
  if (!formed_) {
    all["processes"] = 1 + ranks_.size() + gateways_.size();
    all["processes_ready"] = 1 + ranks_.size() + gateways_.size() - not_ready_.size();
  }
  if (!o_.serve)
    return dump(all);
  all["urls"] = o_.serve->urls;
  all["admin"] = o_.serve->admin_url;
  all["gateways"] = json::array();
  for (std::uint32_t g = 0; g < gateways_.size(); ++g) {
    const auto& lives = gateways_[g];
    all["gateways"].push_back({{"gateway", g},
                               {"port", o_.serve->gateways[g].http_port},
                               {"pid", children_.pid_of(gateway_name(g))},
                               {"life", fmt::format("{:016x}", lives.id.life.v)},
                               {"state", !lives.running  ? "down"
                                         : draining_     ? "draining"
                                         : lives.serving ? "serving"
                                                         : "starting"},
                               {"starts", lives.started}});
  }
  return dump(all);
}

/// Orders that need no control process. @return false: it is not one of them
bool cluster::on_own_order(std::uint64_t connection, const std::string& line) {
  const auto j = json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("command") || !j["command"].is_string())
    return false;
  const auto command = j["command"].get<std::string>();
  if (command == "who") {
    admin_->reply(connection, state_line(), true);
    return true;
  }
  if (command != "down" && command != "reload")
    return false;
  if (!o_.serve && command == "reload") {
    admin_->reply(connection, admin_error("bad_argument", "this run serves nobody"), true);
    return true;
  }
  admin_->reply(connection, state_line(), true);
  if (command == "reload")
    reload();
  else if (j.contains("now") && j["now"] == true)
    end(o_.serve ? exit_done : exit_gave_up, "stopped by dilaunch down --now");
  else
    on_signal(SIGTERM);
  return true;
}

} // namespace di::launch
