// SPDX-License-Identifier: Apache-2.0
// The one place where the codecs of all built-in messages are made: their templates are heavy.
#include "messaging/proto/catalog.hpp"
#include "messaging/wire/codec.hpp"

namespace di::wire {

codec_table builtin_codecs() {
  codec_table table;
  const result<void> added = table.add_all(proto::catalog{});
  DI_CHECK(added.ok()); // ids are unique: proven in the catalog
  return table;
}

} // namespace di::wire
