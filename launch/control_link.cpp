// SPDX-License-Identifier: Apache-2.0
// Lines to mail and back.
#include "launch/control_link.hpp"

#include "messaging/base/log.hpp"
#include "messaging/proto/directory.hpp"
#include "messaging/proto/membership.hpp"

#include <fmt/format.h>

namespace di::launch {
namespace {

template <message M>
void post(bus::post_office& office, const node_word& from, address to, M m) {
  envelope mail;
  mail.to = std::move(to);
  mail.from = fmt::format("/node/{}", from.node);
  mail.body = parcel::of(std::move(m));
  if (const auto sent = office.post(std::move(mail)); !sent.ok())
    log::warn("node_word_undelivered", {{"what", sent.error().render()}});
}

} // namespace

void control_link::start_rank(node_id node, rank_id rank, std::uint64_t number) {
  child_word w;
  w.kind = child_word_kind::start_rank;
  w.node = node.v;
  w.rank = rank.v;
  w.number = number;
  tell_node(w);
}

void control_link::kill_rank(node_id node, const proto::kill_rank& order) {
  child_word w;
  w.kind = child_word_kind::kill_rank;
  w.node = node.v;
  w.rank = order.rank.v;
  w.life = order.life;
  w.politely = order.politely;
  w.what = order.reason;
  tell_node(w);
}

void control_link::answer_operator(std::uint64_t connection, const std::string& line) {
  child_word w;
  w.kind = child_word_kind::admin_reply;
  w.number = connection;
  w.last = true;
  w.what = line;
  tell_node(w);
}

void control_link::take(const node_word& word, bus::post_office& office) {
  const rank_id rank{word.rank};
  switch (word.kind) {
  case node_word_kind::rank_lost:
    log::warn("member_lost", {{"rank", rank.v}, {"why", word.what}});
    return post(office, word, "/control/membership",
                proto::member_lost{rank, word.life, word.what});
  case node_word_kind::rank_stuck:
    log::warn("member_stuck",
              {{"rank", rank.v}, {"phase", word.phase}, {"stuck_ms", word.stuck_ms}});
    return post(office, word, "/control/membership",
                proto::member_stuck{rank, word.life, word.phase, word.stuck_ms, word.what});
  case node_word_kind::rank_exited:
    log::info("rank_exited", {{"rank", rank.v}, {"how", word.what}});
    return post(office, word, "/control/keeper",
                proto::rank_exited{rank, node_id{word.node}, word.life, word.state.code,
                                   word.state.signal, word.what});
  case node_word_kind::rank_started:
    log::info("rank_started", {{"rank", rank.v}, {"node", word.node}});
    return post(office, word, fmt::format("/node/{}", word.node),
                proto::rank_started{rank, word.life});
  case node_word_kind::start_failed:
    log::warn("rank_start_failed", {{"rank", rank.v}, {"why", word.what}});
    return post(office, word, fmt::format("/node/{}", word.node),
                proto::start_failed{rank, // its last life may not be reaped yet
                                    word.what.starts_with(to_string(ec::duplicate))
                                        ? ec::duplicate
                                        : ec::unavailable,
                                    word.what});
  case node_word_kind::gateway_lost: {
    const proto::withdrawn gone{fmt::format("/gateway/{}", word.number), word.life, word.what};
    if (word.what.empty())
      log::info("gateway_drained", {{"gateway", word.number}});
    else
      log::warn("gateway_lost", {{"gateway", word.number}, {"why", word.what}});
    post(office, word, "/control/journal", gone);
    return post(office, word, "/control/directory", gone);
  }
  default:
    return;
  }
}

} // namespace di::launch
