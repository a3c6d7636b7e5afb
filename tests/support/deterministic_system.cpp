// SPDX-License-Identifier: Apache-2.0
// The part that sees CAF's test coordinator.
#include "tests/support/deterministic_system.hpp"

#include <caf/actor_system.hpp>
#include <caf/scheduler/test_coordinator.hpp>

namespace di::test {
namespace {

caf::scheduler::test_coordinator& coordinator(actors::system& s) {
  return dynamic_cast<caf::scheduler::test_coordinator&>(s.host().scheduler());
}

actors::system_options testing_options(actors::trace_fn trace) {
  actors::system_options options;
  options.testing = true;
  options.trace = std::move(trace);
  return options;
}

} // namespace

deterministic_system::deterministic_system(actors::trace_fn trace)
    : system{testing_options(std::move(trace)), office} {
  office.bind("/test", [this](envelope mail) { inbox_.push_back(std::move(mail)); }).value();
}

deterministic_system::~deterministic_system() {
  for (const auto& path : system.paths())
    system.stop(path);
  run();
}

std::size_t deterministic_system::run() {
  // Not coordinator().run(): that one fires pending timers as well.
  std::size_t jobs = 0;
  while (coordinator(system).try_run_once())
    ++jobs;
  return jobs;
}

void deterministic_system::advance(duration by) {
  coordinator(system).advance_time(by);
  run();
}

std::optional<envelope> deterministic_system::ask(envelope mail) {
  const auto number = mail.request;
  if (const auto sent = office.post(std::move(mail)); !sent) {
    envelope none;
    none.kind = mail_kind::failure;
    none.body = parcel::of(proto::request_failed{sent.error().code, sent.error().what});
    return none;
  }
  run();
  for (const auto& m : inbox_)
    if (m.request == number)
      return m;
  return std::nullopt;
}

} // namespace di::test
