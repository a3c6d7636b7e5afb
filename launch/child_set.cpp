// SPDX-License-Identifier: Apache-2.0
// Descriptors of children on the loop.
#include "launch/child_set.hpp"

#include <fmt/format.h>

#include <signal.h>

namespace di::launch {

child_set::~child_set() {
  for (auto& [name, c] : children_) {
    forget(*c);
    c->process.signal(SIGKILL); // all at once; each is reaped below, and then its watch can end
  }
  for (auto& [name, c] : children_) {
    auto gone = std::move(c->process);
  }
}

void child_set::forget(child& c) {
  c.speaker.reset();
  for (const int fd : {c.process.pidfd(), c.process.status.get(), c.process.err.get(),
                       c.watch ? c.watch->fd() : -1})
    loop_.forget(fd);
}

result<void> child_set::start(const child_spec& spec) {
  if (children_.contains(spec.name))
    return fail(ec::duplicate, "{} runs already", spec.name);
  process_options options;
  options.argv = spec.argv;
  options.boot = spec.boot;
  options.with_status = true;
  options.terminal = spec.terminal;
  options.pipe_stdout = spec.pipe_stdout;
  options.more = spec.segments;
  std::optional<life_page> page;
  std::unique_ptr<life_watch> watch;
  if (spec.life_page) {
    DI_TRY(auto made, life_page::make("di-life"));
    page.emplace(std::move(made));
    options.life_page = page->fd();
    DI_TRY(watch, life_watch::start(page->words()));
  }
  DI_TRY(auto process, child_process::start(options));
  auto owned = std::make_unique<child>(child{
      spec.name, std::move(process), {}, std::move(page), std::move(watch), {}, {}, {}, false});
  child& c = *owned;
  c.speaker = std::make_unique<child_speaker>(loop_, c.process.status.get());
  children_.emplace(spec.name, std::move(owned));
  if (c.watch)
    loop_.watch(c.watch->fd(), [this, &c] { certified(c); });
  loop_.watch(c.process.status.get(), [this, &c] { read_status(c); });
  loop_.watch(c.process.err.get(), [this, &c] { read_log(c); });
  loop_.watch(c.process.pidfd(), [this, name = spec.name] { ended(name); });
  return {};
}

void child_set::signal(const std::string& name, int number) {
  if (const auto c = children_.find(name); c != children_.end())
    c->second->process.signal(number);
}

void child_set::tell(const std::string& name, const node_word& word, int descriptor) {
  if (const auto c = children_.find(name); c != children_.end() && c->second->speaker)
    c->second->speaker->send(word, descriptor);
}

void child_set::tell_ranks(const node_word& word, int descriptor) {
  for (auto& [name, c] : children_)
    if (c->page && c->speaker)
      c->speaker->send(word, descriptor);
}

unique_fd child_set::take_output(const std::string& name) {
  const auto c = children_.find(name);
  return c == children_.end() ? unique_fd{} : std::move(c->second->process.out);
}

const life_words* child_set::words_of(const std::string& name) const {
  const auto c = children_.find(name);
  return c == children_.end() || !c->second->page ? nullptr : &c->second->page->words();
}

pid_t child_set::pid_of(const std::string& name) const {
  const auto c = children_.find(name);
  return c == children_.end() ? -1 : c->second->process.pid();
}

int child_set::pidfd_of(const std::string& name) const {
  const auto c = children_.find(name);
  return c == children_.end() ? -1 : c->second->process.pidfd();
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
    c.speaker.reset(); // before its descriptor
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

void child_set::certified(child& c) {
  loop_.forget(c.watch->fd());
  if (!c.watch->dead())
    return;
  if (c.process.status) // it may have said why
    read_status(c);
  tell_lost(c, "death certificate: its robust mutex was given up by the kernel");
}

void child_set::tell_lost(child& c, const std::string& how) {
  if (!std::exchange(c.lost, true) && events_.lost)
    events_.lost(c.name, how);
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
  forget(c);
  const auto words = fmt::format("{} (pid {}): {}{}", name, c.process.pid(), to_string(*state),
                                 c.last_line.empty() ? "" : "; its last line: " + c.last_line);
  tell_lost(c, to_string(*state));
  const auto owned = std::move(found->second);
  children_.erase(found);
  events_.exited(name, *state, words);
}

} // namespace di::launch
