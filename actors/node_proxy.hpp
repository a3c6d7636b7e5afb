// SPDX-License-Identifier: Apache-2.0
// NODE_PROXY: stands in the control process at /node/<n> for a node process, which speaks lines and
// no mail. Facts of nodes need no proxy: whoever reads the link posts them to their receivers.
#pragma once

#include "actors/kit.hpp"
#include "messaging/proto/node.hpp"

#include <map>

namespace di::actors {

/// The way to the node processes. Calls do not wait; any actor thread. Outlives the proxies.
class node_orders {
public:
  virtual ~node_orders() = default;
  virtual void start_rank(node_id node, rank_id rank, std::uint64_t number) = 0;
  virtual void kill_rank(node_id node, const proto::kill_rank& order) = 0;
};

/// Answers start_rank when the node process has answered: rank_started or start_failed comes as
/// mail to the proxy. A second start_rank of a rank takes the place of the first, which is refused.
class node_proxy_core {
public:
  node_proxy_core(node_id node, node_orders& orders) : node_{node}, orders_{&orders} {}

  void on(const proto::start_rank& m, reply_to ticket, instant now, outbox& out);
  void on(const proto::kill_rank& m, instant now, outbox& out);
  void on(const proto::rank_started& m, instant now, outbox& out);
  void on(const proto::start_failed& m, instant now, outbox& out);

private:
  node_id node_;
  node_orders* orders_;
  std::map<rank_id, reply_to> asked_;
  std::uint64_t last_number_ = 0;
};

struct node_proxy {
  static constexpr auto kind = "node_proxy";
  using core = node_proxy_core;
  using protocol = di::protocol<replies_to<proto::start_rank>::with<proto::rank_started>, // KEEPER
                                reacts_to<proto::kill_rank>,                              // KEEPER
                                reacts_to<proto::rank_started>,  // the node process
                                reacts_to<proto::start_failed>>; // the node process
};

} // namespace di::actors
