// SPDX-License-Identifier: Apache-2.0
// Keeping and drawing messages.
#include "chaos/sim_chart.hpp"

#include "messaging/proto/expert_shard.hpp"
#include "messaging/proto/scheduler.hpp"
#include "messaging/wire/codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace di::sim {

namespace {

constexpr std::size_t columns_max = 12, column_width = 9, words_max = 150;

address process_of(const address& path) {
  if (path.starts_with("/control"))
    return "/control";
  return path.substr(0, path.find('/', path.find('/', 1) + 1)); // "/rank/3", "/gateway/0"
}

bool is_noise(wire_id id) {
  return id == proto::work_due::wire || id == proto::expert_batch::wire
         || id == proto::expert_rows::wire || id == proto::rank_load::wire;
}

} // namespace

void sim_chart::keep(line l) {
  l.at = world_.now();
  lines_.push_back(std::move(l));
  if (lines_.size() > lines_max_)
    lines_.pop_front();
}

void sim_chart::on_mail(mail_event what, const sim_process&, const address& self,
                        const envelope& mail) {
  if ((what != mail_event::received && what != mail_event::dropped)
      || (!everything_ && is_noise(mail.body.id())))
    return;
  line l;
  l.from = process_of(mail.from);
  l.to = process_of(self);
  l.lost = what == mail_event::dropped;
  l.actor = self;
  l.body = mail.body;
  keep(std::move(l));
}

void sim_chart::on_note(const sim_process& process, const std::string& words) {
  line l;
  l.to = process.prefix;
  l.note = fmt::format("{} ({:04x}) {}", process.prefix, process.life.v & 0xffff, words);
  keep(std::move(l));
}

std::string sim_chart::render() const {
  static const wire::codec_table codecs = wire::builtin_codecs();
  std::map<address, std::size_t> columns;
  for (const line& l : lines_) {
    columns.emplace(l.to, 0);
    if (!l.from.empty())
      columns.emplace(l.from, 0);
  }
  columns.erase("/outside");
  const bool drawn = columns.size() <= columns_max;
  std::string out = drawn ? "" : "(too many processes for columns)\n";
  std::size_t next = 0;
  std::string head(14, ' ');
  for (auto& [who, column] : columns) {
    column = next++;
    if (drawn)
      head += fmt::format("{:<{}}", who, column_width);
  }
  out += head + "\n";
  for (const line& l : lines_) {
    std::string lanes;
    if (drawn) {
      for (std::size_t c = 0; c < columns.size(); ++c)
        lanes.append(1, '|').append(column_width - 1, ' ');
      const auto from = columns.find(l.from), to = columns.find(l.to);
      if (from != columns.end() && from != to) {
        const std::size_t a = from->second * column_width, b = to->second * column_width;
        for (std::size_t i = std::min(a, b) + 1; i < std::max(a, b); ++i)
          lanes[i] = l.lost ? '.' : '-';
        lanes[a] = 'o';
        lanes[a < b ? b - 1 : b + 1] = l.lost ? 'x' : a < b ? '>' : '<';
      } else {
        lanes[to->second * column_width] = l.from.empty() ? '#' : '*';
      }
    }
    std::string words = l.note.empty() ? l.actor + " " + codecs.print(l.body) : l.note;
    if (words.size() > words_max)
      words = words.substr(0, words_max) + "…";
    out += fmt::format("{:11.4f}   {}{}\n", static_cast<double>(l.at.ns) * 1e-6, lanes, words);
  }
  return out;
}

} // namespace di::sim
