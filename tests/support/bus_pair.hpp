// SPDX-License-Identifier: Apache-2.0
// Post offices with real sockets, for tests: each stands for one process.
#pragma once

#include "messaging/proto/bus.hpp"
#include "tests/support/bus_messages.hpp"
#include "tests/support/mailbox.hpp"
#include "tests/support/run_dir.hpp"

#include <functional>
#include <string>
#include <thread>

namespace di::test {

inline std::string last_name(const address& prefix) {
  std::string name = prefix.substr(1);
  for (char& c : name)
    c = c == '/' ? '-' : c;
  return name;
}

inline bus::post_office_options ipc_options(const run_dir& dir, const address& prefix,
                                            incarnation life = {}) {
  bus::post_office_options o;
  o.prefix = prefix;
  o.life = life.v != 0 ? life : incarnation{real_env().random() | 1};
  o.codecs = test_codecs();
  const auto where = bus::ipc_endpoints(dir.path(), last_name(prefix), o.life);
  o.control_endpoint = where->control;
  o.bulk_endpoint = where->bulk;
  o.peers = 16;
  return o;
}

/// @pre starting works; what fails is printed and ends the test program
inline std::unique_ptr<bus::post_office> start(bus::post_office_options o) {
  return std::move(bus::make_post_office(std::move(o))).value();
}

/// Waits until `condition` holds; false after `patience`.
inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end)
      return false;
    std::this_thread::yield();
  }
  return true;
}

/// Why a request came back; ok if the mail is no failure.
inline ec failure_code(const std::optional<envelope>& mail) {
  if (!mail || mail->kind != mail_kind::failure)
    return ec::ok;
  return mail->body.as<proto::request_failed>()->code;
}

} // namespace di::test
