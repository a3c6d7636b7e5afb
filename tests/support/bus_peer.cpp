// SPDX-License-Identifier: Apache-2.0
// A process with a post office that tests start, kill and stop: answers each ping with n + 1,
// keeps pings with the text "keep" unanswered and ends its actor on "end". Answers rows with the
// same rows; after "stop in write" it stops itself while it writes the next ones to its segment,
// after "hold rows" it keeps them for ever.
//
//   bus_peer <control endpoint> <bulk endpoint> <incarnation> <parent's prefix> <its incarnation>
//            <its control endpoint> <its bulk endpoint> [<own segment> <parent's segment>]
//
// Segments are inherited descriptors.
// Writes one byte to stdout when it can be reached; ends when stdin closes.
#include "messaging/base/probe.hpp"
#include "tests/support/bus_messages.hpp"
#include "tests/support/mailbox.hpp"

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace di::test {
namespace {

int peer_main(int argc, char** argv) {
  if (argc != 8 && argc != 10)
    return 2;
  bus::post_office_options o;
  o.prefix = "/rank/1";
  o.control_endpoint = argv[1];
  o.bulk_endpoint = argv[2];
  o.life = incarnation{std::strtoull(argv[3], nullptr, 16)};
  o.codecs = test_codecs();
  o.peers = 16;
  const incarnation parent_life{std::strtoull(argv[5], nullptr, 16)};
  if (argc == 10) {
    o.segments.own = std::atoi(argv[8]);
    o.segments.neighbours = {{parent_life, std::atoi(argv[9])}};
  }
  std::vector<envelope> held; // on the bus thread
  bool hold = false;
  auto office = bus::make_post_office(o);
  if (!office) {
    std::fprintf(stderr, "bus_peer: %s\n", office.error().render().c_str());
    return 1;
  }
  const bus::peer parent{argv[4], parent_life, argv[6], argv[7], ""};

  bus::post_office* self = office->get();
  const bool bound =
      self->bind("/rank/1/echo",
                 [self, &held, &hold](envelope mail) {
                   if (const auto* r = mail.body.as<rows>()) {
                     if (hold)
                       held.push_back(mail);
                     else if (mail.kind == mail_kind::request)
                       static_cast<void>(self->post(reply(mail, *r)));
                     return;
                   }
                   const auto* m = mail.body.as<ping>();
                   if (m == nullptr || m->text == "keep")
                     return;
                   if (m->text == "stop in write")
                     probe::arm("segment.stop_in_write", {.times_max = 1});
                   else if (m->text == "hold rows")
                     hold = true;
                   if (m->text == "end")
                     self->unbind("/rank/1/echo", error{ec::gave_up, "was told to end"});
                   else if (mail.kind == mail_kind::request)
                     static_cast<void>(self->post(reply(mail, ping{m->n + 1, m->text})));
                 })
          .ok();
  if (!bound || !self->add_route(parent).ok())
    return 1;
  char byte = 'r';
  if (::write(1, &byte, 1) != 1)
    return 1;
  while (::read(0, &byte, 1) > 0) {
  }
  return 0;
}

} // namespace
} // namespace di::test

int main(int argc, char** argv) {
  return di::test::peer_main(argc, argv);
}
