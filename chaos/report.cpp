// SPDX-License-Identifier: Apache-2.0
#include "chaos/report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace di::chaos {
namespace {

using json = nlohmann::ordered_json;

double rounded(double value) {
  return std::round(value * 1000.0) / 1000.0;
}

json to_json(const quantiles& q) {
  return {{"count", q.count},
          {"p50_ms", rounded(q.p50)},
          {"p99_ms", rounded(q.p99)},
          {"max_ms", rounded(q.max)}};
}

json optional_ms(const std::optional<double>& ms) {
  return ms ? json(rounded(*ms)) : json(nullptr);
}

json to_json(const aftermath& a) {
  return {{"fault", a.fault.what},
          {"ranks", a.fault.ranks},
          {"detect_ms", optional_ms(a.detect_ms)},
          {"commit_ms", optional_ms(a.commit_ms)},
          {"repair_ms", optional_ms(a.repair_ms)},
          {"rejoin_ms", optional_ms(a.rejoin_ms)},
          {"control_back_ms", optional_ms(a.control_back_ms)},
          {"pause",
           {{"survivor", to_json(a.pause.survivor)},
            {"victim", to_json(a.pause.victim)},
            {"new", to_json(a.pause.fresh)},
            {"rejoin", to_json(a.rejoin_pause)}}}};
}

std::string shown(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.1f}", *ms) : std::string{"-"};
}

std::string shown(const quantiles& q) {
  return q.count == 0 ? std::string{"-"}
                      : fmt::format("{:.0f} / {:.0f} / {:.0f}", q.p50, q.p99, q.max);
}

/// A published figure and where ours stands.
struct anchor {
  std::string_view what, published, target;
};

constexpr std::array<anchor, 8> anchors{{
    {"detection of a crash", "TRT-LLM 1-5 s, vLLM 9-30 s, Mooncake 10 s", "p99 <= 20 ms"},
    {"detection of a hang", "TRT-LLM 1 s (least tested), 5 s by default", "p99 <= 400 ms"},
    {"fault to committed view", "Mooncake 30 s window, vLLM 26 s for a command", "<= 50 ms"},
    {"pause of survivors' requests", "Tarragon 0.3-0.4 s, EEP 11 s, vLLM 57 s",
     "p50 <= 150 ms, p99 <= 300 ms"},
    {"pause of the victim's requests", "Dynamo re-prefills, not published", "p99 <= 600 ms"},
    {"pause when a rank returns", "not published", "<= one step"},
    {"failed requests", "vLLM: all in flight; SGLang: the victim's", "0"},
    {"answers byte-equal to the undisturbed run", "not published", "100 %"},
}};

} // namespace

std::string to_json(const report_facts& facts, const verdict& v) {
  json faults = json::array();
  for (const aftermath& a : v.faults)
    faults.push_back(to_json(a));
  const json all = {{"plan", facts.plan},
                    {"covers", facts.covers},
                    {"topology", facts.topology},
                    {"ranks", facts.ranks},
                    {"seed", facts.seed},
                    {"commit", facts.commit},
                    {"machine", facts.machine},
                    {"held", v.held},
                    {"broken", v.broken},
                    {"requests",
                     {{"all", v.requests},
                      {"failed", v.failed},
                      {"resumed", v.resumed},
                      {"byte_equal", v.identical},
                      {"notes", v.failures}}},
                    {"tokens",
                     {{"lost", v.tokens_lost},
                      {"doubled", v.tokens_doubled},
                      {"reordered", v.tokens_reordered},
                      {"changed", v.tokens_changed}}},
                    {"views",
                     {{"after_first", v.views},
                      {"expelled", v.expelled},
                      {"joined", v.joined},
                      {"members_at_end", v.members},
                      {"false_expulsions", v.false_expulsions}}},
                    {"faults", faults},
                    {"gap_p50_ms", rounded(v.gap_p50_ms)},
                    {"tokens_per_s",
                     {{"undisturbed", rounded(v.reference_tokens_per_s)},
                      {"disturbed", rounded(v.run_tokens_per_s)}}},
                    {"leaks", v.leaks},
                    {"descriptor_growth", v.descriptor_growth}};
  return all.dump(2) + "\n";
}

std::string to_text(const report_facts& facts, const verdict& v) {
  std::string out = fmt::format("{} on {} ({} ranks, seed {}): {}\n", facts.plan, facts.topology,
                                facts.ranks, facts.seed, v.held ? "held" : "BROKEN");
  for (const std::string& b : v.broken)
    out += fmt::format("  broken: {}\n", b);
  for (const std::string& f : v.failures)
    out += fmt::format("  note: {}\n", f);
  out += fmt::format(
      "  requests {}, failed {}, resumed {}, byte-equal {}; tokens lost {}, doubled {}, reordered "
      "{}, changed {}\n",
      v.requests, v.failed, v.resumed, v.identical, v.tokens_lost, v.tokens_doubled,
      v.tokens_reordered, v.tokens_changed);
  out += fmt::format("  views after the first {}, expelled {} (wrongly {}), joined {}, members at "
                     "the end {}\n",
                     v.views, v.expelled, v.false_expulsions, v.joined, v.members);
  out +=
      fmt::format("  median token gap before faults {:.2f} ms; tokens/s {:.0f} disturbed, {:.0f} "
                  "undisturbed\n",
                  v.gap_p50_ms, v.run_tokens_per_s, v.reference_tokens_per_s);
  for (const aftermath& a : v.faults) {
    out +=
        fmt::format("  {}: detect {} ms, commit {}, repair {}, rejoin {}", a.fault.what,
                    shown(a.detect_ms), shown(a.commit_ms), shown(a.repair_ms), shown(a.rejoin_ms));
    if (a.fault.control)
      out += fmt::format(", control back {}", shown(a.control_back_ms));
    out += fmt::format(
        "\n    pause p50 / p99 / max [ms]: survivors {}, victims {}, new {}, at the return {}\n",
        shown(a.pause.survivor), shown(a.pause.victim), shown(a.pause.fresh),
        shown(a.rejoin_pause));
  }
  for (const std::string& d : v.descriptor_growth)
    out += fmt::format("  descriptors grew: {}\n", d);
  if (v.leaks.empty())
    out += "  nothing was left behind\n";
  return out;
}

