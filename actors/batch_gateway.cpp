// SPDX-License-Identifier: Apache-2.0
// Joins gateway_core with lines and text.
#include "actors/batch_gateway.hpp"

#include "messaging/base/log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <unistd.h>

namespace di::actors {

namespace {

/// Ends the choices that have not ended. @return whether there was one
bool end_all(std::vector<engine::collected_choice>& choices) {
  bool any = false;
  for (engine::collected_choice& c : choices)
    if (c.end.reason == proto::finish_reason::none) {
      any = true;
      c.end = {proto::finish_reason::error, -1, 0, ec::cancelled,
               "the run ended before this request did"};
    }
  return any;
}

/// Ended by drain_batch.
bool not_begun(const std::vector<engine::collected_choice>& choices) {
  return !choices.empty() && choices[0].end.code == ec::refused && choices[0].tokens.empty();
}

engine::gateway_options options_of(const batch_parts& parts,
                                   const std::vector<engine::batch_entry>& entries) {
  engine::gateway_options o = parts.options;
  o.delivered = 0;
  for (std::size_t i = 0; i < std::min(parts.lines_written, entries.size()); ++i)
    o.delivered += !entries[i].refused;
  return o;
}
} // namespace

batch_gateway_actor::batch_gateway_actor(batch_parts parts)
    : parts_{std::move(parts)},
      entries_{std::move(parts_.work.entries)},
      core_{options_of(parts_, entries_), std::move(parts_.work.requests)} {
  for (const engine::batch_entry& e : entries_)
    refused_ += e.refused.has_value();
  written_ = std::min(parts_.lines_written, entries_.size());
  const auto refused_before =
      std::count_if(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(written_),
                    [](const engine::batch_entry& e) { return e.refused.has_value(); });
  failed_before_ =
      parts_.lines_failed
      - std::min<std::size_t>(parts_.lines_failed, static_cast<std::size_t>(refused_before));
}

batch_gateway_actor::~batch_gateway_actor() {
  if (!finished_)
    break_off();
}

/// What has ended is not lost because something before it has not; the others say that they have
/// not ended. The count goes first: there may be no time for all lines.
void batch_gateway_actor::break_off() {
  std::size_t unanswered = 0;
  std::vector<std::vector<engine::collected_choice>> rest(entries_.size() - written_);
  if (write_failed_) {
    unanswered = rest.size();
  } else {
    for (std::size_t i = 0; i < rest.size(); ++i)
      if (!entries_[written_ + i].refused) {
        rest[i] = core_.take_anyway().value();
        unanswered += end_all(rest[i]);
      }
  }
  if (parts_.broke_off && unanswered > 0)
    parts_.broke_off(unanswered, entries_.size());
  for (std::size_t i = 0; i < rest.size() && !write_failed_ && !parts_.resumable; ++i) {
    const engine::batch_entry& entry = entries_[written_ + i];
    (void)write_line(entry.refused
                         ? render_refusal(entry)
                         : render_completion(entry, rest[i], parts_.words.get(), parts_.eos_ids));
  }
}

result<void> batch_gateway_actor::begin(instant now, outbox& out) {
  if (!begun_) {
    begun_ = true;
    began_ = now;
    log::info("batch_began", {{"prompts", entries_.size()}, {"written", written_}});
    if (parts_.show)
      out.arm({show_due, 0}, parts_.show_every);
  }
  return write_and_finish(now, out);
}

result<void> batch_gateway_actor::on(const proto::start_batch& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  return begin(now, out);
}

result<void> batch_gateway_actor::on(const proto::placement_settled& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  return begin(now, out);
}

result<void> batch_gateway_actor::on(const proto::drain_batch& m, instant now, outbox& out) {
  draining_ = true;
  DI_TRY_VOID(core_.on(m, now, out));
  return write_and_finish(now, out);
}

result<void> batch_gateway_actor::on(const proto::request_opened& m, instant now, outbox& out) {
  return core_.on(m, now, out);
}

result<void> batch_gateway_actor::on(const proto::request_closed& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  return write_and_finish(now, out);
}

result<void> batch_gateway_actor::on(const proto::tokens_released& m, instant now, outbox& out) {
  DI_TRY_VOID(core_.on(m, now, out));
  return write_and_finish(now, out);
}

result<void> batch_gateway_actor::on_due(timer which, instant now, outbox& out) {
  if (which.kind != show_due) {
    DI_TRY_VOID(core_.on_due(which, now, out)); // may end requests at their deadlines
    return write_and_finish(now, out);
  }
  show(now);
  if (!finished_)
    out.arm({show_due, 0}, parts_.show_every);
  return {};
}

result<void> batch_gateway_actor::write_and_finish(instant now, outbox& out) {
  DI_TRY_VOID(write_ready(out));
  finish_if_done(now);
  return {};
}

result<void> batch_gateway_actor::write_ready(outbox& out) {
  for (; written_ < entries_.size(); ++written_) {
    const engine::batch_entry& entry = entries_[written_];
    if (entry.refused) {
      DI_TRY_VOID(write_line(render_refusal(entry)));
      continue;
    }
    const auto choices = core_.take_finished();
    if (!choices)
      return {};
    if (parts_.resumable && draining_ && not_begun(*choices)) {
      // The run that goes on answers it and all behind it.
      const std::size_t unanswered = entries_.size() - std::exchange(written_, entries_.size());
      if (parts_.broke_off)
        parts_.broke_off(unanswered, entries_.size());
      return {};
    }
    DI_TRY_VOID(write_line(render_completion(entry, *choices, parts_.words.get(), parts_.eos_ids)));
    core_.delivered(entry.request, out);
  }
  return {};
}

/// After a failure nothing more is written: what is out may end within a line.
result<void> batch_gateway_actor::write_line(const std::string& line) {
  auto written = parts_.write(line + '\n');
  write_failed_ = !written;
  return written;
}

void batch_gateway_actor::show(instant now) {
  if (!parts_.show || finished_)
    return;
  const proto::gateway_state s = core_.state();
  const double seconds = static_cast<double>((now - began_).count()) * 1e-9;
  const double rate = seconds > 0 ? static_cast<double>(s.output_tokens) / seconds : 0;
  parts_.show(fmt::format("{}/{} prompts, {} open, {} failed, {} tokens, {:.1f} tokens/s",
                          s.finished + refused_, entries_.size(), s.open, s.failed + refused_,
                          s.output_tokens, rate));
}

void batch_gateway_actor::finish_if_done(instant now) {
  if (finished_ || written_ < entries_.size())
    return;
  show(now);
  finished_ = true;
  const proto::gateway_state s = core_.state();
  proto::batch_finished done;
  done.prompts = entries_.size();
  done.failed = s.failed + refused_ + failed_before_;
  done.output_tokens = s.output_tokens;
  for (const engine::batch_entry& e : entries_)
    done.prompt_tokens += e.prompt_tokens;
  done.elapsed_us = static_cast<std::uint64_t>((now - began_).count() / 1000);
  if (parts_.finished)
    parts_.finished(done);
}

std::unique_ptr<core_handle> make_batch_gateway(batch_parts parts) {
  return wrap_core<batch_gateway>(std::move(parts));
}

std::function<result<void>(std::string_view)> descriptor_writer(int fd) {
  return [fd](std::string_view text) -> result<void> {
    while (!text.empty()) {
      const ssize_t n = ::write(fd, text.data(), text.size());
      if (n >= 0) {
        text.remove_prefix(static_cast<std::size_t>(n));
      } else if (errno == EAGAIN) {
        pollfd ready{fd, POLLOUT, 0};
        ::poll(&ready, 1, -1);
      } else if (errno == EPIPE) {
        return fail(ec::cancelled, "output: its reader has gone");
      } else if (errno != EINTR) {
        return fail(ec::io_error, "output: write failed: {}", std::strerror(errno));
      }
    }
    return {};
  };
}

} // namespace di::actors
