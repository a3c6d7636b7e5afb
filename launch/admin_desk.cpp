// SPDX-License-Identifier: Apache-2.0
// Reading orders, asking, and writing status.
#include "launch/admin_desk.hpp"

#include "launch/admin_server.hpp"
#include "messaging/base/env.hpp"
#include "messaging/proto/bus.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace di::launch {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr duration status_timeout = 5s;
constexpr duration order_timeout = 24h; ///< KEEPER bounds what an order takes

std::string dump(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// A whole number of a line. @errors bad_argument
result<std::uint32_t> number_of(const json& j, const char* field) {
  const auto found = j.find(field);
  if (found == j.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() > 1'000'000)
    return fail(ec::bad_argument, "{}: a whole number is needed", field);
  return found->get<std::uint32_t>();
}

json ranks_of(const proto::keeper_state& k, const std::optional<proto::schedule>& s) {
  json all = json::array();
  for (const auto& r : k.ranks) {
    json one{{"rank", r.rank.v},
             {"node", r.node.v},
             {"life", fmt::format("{:016x}", r.life.v)},
             {"state", r.state},
             {"deaths", r.deaths},
             {"starts", r.starts},
             {"wait_ms", r.wait_ms},
             {"reason", r.last_reason}};
    for (std::size_t i = 0; s && i < s->ranks.size() && i < s->assigned.size(); ++i)
      if (s->ranks[i].rank == r.rank && s->ranks[i].life == r.life) {
        one["requests"] = s->assigned[i];
        one["running"] = s->ranks[i].running;
        one["waiting"] = s->ranks[i].waiting;
        one["kv_tokens_free"] = s->ranks[i].kv_tokens_free;
        one["kv_tokens_total"] = s->ranks[i].kv_tokens_total;
      }
    all.push_back(std::move(one));
  }
  return all;
}

} // namespace

result<std::shared_ptr<admin_desk>> admin_desk::open(bus::post_office& office, admin_reply_fn reply,
                                                     address path) {
  std::shared_ptr<admin_desk> desk{new admin_desk{office, std::move(reply), path}};
  DI_TRY_VOID(office.bind(path, [desk](const envelope& mail) { desk->deliver(mail); }));
  return desk;
}

template <message M>
void admin_desk::ask(std::uint64_t connection, const address& to, M m, duration timeout) {
  envelope mail;
  mail.to = to;
  mail.from = path_;
  mail.kind = mail_kind::request;
  mail.request = office_.number();
  mail.deadline = real_env().now() + timeout;
  mail.body = parcel::of(std::move(m));
  {
    const std::lock_guard lock{guard_};
    requests_[mail.request] = connection;
    ++questions_[connection].open;
  }
  const auto number = mail.request;
  if (const auto sent = office_.post(std::move(mail)); !sent.ok()) {
    envelope failed;
    failed.kind = mail_kind::failure;
    failed.request = number;
    // Of control, not of a rank: it will be back.
    const auto code = sent.error().code == ec::not_found ? ec::unavailable : sent.error().code;
    failed.body = parcel::of(proto::request_failed{code, sent.error().what});
    deliver(failed);
  }
}

void admin_desk::take(std::uint64_t connection, const std::string& line) {
  const auto refuse = [&](std::string_view what) {
    reply_(connection, admin_error("bad_argument", what));
  };
  const auto j = json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("command") || !j["command"].is_string())
    return refuse("an object with a command is needed");
  const auto command = j["command"].get<std::string>();
  const address keeper = "/control/keeper";
  if (command == "status") {
    {
      const std::lock_guard lock{guard_};
      questions_[connection].status = true;
      questions_[connection].open = 1; // none of the answers is the last before all are asked
    }
    ask(connection, keeper, proto::get_keeper{}, status_timeout);
    ask(connection, "/control/journal", proto::get_journal{}, status_timeout);
    ask(connection, "/control/scheduler", proto::get_schedule{}, status_timeout);
    return settle(connection, {});
  }
  if (command == "upgrade")
    return ask(connection, keeper, proto::upgrade_group{}, order_timeout);
  const auto n = number_of(j, command == "scale" ? "ranks" : "rank");
  if (!n.ok())
    return refuse(n.error().what);
  if (command == "scale")
    return ask(connection, keeper, proto::scale_group{*n}, order_timeout);
  if (command == "drain")
    return ask(connection, keeper, proto::drain_member{rank_id{*n}}, order_timeout);
  if (command == "rejoin")
    return ask(connection, keeper, proto::join_member{rank_id{*n}}, order_timeout);
  if (command == "kill")
    return ask(connection, keeper, proto::kill_member{rank_id{*n}}, status_timeout);
  refuse(fmt::format("unknown command {}", command));
}

void admin_desk::deliver(const envelope& mail) {
  std::uint64_t connection = 0;
  {
    const std::lock_guard lock{guard_};
    const auto found = requests_.find(mail.request);
    if (found == requests_.end())
      return;
    connection = found->second;
    requests_.erase(found);
  }
  settle(connection, mail);
}

void admin_desk::settle(std::uint64_t connection, const envelope& mail) {
  question q;
  {
    const std::lock_guard lock{guard_};
    auto& open = questions_[connection];
    if (const auto* k = mail.body.as<proto::keeper_state>())
      open.keeper = *k;
    if (const auto* s = mail.body.as<proto::journal_state>())
      open.journal = *s;
    if (const auto* s = mail.body.as<proto::schedule>())
      open.schedule = *s;
    if (const auto* f = mail.body.as<proto::request_failed>())
      open.failed = error{f->code, f->what};
    if (--open.open > 0)
      return;
    q = std::move(open);
    questions_.erase(connection);
  }
  if (q.status && q.keeper) {
    json answer{{"ok", true},
                {"view", q.keeper->view.v},
                {"wanted", q.keeper->wanted},
                {"order", q.keeper->order},
                {"ranks", ranks_of(*q.keeper, q.schedule)}};
    answer["members"] =
        std::count_if(q.keeper->ranks.begin(), q.keeper->ranks.end(),
                      [](const auto& r) { return r.state == "member" || r.state == "draining"; });
    if (q.journal)
      answer["requests"] = {
          {"open", q.journal->open}, {"closed", q.journal->closed}, {"tokens", q.journal->tokens}};
    if (q.schedule)
      answer["requests"]["queued"] = q.schedule->queued;
    return reply_(connection, dump(answer));
  }
  if (const auto* done = mail.body.as<proto::keeper_done>())
    return reply_(connection, dump({{"ok", true}, {"ranks", done->ranks}, {"view", done->view.v}}));
  if (q.failed)
    return reply_(connection, admin_error(to_string(q.failed->code), q.failed->what));
  reply_(connection, admin_error("internal", "no answer of KEEPER"));
}

} // namespace di::launch