namespace {

/// Samples over all faults that kill or freeze ranks [ms].
struct figures {
  std::vector<double> crash, hang, commit, repair, rejoin, control_back, survivors, victims, fresh;
  std::vector<double> rejoin_pause, steps; ///< [ms] steps: median gaps before faults
  std::size_t failed = 0, answered = 0, identical = 0;

  explicit figures(const std::vector<verdict>& all) {
    for (const verdict& v : all) {
      failed += v.failed;
      answered += v.requests - std::min(v.failed, v.requests);
      identical += v.identical;
      if (v.gap_p50_ms > 0)
        steps.push_back(v.gap_p50_ms);
      for (const aftermath& a : v.faults)
        add(a);
    }
  }

private:
  void add(const aftermath& a) {
    const bool kills = a.fault.kind == fault_kind::kill || a.fault.kind == fault_kind::crash;
    if (kills && a.fault.control && a.control_back_ms)
      control_back.push_back(*a.control_back_ms);
    const bool hangs = a.fault.kind == fault_kind::stop || a.fault.kind == fault_kind::hang;
    if (a.fault.ranks.empty() || (!kills && !hangs))
      return;
    if (a.detect_ms)
      (kills ? crash : hang).push_back(*a.detect_ms);
    for (const auto& [from, to] :
         {std::pair{&a.commit_ms, &commit}, {&a.repair_ms, &repair}, {&a.rejoin_ms, &rejoin}})
      if (*from)
        to->push_back(**from);
    rejoin_pause.insert(rejoin_pause.end(), a.rejoin_pause_ms.begin(), a.rejoin_pause_ms.end());
    if (!kills)
      return;
    survivors.insert(survivors.end(), a.pause.survivor_ms.begin(), a.pause.survivor_ms.end());
    victims.insert(victims.end(), a.pause.victim_ms.begin(), a.pause.victim_ms.end());
    fresh.insert(fresh.end(), a.pause.fresh_ms.begin(), a.pause.fresh_ms.end());
  }
};

} // namespace

std::string figures_json(const std::vector<verdict>& all) {
  const figures f{all};
  const json out = {{"detect_crash", to_json(quantiles_of(f.crash))},
                    {"detect_hang", to_json(quantiles_of(f.hang))},
                    {"commit", to_json(quantiles_of(f.commit))},
                    {"repair", to_json(quantiles_of(f.repair))},
                    {"rejoin", to_json(quantiles_of(f.rejoin))},
                    {"control_back", to_json(quantiles_of(f.control_back))},
                    {"pause_survivors", to_json(quantiles_of(f.survivors))},
                    {"pause_victims", to_json(quantiles_of(f.victims))},
                    {"wait_of_new", to_json(quantiles_of(f.fresh))},
                    {"pause_rejoin", to_json(quantiles_of(f.rejoin_pause))},
                    {"step", to_json(quantiles_of(f.steps))},
                    {"answered", f.answered},
                    {"byte_equal", f.identical}};
  return out.dump();
}

std::string peers_table(const std::vector<verdict>& all) {
  const figures f{all};
  const auto ms = [](const std::vector<double>& values) {
    const quantiles q = quantiles_of(values);
    return q.count == 0 ? std::string{"-"}
                        : fmt::format("p50 {:.1f} ms, p99 {:.1f} ms of {}", q.p50, q.p99, q.count);
  };
  const std::array<std::string, anchors.size()> ours = {
      ms(f.crash),
      ms(f.hang),
      ms(f.commit),
      ms(f.survivors),
      ms(f.victims),
      f.rejoin_pause.empty()
          ? std::string{"-"}
          : fmt::format("{}; a step: {:.1f} ms", ms(f.rejoin_pause), quantiles_of(f.steps).p50),
      std::to_string(f.failed),
      f.answered == 0 ? std::string{"-"} : fmt::format("{} of {}", f.identical, f.answered)};
  std::string out = "| what | here | target | published by others (32 GPUs and more) |\n"
                    "|---|---|---|---|\n";
  for (std::size_t i = 0; i < anchors.size(); ++i)
    out += fmt::format("| {} | {} | {} | {} |\n", anchors[i].what, ours[i], anchors[i].target,
                       anchors[i].published);
  return out;
}

} // namespace di::chaos
