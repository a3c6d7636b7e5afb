// SPDX-License-Identifier: Apache-2.0
// From a folder to JOURNAL's options.
#include "launch/control_journal.hpp"

#include "launch/run_journal.hpp"
#include "messaging/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace di::launch {
namespace {

actors::journal_file_options file_options(child_context& c) {
  actors::journal_file_options o;
  o.folder = c.boot.journal->folder;
  o.on_error = c.config.journal_on_error == journal_loss::memory ? actors::journal_trouble::memory
                                                                 : actors::journal_trouble::pause;
  o.sync_groups = c.config.journal_sync;
  o.tell = [office = c.office.get(), from = c.prefix()](const proto::journal_written& m) {
    envelope mail;
    mail.to = "/control/journal";
    mail.from = from;
    mail.body = parcel::of(m);
    (void)office->post(std::move(mail)); // the actor has ended: so does this soon
  };
  return o;
}

} // namespace

result<void> check_delivered(const engine::journal_options& journal, const engine::batch& work,
                             std::uint64_t lines) {
  const auto written = std::min<std::uint64_t>(lines, work.entries.size());
  std::uint64_t answers = 0;
  for (std::size_t i = 0; i < written; ++i)
    answers += !work.entries[i].refused;
  // Requests of a batch are numbered from 1 in the order of their lines.
  if (!journal.recovered || !journal.recovered->forgotten.contains(answers + 1))
    return {};
  return fail(ec::bad_argument,
              "the output has {} lines, but more had been written; go on with the file that they "
              "are in",
              lines);
}

result<control_journal> open_control_journal(child_context& c) {
  control_journal out;
  engine::journal_options& o = out.options;
  o.run.batch_seed = c.boot.batch ? c.boot.batch->seed : 0;
  o.stored_bytes_max = c.config.gateway.limits.stored_bytes;
  if (!c.boot.journal)
    return out;
  const journal_boot& b = *c.boot.journal;
  o.run = {b.contract, b.prompts, b.settings, o.run.batch_seed};
  o.file_bytes_max = c.config.journal_segment_bytes;
  o.live_bytes_max = c.config.journal_size_bytes;
  DI_TRY(auto found, actors::find_journal(b.folder));
  const bool expected = c.boot.recovering.has_value() || b.resume;
  // What a full disk never let begin has promised nothing (pause), or may be lost (memory).
  if (!found && b.resume)
    return fail(ec::not_found, "{}: there is no journal to go on with", b.folder);
  if (!found && expected)
    log::warn("journal_missing", {{"folder", b.folder}});
  if (found && !expected)
    return fail(ec::bad_argument,
                "{}: holds the journal of another run; --resume goes on with that one", b.folder);
  if (found) {
    if (const auto other = differences(found->image.run, o.run); !other.empty())
      return fail(ec::bad_argument, "the journal in {} {}", b.folder, other);
    if (!found->note.empty())
      log::warn("journal_torn", {{"what", found->note}});
    log::info("journal_recovered", {{"requests", found->image.requests.size()},
                                    {"records", found->image.number},
                                    {"view", found->image.view ? found->image.view->view.v : 0}});
    o.run.batch_seed = found->image.run.batch_seed;
    if (!c.boot.recovering)
      found->image.view.reset(); // of another run's ranks: this group begins anew
    out.last_view = found->image.view;
  }
  DI_TRY(out.file, actors::journal_file::open(file_options(c), found));
  o.sink = out.file.get();
  if (found)
    o.recovered = std::move(found->image);
  return out;
}

} // namespace di::launch
