// SPDX-License-Identifier: Apache-2.0
// Routes of the control process.
#include "actors/directory.hpp"

namespace di::actors {

bus::peer to_peer(const proto::process_entry& p) {
  return {p.prefix, p.life, p.control_endpoint, p.bulk_endpoint, p.curve_key};
}

proto::process_entry to_process(const bus::peer& p) {
  proto::process_entry entry;
  entry.prefix = p.prefix;
  entry.life = p.life;
  entry.control_endpoint = p.control_endpoint;
  entry.bulk_endpoint = p.bulk_endpoint;
  entry.curve_key = p.curve_key;
  return entry;
}

result<proto::announced> routed_directory_core::on(const proto::announce& m, instant now,
                                                   outbox& out) {
  auto outcome = core_.on(m, now, out);
  if (outcome && m.process.prefix != office_->self().prefix)
    DI_TRY_VOID(office_->add_route(to_peer(m.process)));
  return outcome;
}

} // namespace di::actors
