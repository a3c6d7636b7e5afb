// SPDX-License-Identifier: Apache-2.0
// A process with a post office that tests start, kill and stop: answers each ping with n + 1,
// keeps pings with the text "keep" unanswered and ends its actor on "end".
//
//   bus_peer <control endpoint> <bulk endpoint> <incarnation> <parent's prefix> <its incarnation>
//            <its control endpoint> <its bulk endpoint>
//
// Writes one byte to stdout when it can be reached; ends when stdin closes.
#include "tests/support/bus_messages.hpp"
#include "tests/support/mailbox.hpp"

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace di::test {
namespace {

int peer_main(int argc, char** argv) {
  if (argc != 8)
    return 2;
  bus::post_office_options o;
  o.prefix = "/rank/1";
  o.control_endpoint = argv[1];
  o.bulk_endpoint = argv[2];
  o.life = incarnation{std::strtoull(argv[3], nullptr, 16)};
  o.codecs = test_codecs();
  o.peers = 16;
  auto office = bus::make_post_office(o);
  if (!office) {
    std::fprintf(stderr, "bus_peer: %s\n", office.error().render().c_str());
    return 1;
  }
  const bus::peer parent{argv[4], incarnation{std::strtoull(argv[5], nullptr, 16)}, argv[6],
                         argv[7], ""};
  bus::post_office* self = office->get();
  const bool bound =
      self->bind("/rank/1/echo",
                 [self](envelope mail) {
                   const auto* m = mail.body.as<ping>();
                   if (m == nullptr || m->text == "keep")
                     return;
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
