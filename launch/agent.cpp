// SPDX-License-Identifier: Apache-2.0
// Waits for the token, joins, then is a node process like any other.
#include "launch/agent.hpp"

#include "launch/cluster.hpp"
#include "launch/endpoints.hpp"
#include "launch/join_token.hpp"
#include "launch/mail_queue.hpp"
#include "launch/node.hpp"
#include "launch/plan.hpp"
#include "launch/poll_loop.hpp"
#include "launch/signals.hpp"
#include "launch/units.hpp"
#include "messaging/base/env.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/proto/node.hpp"
#include "messaging/wire/codec.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <poll.h>
#include <unistd.h>

namespace di::launch {
namespace {

using clock = poll_loop::clock;
const address launcher_path = "/node/0/launcher";

int complain(int code, const std::string& what) {
  std::fprintf(stderr, "dilaunch agent: %s\n", what.c_str());
  return code;
}

/// The link to the launcher as a voice.
class office_voice : public node_voice {
public:
  static result<std::unique_ptr<office_voice>> make(const join_token& token) {
    std::unique_ptr<office_voice> v{new office_voice};
    bus::post_office_options o;
    o.life = incarnation{real_env().random() | 1U};
    o.prefix = fmt::format("/agent/{:x}", o.life.v);
    // The address of this host that leads to the launcher is the one that leads back.
    const auto at = token.launcher.control_endpoint.rfind(':');
    DI_TRY(const auto own, own_address_towards(token.launcher.control_endpoint.substr(6, at - 6)));
    o.control_endpoint = fmt::format("tcp://{}:*", own);
    o.bulk_endpoint = o.control_endpoint;
    o.keys = token.keys;
    o.codecs = std::make_shared<const wire::codec_table>(wire::builtin_codecs());
    DI_TRY(v->office_, bus::make_post_office(std::move(o)));
    v->path_ = v->office_->self().prefix + "/agent";
    DI_TRY_VOID(v->office_->bind(
        v->path_, [queue = v->mail_](envelope mail) { queue->put(std::move(mail)); }));
    DI_TRY_VOID(v->office_->add_route(token.launcher));
    return v;
  }

  /// One question; the answer within `wait`. @errors deadline_exceeded, and what the launcher says
  result<std::uint32_t> ask(const agent_options& options, std::chrono::milliseconds wait) {
    const auto self = office_->self();
    const auto here = this_machine();
    envelope mail;
    mail.to = launcher_path;
    mail.from = path_;
    mail.kind = mail_kind::request;
    mail.request = office_->number();
    mail.deadline = real_env().now() + wait;
    mail.body = parcel::of(proto::join_cluster{
        options.host.empty() ? here.host_name : options.host, options.node, here.cores, self.prefix,
        self.life, self.control_endpoint, self.bulk_endpoint, self.curve_key});
    DI_TRY_VOID(office_->post(std::move(mail)));
    const auto until = clock::now() + wait + std::chrono::seconds{1};
    while (clock::now() < until) {
      pollfd p{mail_->fd(), POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now());
      ::poll(&p, 1, static_cast<int>(left.count()));
      std::optional<result<std::uint32_t>> answer;
      std::deque<envelope> others; // orders that came with the answer
      for (auto& m : mail_->take()) {
        if (const auto* joined = m.body.as<proto::cluster_joined>())
          answer = joined->node.v;
        else if (const auto* refused = m.body.as<proto::request_failed>())
          answer = fail(error{refused->code, refused->what});
        else
          others.push_back(std::move(m));
      }
      for (auto& m : others)
        mail_->put(std::move(m));
      if (answer && answer->ok())
        (void)office_->watch("/node/0", path_);
      if (answer)
        return *answer;
    }
    return fail(ec::deadline_exceeded, "no answer from the launcher within {}", format_time(wait));
  }

  int fd() const override { return mail_->fd(); }
  bool read(const std::function<void(const std::string&)>& line) override {
    bool there = true;
    for (const auto& m : mail_->take()) {
      if (const auto* order = m.body.as<proto::node_line>())
        line(order->line);
      else if (m.body.as<proto::actor_down>())
        there = false;
    }
    return there;
  }
  void write(const std::string& line, line_worth worth) override { backlog_.put(line, worth); }
  bool flush() override { return backlog_.flush(); }
  std::uint64_t take_dropped() override { return backlog_.take_dropped(); }

private:
  office_voice() = default;
  /// A lost launcher shows as the end of read().
  result<void> post(const std::string& line) {
    envelope mail;
    mail.to = launcher_path;
    mail.from = path_;
    mail.body = parcel::of(proto::node_line{line});
    return office_->post(std::move(mail));
  }

  address path_;
  std::shared_ptr<mail_queue> mail_ = std::make_shared<mail_queue>();
  line_backlog backlog_{[this](const std::string& line) { return post(line); }};
  std::unique_ptr<bus::post_office> office_; ///< last: its thread fills mail_
};

/// The token, as soon as there is one. Looks again ten times a second: the file may be on a shared
/// file system, where nothing can be watched.
result<join_token> await_token(const agent_options& options) {
  const auto until = clock::now() + options.wait;
  while (true) {
    auto token = read_token(options.token_file);
    if (token.ok() || token.error().code != ec::io_error || clock::now() >= until)
      return token;
    ::poll(nullptr, 0, 100);
  }
}

/// Puts the port of `--join` into the token: control there, bulk one above.
result<void> redirect(join_token& token, const std::string& join) {
  const auto colon = join.rfind(':');
  if (!join.starts_with("tcp://") || colon <= 6)
    return fail(ec::bad_argument, "--join {}: write tcp://host:port", join);
  DI_TRY(const auto port, parse_integer(join.substr(colon + 1)));
  DI_TRY(const auto number, numeric_address(join.substr(6, colon - 6)));
  if (port < 1 || port > 65534)
    return fail(ec::bad_argument, "--join {}: port outside 1 to 65534", join);
  token.launcher.control_endpoint = fmt::format("tcp://{}:{}", number, port);
  if (const auto bulk = token.launcher.bulk_endpoint.rfind(':'); bulk != std::string::npos)
    token.launcher.bulk_endpoint =
        fmt::format("tcp://{}{}", number, token.launcher.bulk_endpoint.substr(bulk));
  return {};
}

} // namespace

void take_slurm(agent_options& options) {
  const char* id = std::getenv("SLURM_NODEID");
  if (options.node < 0 && id)
    if (const auto n = parse_integer(id); n.ok())
      options.node = *n;
  const char* name = std::getenv("SLURMD_NODENAME");
  if (options.host.empty() && name)
    options.host = name;
}

int run_agent(const agent_options& options) {
  block_signals();
  auto token = await_token(options);
  if (!token.ok())
    return complain(exit_usage, token.error().what);
  if (!options.join.empty())
    if (const auto ok = redirect(*token, options.join); !ok.ok())
      return complain(exit_usage, ok.error().what);
  auto voice = office_voice::make(*token);
  if (!voice.ok())
    return complain(exit_gave_up, voice.error().what);
  const auto node = (*voice)->ask(options, options.wait);
  if (!node.ok())
    return complain(node.error().code == ec::bad_argument ? exit_usage : exit_gave_up,
                    fmt::format("{}: {}", token->launcher.control_endpoint, node.error().render()));
  const auto program = own_program();
  if (!program.ok())
    return complain(exit_gave_up, program.error().what);
  return serve_node({*node, *program}, **voice);
}

} // namespace di::launch
