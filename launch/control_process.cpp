// SPDX-License-Identifier: Apache-2.0
// The control process: the cluster-wide actors, users' actors, and in `run` the batch gateway.
#include "actors/control.hpp"
#include "actors/directory.hpp"
#include "actors/serving_boot.hpp"
#include "actors/telemetry.hpp"
#include "actors/tracing.hpp"
#include "launch/admin_desk.hpp"
#include "launch/child_context.hpp"
#include "launch/cluster.hpp"
#include "launch/control_journal.hpp"
#include "launch/control_link.hpp"
#include "launch/control_settings.hpp"
#include "launch/output_lines.hpp"
#include "launch/plan.hpp"
#include "launch/preflight.hpp"
#include "launch/trace_file.hpp"
#include "messaging/base/log.hpp"
#include "messaging/proto/gateway.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace di::launch {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t prompts_bytes_max = 1U << 30U;
constexpr const char* collector_path = "/control/trace_collector";

/// The batch's files; live as long as its gateway.
struct batch_files {
  unique_fd output, trace;
  written_lines before; ///< by an earlier life of this process or of the run
  bool progress = false;
  int end_code = exit_done; ///< of the run, once the batch has finished

  result<std::string> open(const boot_config& boot) {
    const batch_boot& b = *boot.batch;
    const bool goes_on = boot.recovering || (boot.journal && boot.journal->resume);
    const unique_fd in{::open(b.prompts.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!in)
      return fail(ec::bad_argument, "--prompts {}: {}", b.prompts_name, std::strerror(errno));
    if (!b.output.empty()) {
      output = unique_fd{
          ::open(b.output.c_str(), goes_on ? O_RDWR | O_APPEND | O_CLOEXEC
                                           : O_WRONLY | O_TRUNC | O_NONBLOCK | O_CLOEXEC)};
      if (!output)
        return fail(ec::bad_argument, "--output {}: {}", b.output, std::strerror(errno));
      if (goes_on) {
        DI_TRY(before, mend_output(output.get(), b.output));
      }
    } else if (boot.recovering) {
      before = {boot.recovering->lines_written, boot.recovering->lines_failed, 0};
    }
    if (!b.trace.empty()) {
      trace = unique_fd{::open(b.trace.c_str(), O_WRONLY | O_CLOEXEC)};
      if (!trace)
        return fail(ec::bad_argument, "--trace {}: {}", b.trace, std::strerror(errno));
    }
    progress = b.progress;
    return read_all(in.get(), prompts_bytes_max);
  }
};

actors::spawn_options ends(end_latch& latch) {
  actors::spawn_options o;
  o.ended = [&latch](const error& e) {
    if (e.code != ec::ok)
      latch.end(exit_gave_up, e.render());
  };
  return o;
}

result<void> start_cluster_actors(child_context& c, const actors::model_outline& model,
                                  control_link& link, const control_journal& journal,
                                  end_latch& latch) {
  auto& system = *c.system;
  DI_TRY_VOID(system.spawn(topic_address, actors::make_topic(), ends(latch)));
  DI_TRY_VOID(system.spawn("/control/telemetry", actors::make_telemetry(), ends(latch)));
  DI_TRY_VOID(system.spawn("/control/chronicle", actors::make_chronicle(), ends(latch)));
  DI_TRY(const auto places, place_ranks(c.config, this_machine()));
  for (const auto& n : places.nodes)
    DI_TRY_VOID(system.spawn(fmt::format("/node/{}", n.node),
                             actors::make_node_proxy(node_id{n.node}, link), ends(latch)));
  engine::membership_options m = membership_of(c.config);
  m.last_view = journal.last_view;
  DI_TRY_VOID(system.spawn("/control/membership", actors::make_membership(m), ends(latch)));
  DI_TRY_VOID(system.spawn("/control/keeper",
                           actors::make_keeper(keeper_of(c.config, places, c.boot.life)),
                           ends(latch)));
  actors::control_settings s;
  s.redundant_experts = c.config.redundant_experts;
  s.ranks_min = c.config.min_ep;
  s.scheduler.queue_max = c.config.queue_max;
  s.scheduler.tenant_choices_max = c.config.tenant_choices_max;
  s.scheduler.gateway_choices_max = c.config.gateway_choices_max;
  s.scheduler.priority_step = c.config.priority_step;
  DI_TRY(s.rebalance, rebalance_of(c.config));
  if (!c.boot.batch)
    s.gateways.clear(); // others ask
  s.journal = journal.options;
  s.ended = ends(latch).ended;
  DI_TRY_VOID(actors::spawn_control_serving(system, model, s));
  auto d = directory_of(c.config, c.boot);
  return system.spawn("/control/directory", actors::make_directory(std::move(d), *c.office),
                      ends(latch));
}

result<void> join(child_context& c, end_latch& latch) {
  actors::registrar_options r;
  r.process = actors::to_process(c.office->self());
  r.process.role = "control";
  if (c.boot.batch)
    r.process.aliases = {"/gateway/0"};
  for (const auto& a : c.config.actors)
    if (!a.at.starts_with("/control/"))
      r.process.aliases.push_back(a.at);
  r.office = c.office.get();
  r.join_within = c.config.start_timeout;
  r.installed = [](const proto::directory_snapshot&) {
    report_status({status_kind::ready, {}, {}});
  };
  DI_TRY_VOID(
      c.system->spawn("/control/registrar", actors::make_registrar(std::move(r)), ends(latch)));
  actors::sampler_options m;
  m.source = c.prefix();
  m.life = c.boot.life;
  m.counters = &c.system->counters();
  return c.system->spawn("/control/sampler", actors::make_sampler(std::move(m)));
}

/// Lines of a prompts file that will not be answered, to the user: a few of them, then a count.
void tell_refused(const engine::batch& work, const std::string& name) {
  constexpr std::size_t told_max = 20, words_bytes_max = 400;
  if (work.entries.empty())
    report_status({status_kind::notice, {}, fmt::format("no prompts in {}", name)});
  std::size_t refused = 0;
  for (const auto& e : work.entries)
    if (e.refused && ++refused <= told_max)
      report_status({status_kind::notice,
                     {},
                     fmt::format("{} line {}: {}", name, e.line,
                                 std::string_view{e.refused->what}.substr(0, words_bytes_max))});
  if (refused > told_max)
    report_status({status_kind::notice,
                   {},
                   fmt::format("{}: {} more lines refused", name, refused - told_max)});
}

/// A reader who has gone (`dilaunch run ... | head -1`) has what it wants: a quiet end with 0.
void end_with_gateway(end_latch& latch, const error& e) {
  if (e.code == ec::cancelled)
    latch.end(exit_done);
  else if (e.code != ec::ok)
    latch.end(exit_gave_up, e.what);
}

/// Fetches the rings of all processes into the trace's file, then ends the run.
result<void> start_collector(child_context& c, batch_files& files, end_latch& latch) {
  actors::collector_options o;
  o.tracers = {actors::tracer_path("/control")};
  for (std::uint32_t r = 0; r < c.config.ep; ++r)
    o.tracers.push_back(actors::tracer_path(fmt::format("/rank/{}", r)));
  o.take = [&files](const proto::trace_part& part) {
    return write_all(files.trace.get(), trace_line(part));
  };
  o.finished = [&latch, &files](const result<void>& all) {
    if (!all)
      report_status({status_kind::notice, {}, all.error().what});
    latch.end(files.end_code);
  };
  DI_TRY_VOID(write_all(files.trace.get(), trace_file_head()));
  actors::spawn_options alone;
  alone.detached = true; // it writes to a file
  alone.ended = ends(latch).ended;
  return c.system->spawn(collector_path, actors::make_trace_collector(std::move(o)),
                         std::move(alone));
}

/// Seeds of lines without one: the same in every life of the run.
std::function<std::uint64_t()> seeds_from(std::uint64_t batch_seed) {
  return [state = batch_seed]() mutable { // @source splitmix64: https://prng.di.unimi.it
    std::uint64_t z = state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  };
}

result<void> start_batch(child_context& c, const actors::model_outline& model,
                         const control_journal& journal, batch_files& files, end_latch& latch) {
  DI_TRY(auto prompts, files.open(c.boot));
  actors::batch_settings b;
  b.window = c.boot.batch->window != 0
                 ? c.boot.batch->window
                 : std::max(b.window, 64 * c.config.ep); // every rank can fill its steps
  b.prompts = std::move(prompts);
  b.defaults = {c.config.prefix, c.config.prefill, c.config.prefill_keep};
  b.write = actors::descriptor_writer(files.output ? files.output.get() : STDOUT_FILENO);
  b.keep = journal.file != nullptr;
  b.resumable = c.boot.journal && c.boot.journal->keep;
  // What only standard output got is nowhere to be found after the run.
  b.tell_delivered = !b.resumable || files.output;
  b.lines_written = files.before.lines;
  b.lines_failed = files.before.failed;
  b.draw_seed = seeds_from(journal.options.run.batch_seed);
  if (files.progress)
    b.show = [](std::string_view text) {
      (void)write_all(terminal_fd, fmt::format("\r\033[K{}", text));
    };
  else if (std::getenv("DI_FAULTS") != nullptr) { // faults are triggered by progress
    b.show = [](std::string_view text) { log::info("batch_progress", {{"text", text}}); };
    b.show_every = 20ms;
  }
  if (files.trace)
    DI_TRY_VOID(start_collector(c, files, latch));
  b.finished = [&latch, &c, &files, progress = files.progress](const proto::batch_finished& f) {
    if (progress)
      (void)write_all(terminal_fd, "\r\033[K");
    log::info("batch_finished", {{"prompts", f.prompts},
                                 {"failed", f.failed},
                                 {"prompt_tokens", f.prompt_tokens},
                                 {"output_tokens", f.output_tokens},
                                 {"elapsed_us", f.elapsed_us}});
    report_status({status_kind::finished, {}, {}});
    files.end_code = f.failed == 0 ? exit_done : exit_requests_failed;
    if (!files.trace)
      return latch.end(files.end_code);
    envelope mail;
    mail.to = collector_path;
    mail.from = c.prefix();
    mail.body = parcel::of(proto::collect_trace{});
    if (!c.office->post(std::move(mail)))
      latch.end(files.end_code);
  };
  b.read = [&c, &latch, &journal, &files](const engine::batch& work) {
    if (!c.boot.recovering)
      tell_refused(work, c.boot.batch->prompts_name);
    if (const auto fits = check_delivered(journal.options, work, files.before.lines); !fits)
      latch.end(exit_usage, fits.error().what);
  };
  b.broke_off = [](std::size_t unanswered, std::size_t lines) {
    report_status({status_kind::unanswered,
                   {},
                   fmt::format("{} of {} prompts unanswered", unanswered, lines)});
  };
  b.ended = [&latch](const error& e) { end_with_gateway(latch, e); };
  return actors::spawn_batch_gateway(*c.system, model, std::move(b));
}

result<void> start(child_context& c, batch_files& files, control_link& link,
                   control_journal& journal, std::unique_ptr<actors::local_launcher>& launcher,
                   std::shared_ptr<admin_desk>& desk, end_latch& latch) {
  DI_TRY_VOID(c.open(true));
  DI_TRY(desk, admin_desk::open(*c.office, &control_link::answer_operator));
  DI_TRY(const auto model,
         actors::read_model_outline(c.config.model_path, c.config.tokenizer_path));
  const auto users = user_actors(c.config);
  DI_TRY_VOID(actors::check_user_actors(c.types, users));
  DI_TRY(journal, open_control_journal(c));
  DI_TRY_VOID(start_cluster_actors(c, model, link, journal, latch));
  launcher = std::make_unique<actors::local_launcher>(*c.system, c.types);
  DI_TRY_VOID(
      actors::start_user_actors(*c.system, *launcher, c.prefix(), users,
                                [&latch](const error& e) { latch.end(exit_gave_up, e.render()); }));
  if (c.boot.batch)
    DI_TRY_VOID(start_batch(c, model, journal, files, latch));
  return join(c, latch);
}

} // namespace

