// SPDX-License-Identifier: Apache-2.0
// Names of cluster metrics.
#include "launch/serve/cluster_metrics.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace di::serve {
namespace {

/// @source engine/core/keeper_core.hpp: kept_state
constexpr std::array states{"absent", "waiting",  "starting", "proving", "admitting",
                            "member", "draining", "leaving",  "fenced",  "quarantined"};

void fill_ranks(metric_page& page, const proto::keeper_state& k) {
  page.gauge("di_view_epoch", "Membership view, rises with every change of the group.")
      .series(static_cast<double>(k.view.v));
  page.gauge("di_ranks_wanted", "Ranks that shall be in the view.").series(k.wanted);
  page.gauge("di_ranks", "Ranks by their state.");
  for (const char* s : states)
    page.series(static_cast<double>(std::count_if(k.ranks.begin(), k.ranks.end(),
                                                  [&](const auto& r) { return r.state == s; })),
                {{"state", s}});
  double deaths = 0, starts = 0;
  for (const auto& r : k.ranks) {
    deaths += r.deaths;
    starts += r.starts;
  }
  page.counter("di_rank_deaths_total", "Processes of ranks that died, were killed or were stuck.")
      .series(deaths);
  page.counter("di_rank_restarts_total", "Starts of ranks after their first.").series(starts);
}

constexpr std::uint64_t page_tokens = 128; ///< @source engine/model/kv_layout.hpp

struct loads {
  double running = 0, waiting = 0, kv_free = 0, kv_total = 0, pending = 0;
  explicit loads(const proto::schedule& s) {
    for (const auto& r : s.ranks) {
      running += r.running;
      waiting += r.waiting;
      pending += static_cast<double>(r.rows_pending);
      kv_free += static_cast<double>(r.kv_tokens_free);
      kv_total += static_cast<double>(r.kv_tokens_total);
    }
  }
  double kv_used() const { return kv_total > 0 ? 1 - kv_free / kv_total : 0; }
};

void fill_loads(metric_page& page, const proto::schedule& s) {
  const loads l{s};
  page.gauge("di_sequences_running", "Sequences with rows in steps.").series(l.running);
  page.gauge("di_sequences_waiting", "Sequences at ranks that wait for room.").series(l.waiting);
  page.gauge("di_requests_queued", "Requests without a rank.")
      .series(static_cast<double>(s.queued));
  page.gauge("di_prompt_rows_pending", "Rows of prompts not yet computed.").series(l.pending);
  page.gauge("di_kv_cache_usage_ratio", "Part of the KV room of all ranks that is taken.")
      .series(l.kv_used());
  page.gauge("di_kv_tokens", "KV room of all ranks, in tokens.")
      .series(l.kv_total - l.kv_free, {{"state", "used"}})
      .series(l.kv_free, {{"state", "free"}});
  page.gauge("di_rank_balance_ratio", "Rows done by the busiest rank over the mean of all.")
      .series(s.balance);
}

void fill_journal(metric_page& page, const proto::journal_state& j) {
  page.gauge("di_journal_open_requests", "Requests that have not ended.")
      .series(static_cast<double>(j.open));
  page.counter("di_journal_tokens_total", "Tokens accepted.").series(static_cast<double>(j.tokens));
  page.gauge("di_journal_unwritten_records", "Records on their way to disk.")
      .series(static_cast<double>(j.unwritten));
  page.gauge("di_journal_file_bytes", "Size of the log.").series(static_cast<double>(j.file_bytes));
  page.gauge("di_journal_failing", "1 while the disk takes nothing.").series(j.failing ? 1 : 0);
}

/// Counters of actors keep their names. Those that are values of now do not end in _total.
void fill_counters(metric_page& page, const proto::snapshot& s) {
  constexpr std::size_t names_max = 1'024;
  std::size_t names = 0;
  for (const auto& [name, value] : s.counters) {
    const bool fit =
        name.starts_with("di_") && std::all_of(name.begin(), name.end(), [](unsigned char c) {
          return std::isalnum(c) != 0 || c == '_';
        });
    if (!fit || page.has(name) || ++names > names_max)
      continue;
    if (name.ends_with("_total"))
      page.counter(name, "Counted by actors, all processes together: doc/actors.md.").series(value);
    else
      page.gauge(name, "Told by an actor: doc/actors.md.").series(value);
  }
  page.gauge("di_telemetry_processes", "Processes that report counters.")
      .series(static_cast<double>(s.sources.size()));
}

double counter_of(const proto::snapshot& s, const char* name) {
  const auto found = s.counters.find(name);
  return found == s.counters.end() ? 0 : found->second;
}

void fill_vllm(metric_page& page, const cluster_reading& now, const std::string& model) {
  const metric_labels of{{"model_name", model}};
  if (now.schedule) {
    const loads l{*now.schedule};
    page.gauge("vllm:num_requests_running", "As di_sequences_running.").series(l.running, of);
    page.gauge("vllm:num_requests_waiting", "Sequences that wait, at ranks or without one.")
        .series(l.waiting + static_cast<double>(now.schedule->queued), of);
    page.gauge("vllm:num_requests_swapped", "None ever is: what is preempted is computed again.")
        .series(0, of);
    page.gauge("vllm:cache_config_info", "KV room of all ranks, in pages; always 1.")
        .series(1, {of[0],
                    {"block_size", std::to_string(page_tokens)},
                    {"num_gpu_blocks",
                     std::to_string(static_cast<std::uint64_t>(l.kv_total) / page_tokens)}});
    page.gauge("vllm:kv_cache_usage_perc", "As di_kv_cache_usage_ratio.").series(l.kv_used(), of);
    page.gauge("vllm:gpu_cache_usage_perc", "As di_kv_cache_usage_ratio.").series(l.kv_used(), of);
  }
  if (now.counters) {
    const auto one = [&](const char* name, const char* own) {
      page.counter(name, std::string{"As "} + own + ".").series(counter_of(*now.counters, own), of);
    };
    one("vllm:num_preemptions_total", "di_rank_preemptions_total");
    one("vllm:spec_decode_num_draft_tokens_total", "di_rank_drafts_verified_total");
    one("vllm:spec_decode_num_accepted_tokens_total", "di_rank_drafts_accepted_total");
    // A draft is verified as a whole, so each has a first position.
    one("vllm:spec_decode_num_drafts_total", "di_rank_drafts_1_verified_total");
    page.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                 "Accepted drafts by their position.");
    for (int k = 1; k <= 5; ++k) {
      const auto own = "di_rank_drafts_" + std::to_string(k) + "_accepted_total";
      page.series(counter_of(*now.counters, own.c_str()),
                  {of[0], {"position", std::to_string(k - 1)}});
    }
  }
}

} // namespace

void fill_cluster(metric_page& page, const cluster_reading& now, bool vllm,
                  const std::string& model) {
  page.gauge("di_control_up", "1 if the control process answers.").series(now.keeper ? 1 : 0);
  if (now.keeper)
    fill_ranks(page, *now.keeper);
  if (now.schedule)
    fill_loads(page, *now.schedule);
  if (now.journal)
    fill_journal(page, *now.journal);
  if (now.counters)
    fill_counters(page, *now.counters);
  if (vllm)
    fill_vllm(page, now, model);
}

} // namespace di::serve
