// SPDX-License-Identifier: Apache-2.0
// Agents over the post office.
#include "launch/agent_host.hpp"

#include "launch/endpoints.hpp"
#include "launch/join_token.hpp"
#include "launch/line_backlog.hpp"
#include "messaging/base/env.hpp"
#include "messaging/proto/bus.hpp"
#include "messaging/proto/node.hpp"
#include "messaging/wire/codec.hpp"

#include <fmt/format.h>

#include <unistd.h>

namespace di::launch {
namespace {

const address launcher_prefix = "/node/0";
const address launcher_path = "/node/0/launcher";
constexpr std::chrono::milliseconds retry_after{10};

class agent_node : public remote_node {
public:
  agent_node(poll_loop& loop, std::shared_ptr<bus::post_office> office, address prefix)
      : loop_{loop}, office_{std::move(office)}, prefix_{std::move(prefix)} {}
  ~agent_node() override { loop_.cancel(retry_); }

  void send(const node_order& order) override {
    backlog_.put(to_json(order), line_worth::keep);
    retry();
  }
  void kill() override { office_->remove_route(prefix_, {ec::gave_up, "it did not end in time"}); }

private:
  /// A lost agent is reported by the watch.
  result<void> post(const std::string& line) {
    envelope mail;
    mail.to = prefix_ + "/agent";
    mail.from = launcher_path;
    mail.body = parcel::of(proto::node_line{line});
    return office_->post(std::move(mail));
  }
  void retry() {
    loop_.cancel(retry_);
    if (!backlog_.flush())
      retry_ = loop_.at(poll_loop::clock::now() + retry_after, [this] { retry(); });
  }

  poll_loop& loop_;
  std::shared_ptr<bus::post_office> office_;
  address prefix_;
  line_backlog backlog_{[this](const std::string& line) { return post(line); }};
  std::uint64_t retry_ = 0;
};

} // namespace

std::uint32_t agent_port(const topology& t, const cluster_plan& plan) {
  return t.port_base + 2 * (1 + static_cast<std::uint32_t>(plan.ranks.size()));
}

agent_host::agent_host(poll_loop& loop, const cluster_plan& plan, remote_events events,
                       joined_fn joined)
    : loop_{loop}, plan_{plan}, events_{std::move(events)}, joined_{std::move(joined)} {
}

result<std::unique_ptr<agent_host>> agent_host::make(poll_loop& loop, const topology& t,
                                                     const cluster_plan& plan,
                                                     const std::string& token_file,
                                                     remote_events events, joined_fn joined) {
  DI_TRY(const auto number, numeric_address(plan.nodes[0].address));
  bus::post_office_options o;
  o.prefix = launcher_prefix;
  o.life = incarnation{real_env().random() | 1U};
  const auto port = agent_port(t, plan);
  o.control_endpoint = t.port_base == 0 ? fmt::format("tcp://{}:*", number)
                                        : fmt::format("tcp://{}:{}", number, port);
  o.bulk_endpoint = t.port_base == 0 ? fmt::format("tcp://{}:*", number)
                                     : fmt::format("tcp://{}:{}", number, port + 1);
  DI_TRY(o.keys, bus::make_curve_keys());
  DI_TRY(const auto agent_keys, bus::make_curve_keys());
  o.allowed_keys = {agent_keys.public_key};
  o.codecs = std::make_shared<const wire::codec_table>(wire::builtin_codecs());
  DI_TRY(auto office, bus::make_post_office(std::move(o)));
  std::unique_ptr<agent_host> host{
      new agent_host{loop, plan, std::move(events), std::move(joined)}};
  host->office_ = std::move(office);
  host->self_ = host->office_->self();
  DI_TRY_VOID(host->office_->bind(
      launcher_path, [queue = host->mail_](envelope mail) { queue->put(std::move(mail)); }));
  loop.watch(host->mail_->fd(), [h = host.get()] { h->read_mail(); });
  DI_TRY_VOID(write_token(token_file, {host->self_, agent_keys}));
  host->token_file_ = token_file;
  return host;
}

agent_host::~agent_host() {
  loop_.forget(mail_->fd());
  if (!token_file_.empty())
    ::unlink(token_file_.c_str());
}

void agent_host::read_mail() {
  for (const auto& mail : mail_->take()) {
    if (mail.body.as<proto::join_cluster>()) {
      on_join(mail);
    } else if (const auto* line = mail.body.as<proto::node_line>()) {
      const auto prefix = mail.from.substr(0, mail.from.rfind('/'));
      const auto node = nodes_.find(prefix);
      const auto report = parse_report(line->line);
      if (node != nodes_.end() && report.ok())
        events_.report(node->second, *report);
    } else if (const auto* down = mail.body.as<proto::actor_down>()) {
      const auto found = nodes_.find(down->path);
      if (found == nodes_.end())
        continue;
      const auto node = found->second;
      nodes_.erase(found); // another agent may be this node from now on
      events_.lost(node, fmt::format("agent of node {}: {}", node, down->what));
    }
  }
}

result<std::uint32_t> agent_host::pick(std::int64_t wanted, const std::string& host) const {
  std::set<std::uint32_t> taken;
  for (const auto& [prefix, node] : nodes_)
    taken.insert(node);
  if (wanted == 0)
    return fail(ec::bad_argument, "node 0 is the launcher itself");
  if (wanted > 0) {
    if (static_cast<std::size_t>(wanted) >= plan_.nodes.size())
      return fail(ec::bad_argument, "there is no node {}; the cluster has nodes 0 to {}", wanted,
                  plan_.nodes.size() - 1);
    if (taken.contains(static_cast<std::uint32_t>(wanted)))
      return fail(ec::duplicate, "node {} has joined already", wanted);
    return static_cast<std::uint32_t>(wanted);
  }
  const auto here = this_machine().host_name;
  for (const auto& n : plan_.nodes)
    if (n.node != 0 && !taken.contains(n.node) && (n.host == host || (n.local && host == here)))
      return n.node;
  return fail(ec::not_found, "no free node of the cluster is on host {}", host);
}

void agent_host::refuse(const envelope& mail, const error& why) {
  envelope answer;
  answer.to = mail.from;
  answer.from = launcher_path;
  answer.kind = mail_kind::failure;
  answer.request = mail.request;
  answer.body = parcel::of(proto::request_failed{why.code, why.what});
  (void)office_->post(std::move(answer));
}

void agent_host::on_join(const envelope& mail) {
  const auto& m = *mail.body.as<proto::join_cluster>();
  auto node =
      nodes_.contains(m.prefix) ? result<std::uint32_t>{nodes_.at(m.prefix)} : pick(m.node, m.host);
  const bool fresh = node.ok() && !nodes_.contains(m.prefix);
  if (fresh) {
    const auto routed =
        office_->add_route({m.prefix, m.life, m.control_endpoint, m.bulk_endpoint, m.curve_key});
    if (!routed.ok())
      node = fail(routed.error());
  }
  if (!node.ok())
    return refuse(mail, node.error());
  nodes_[m.prefix] = *node;
  (void)office_->watch(m.prefix, launcher_path);
  envelope answer;
  answer.to = mail.from;
  answer.from = launcher_path;
  answer.kind = mail_kind::reply;
  answer.request = mail.request;
  answer.body = parcel::of(proto::cluster_joined{node_id{*node}});
  (void)office_->post(std::move(answer));
  if (fresh) // it says hello when it serves
    joined_(*node, std::make_unique<agent_node>(loop_, office_, m.prefix));
}

} // namespace di::launch