int control_process(child_context& c, end_latch& latch) {
  batch_files files;
  control_link link;
  control_journal journal;
  std::unique_ptr<actors::local_launcher> launcher;
  std::shared_ptr<admin_desk> desk;
  if (const auto started = start(c, files, link, journal, launcher, desk, latch); !started.ok()) {
    const int code = give_up(started.error());
    // Actors that started use `files`, `launcher` and the latch.
    if (c.system && !c.system->stop_all(1s))
      ::_exit(code);
    return code;
  }
  const auto drain = [&c] {
    log::warn("drain_requested");
    envelope mail;
    mail.to = "/gateway/0";
    mail.from = c.prefix();
    mail.body = parcel::of(proto::drain_batch{});
    (void)c.office->post(std::move(mail)); // no gateway: nothing to drain
  };
  const auto verdict = latch.wait(drain, [&](const node_word& w, unique_fd) {
    if (w.kind == node_word_kind::admin)
      desk->take(w.number, w.what);
    else
      control_link::take(w, *c.office);
  });
  if (!verdict.why.empty()) {
    log::error("control_ended", {{"what", verdict.why}});
    report_status({status_kind::failed, {}, verdict.why});
  }
  c.system->stop("/gateway/0");
  c.log_counters();
  if (!c.system->stop_all(1s))
    ::_exit(verdict.code);
  return verdict.code;
}

} // namespace di::launch
