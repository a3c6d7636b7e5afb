// SPDX-License-Identifier: Apache-2.0
// Process by process, page by page.
#include "launch/serve/ring_reader.hpp"

#include "launch/admin_server.hpp"
#include "launch/trace_file.hpp"
#include "messaging/proto/telemetry.hpp"

#include <set>
#include <vector>

namespace di::serve {
namespace {

constexpr duration part_timeout = std::chrono::seconds{5};
constexpr std::uint32_t events_at_once = 8'192;
constexpr std::uint32_t parts_max = 512; ///< of one process: a busy ring grows while it is read

struct ring_walk : std::enable_shared_from_this<ring_walk> {
  asker& from;
  http::exchange_ptr client;
  std::vector<address> processes;
  std::size_t at = 0;
  std::uint32_t parts = 0; ///< of this process
  bool begun = false;

  ring_walk(asker& a, http::exchange_ptr c) : from{a}, client{std::move(c)} {}

  void ask(std::uint64_t first) {
    from.ask(processes[at] + "/tracer", parcel::of(proto::get_trace{first, events_at_once, false}),
             part_timeout, [self = shared_from_this()](const result<parcel>& answer) {
               const auto* part = answer.ok() ? answer->as<proto::trace_part>() : nullptr;
               if (part == nullptr)
                 self->next_process(); // it records nothing, or is gone
               else
                 self->take(*part);
             });
  }

  void take(const proto::trace_part& part) {
    std::string text;
    if (!begun) {
      begun = true;
      client->begin_stream(200, {{"Content-Type", "application/jsonl"},
                                 {"Content-Disposition", "attachment; filename=\"run.rings\""}});
      text = launch::trace_file_head();
    }
    text += launch::trace_line(part);
    const bool more = part.more && ++parts < parts_max;
    const auto on = [self = shared_from_this(), more, next = part.next] {
      self->client->on_drained({});
      more ? self->ask(next) : self->next_process();
    };
    client->on_drained(on); // before: it may drain before write() is back
    switch (client->write(text)) {
    case http::written::ok:
      client->post(on);
      return;
    case http::written::full:
      return;
    default:
      client->on_drained({});
      client->abort();
      return; // gone
    }
  }

  void next_process() {
    parts = 0;
    if (++at < processes.size())
      return ask(0);
    if (begun)
      return client->end();
    client->respond(404, {{"Content-Type", "application/json"}},
                    launch::admin_error("not_found", "nothing is recorded: start with `dilaunch up "
                                                     "--trace-spans N`")
                        + "\n");
  }
};

} // namespace

void send_rings(bus::post_office& office, asker& from, const address& self,
                http::exchange_ptr client) {
  std::set<address> all{self};
  for (const auto& peer : office.routes())
    if (peer.prefix == "/control" || peer.prefix.starts_with("/rank/")
        || peer.prefix.starts_with("/gateway/"))
      all.insert(peer.prefix);
  const auto walk = std::make_shared<ring_walk>(from, std::move(client));
  walk->processes.assign(all.begin(), all.end());
  walk->ask(0);
}

} // namespace di::serve
