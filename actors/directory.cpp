// SPDX-License-Identifier: Apache-2.0
// Routes of the control process.
#include "actors/directory.hpp"

namespace di::actors {

proto::process_entry to_process(const bus::peer& p) {
  proto::process_entry entry;
  entry.prefix = p.prefix;
  entry.life = p.life;
  entry.control_endpoint = p.control_endpoint;
  entry.bulk_endpoint = p.bulk_endpoint;
  entry.curve_key = p.curve_key;
  return entry;
}

result<void> add_routes(bus::post_office& office, const proto::process_entry& p) {
  bus::peer peer{p.prefix, p.life, p.control_endpoint, p.bulk_endpoint, p.curve_key};
  DI_TRY_VOID(office.add_route(peer));
  for (const auto& alias : p.aliases) {
    peer.prefix = alias;
    DI_TRY_VOID(office.add_route(peer));
  }
  return {};
}

void remove_routes(bus::post_office& office, const proto::process_entry& p, const error& reason) {
  office.remove_route(p.prefix, reason);
  for (const auto& alias : p.aliases)
    office.remove_route(alias, reason);
}

result<proto::announced> routed_directory_core::on(const proto::announce& m, const origin& from,
                                                   instant now, outbox& out) {
  auto outcome = core_.on(m, from, now, out);
  if (outcome && m.process.prefix != office_->self().prefix)
    DI_TRY_VOID(add_routes(*office_, m.process));
  return outcome;
}

} // namespace di::actors
