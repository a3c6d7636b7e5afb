// SPDX-License-Identifier: Apache-2.0
// Questions of KEEPER to a node process, and their answers.
#include "actors/node_proxy.hpp"

namespace di::actors {

void node_proxy_core::on(const proto::start_rank& m, reply_to ticket, instant /*now*/,
                         outbox& out) {
  if (const auto before = asked_.find(m.rank); before != asked_.end())
    out.refuse(before->second,
               {ec::cancelled, fmt::format("rank {} is asked for again", m.rank.v)});
  asked_[m.rank] = std::move(ticket);
  orders_->start_rank(node_, m.rank, ++last_number_);
}

void node_proxy_core::on(const proto::kill_rank& m, instant /*now*/, outbox& /*out*/) {
  orders_->kill_rank(node_, m);
}

void node_proxy_core::on(const proto::rank_started& m, instant /*now*/, outbox& out) {
  const auto found = asked_.find(m.rank);
  if (found == asked_.end()) {
    out.count("di_node_proxy_stale_answers_total");
    return;
  }
  out.reply(found->second, m);
  asked_.erase(found);
}

void node_proxy_core::on(const proto::start_failed& m, instant /*now*/, outbox& out) {
  const auto found = asked_.find(m.rank);
  if (found == asked_.end()) {
    out.count("di_node_proxy_stale_answers_total");
    return;
  }
  out.refuse(found->second, {m.code, m.what});
  asked_.erase(found);
}

} // namespace di::actors
