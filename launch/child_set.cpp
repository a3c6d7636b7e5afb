// SPDX-License-Identifier: Apache-2.0
// Descriptors of children on the loop.
#include "launch/child_set.hpp"

#include <fmt/format.h>

#include <signal.h>

namespace di::launch {

child_set::~child_set() {
  for (auto& [name, c] : children_) {
    loop_.forget(c->process.pidfd());
    loop_.forget(c->process.err.get());
    loop_.forget(c->process.status.get());
  }
}

result<void> child_set::start(const child_spec& spec) {
  if (children_.contains(spec.name))
    return fail(ec::duplicate, "{} runs already", spec.name);
  process_options options;
  options.argv = spec.argv;
  options.boot = spec.boot;
  options.with_status = true;
  options.terminal = spec.terminal;
  options.share_stdout = spec.share_stdout;
  options.more = spec.segments;
  DI_TRY(auto process, child_process::start(options));
  auto owned = std::make_unique<child>(
      child{spec.name, std::move(process), line_reader{}, line_reader{}, std::string{}});
  child& c = *owned;
  children_.emplace(spec.name, std::move(owned));
  loop_.watch(c.process.status.get(), [this, &c] { read_status(c); });
  loop_.watch(c.process.err.get(), [this, &c] { read_log(c); });
  loop_.watch(c.process.pidfd(), [this, name = spec.name] { ended(name); });
  return {};
}

void child_set::signal(const std::string& name, int number) {
  if (const auto c = children_.find(name); c != children_.end())
    c->second->process.signal(number);
}

void child_set::signal_all(int number) {
  for (auto& [name, c] : children_)
    c->process.signal(number);
}

std::vector<std::string> child_set::names() const {
  std::vector<std::string> out;
  for (const auto& [name, c] : children_)
    out.push_back(name);
  return out;
}

void child_set::read_status(child& c) {
  const bool open = c.status_lines.read(
      c.process.status.get(), [&](const std::string& line) { events_.status(c.name, line); });
  if (!open) {
    loop_.forget(c.process.status.get());
    c.process.status.reset();
  }
}

void child_set::read_log(child& c) {
  const bool open = c.log_lines.read(c.process.err.get(), [&](const std::string& line) {
    if (!line.empty())
      c.last_line = line;
    events_.log(c.name, line);
  });
  if (!open) {
    loop_.forget(c.process.err.get());
    c.process.err.reset();
  }
}

void child_set::ended(const std::string& name) {
  const auto found = children_.find(name);
  if (found == children_.end())
    return;
  const auto state = found->second->process.poll();
  if (!state)
    return;
  child& c = *found->second;
  // What it still said stands in the pipes; a grandchild may hold them open, so no waiting for
  // their end.
  if (c.process.status)
    read_status(c);
  if (c.process.err)
    read_log(c);
  for (const int fd : {c.process.pidfd(), c.process.status.get(), c.process.err.get()})
    loop_.forget(fd);
  const auto words = fmt::format("{} (pid {}): {}{}", name, c.process.pid(), to_string(*state),
                                 c.last_line.empty() ? "" : "; its last line: " + c.last_line);
  const auto owned = std::move(found->second);
  children_.erase(found);
  events_.exited(name, *state, words);
}

} // namespace di::launch
