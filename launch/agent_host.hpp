// SPDX-License-Identifier: Apache-2.0
// The launcher's side of agents: lets them join, and gives each the face of a remote node.
#pragma once

#include "launch/mail_queue.hpp"
#include "launch/plan.hpp"
#include "launch/remote.hpp"
#include "messaging/bus/post_office.hpp"

#include <map>
#include <memory>
#include <set>
#include <string>

namespace di::launch {

/// Used on the loop's thread.
class agent_host {
public:
  /// A node has joined; the object speaks to it.
  using joined_fn = std::function<void(std::uint32_t node, std::unique_ptr<remote_node>)>;

  /// Opens a port of node 0 and writes the token file.
  /// @errors io_error, not_found
  static result<std::unique_ptr<agent_host>> make(poll_loop& loop, const topology& t,
                                                  const cluster_plan& plan,
                                                  const std::string& token_file,
                                                  remote_events events, joined_fn joined);
  ~agent_host();
  agent_host(const agent_host&) = delete;
  agent_host& operator=(const agent_host&) = delete;

  const bus::peer& self() const noexcept { return self_; }

private:
  agent_host(poll_loop& loop, const cluster_plan& plan, remote_events events, joined_fn joined);
  void read_mail();
  void on_join(const envelope& mail);
  result<std::uint32_t> pick(std::int64_t wanted, const std::string& host) const;
  void refuse(const envelope& mail, const error& why);

  poll_loop& loop_;
  const cluster_plan& plan_;
  std::string token_file_; ///< empty until it is written: removed only if it is ours
  remote_events events_;
  joined_fn joined_;
  bus::peer self_;
  std::shared_ptr<mail_queue> mail_ = std::make_shared<mail_queue>();
  std::map<address, std::uint32_t> nodes_;   ///< agent's prefix -> node, while it is there
  std::shared_ptr<bus::post_office> office_; ///< last: its thread fills mail_
};

/// Keys of ports and tokens: base + 2 * (1 + ranks), after the ranks' own.
std::uint32_t agent_port(const topology& t, const cluster_plan& plan);

} // namespace di::launch
