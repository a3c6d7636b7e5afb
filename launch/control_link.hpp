// SPDX-License-Identifier: Apache-2.0
// The control process's side of the child link: what node 0 tells about ranks becomes mail, orders
// of KEEPER become lines.
#pragma once

#include "actors/node_proxy.hpp"
#include "launch/child_link.hpp"
#include "messaging/bus/post_office.hpp"

namespace di::launch {

/// Owned by the control process; outlives its actors.
class control_link final : public actors::node_orders {
public:
  // Any thread.
  void start_rank(node_id node, rank_id rank, std::uint64_t number) override;
  void kill_rank(node_id node, const proto::kill_rank& order) override;

  /// Any thread: the last line for an operator.
  static void answer_operator(std::uint64_t connection, const std::string& line);

  /// Main thread: posts what a word says. Certificates go to /control/membership, ends to
  /// /control/keeper, answers to the node's proxy. Words that are not about ranks are ignored.
  static void take(const node_word& word, bus::post_office& office);
};

} // namespace di::launch
