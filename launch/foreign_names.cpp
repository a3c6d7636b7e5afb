// SPDX-License-Identifier: Apache-2.0
// The table of DeepInfer's switches, and how each becomes a key or a message.
// @source deepinfer.md 2.1 (names, defaults, meaning)
#include "launch/foreign_names.hpp"

#include "launch/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unistd.h>

namespace di::launch {
namespace {

constexpr std::string_view prefix = "DEEPINFER_";

using k_ = foreign_kind;
constexpr std::string_view spec_key = "roles.decode.speculation";

// clang-format off
constexpr foreign_row rows[] = {
  {"ACCELERATOR", k_::no_effect, "", "this build computes on the CPU"},
  {"BATCH_INVARIANT", k_::key, "determinism.batch_invariant", "true or left out; it is always on here"},
  {"COMPUTE_SUM_SMALLER_PROBS", k_::no_effect, "", "answers have no such field; logprobs: N in a prompt line gives the likeliest"},
  {"CPP_LOG_LEVEL", k_::key, "log.level", "off, error, warn or info"},
  {"CUDAGRAPH_BATCH_SIZE_INTERVAL", k_::no_effect, "", "there are no CUDA graphs"},
  {"DECODE_PERF_CACHE_DIR", k_::no_effect, "", "step times are measured at each start (roles.decode.profile) and while running; there is no file"},
  {"DECODE_PERF_CACHE_TTL_SEC", k_::no_effect, "", "step times are measured at each start (roles.decode.profile) and while running; there is no file"},
  {"DECODE_TOKEN_BLACKLIST", k_::refused, "", "write logit_bias in the prompt lines"},
  {"DFLASH_CONFIDENCE_HEAD_TEMPERATURE", k_::no_effect, "", "confidences are corrected by outcomes while running"},
  {"DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL", k_::no_effect, "", "there are no CUDA graphs"},
  {"DFLASH_ENFORCE_EAGER", k_::no_effect, "", "there are no CUDA graphs"},
  {"DISABLE_SYNC_GUARD", k_::no_effect, "", "there is no CUDA stream to guard"},
  {"ENABLE_MEMORY_TRACING", k_::no_effect, "", "dilaunch plan shows the memory of each rank"},
  {"ENABLE_MTP_VARLEN", k_::key, spec_key, "1: varlen instead of fixed:N"},
  {"ENFORCE_EAGER", k_::no_effect, "", "there are no CUDA graphs"},
  {"ENGRAM_FORCE_GPU_STORAGE", k_::no_effect, "", "tables are mapped from the checkpoint"},
  {"ENGRAM_PAD_TOKEN", k_::refused, "", "the pad token is the checkpoint's (engram_pad_id)"},
  {"EXPERT_COUNT_WINDOW_SIZE", k_::key, "roles.decode.rebalance_window", "as it is; has an effect with roles.decode.rebalance: auto"},
  {"EXPERT_REARRANGEMENT_STEP_INTERVAL", k_::key, "roles.decode.rebalance_interval", "as it is; has an effect with roles.decode.rebalance: auto"},
  {"FORCE_IMBALANCE_RATIO", k_::refused, "", "gates are the model's"},
  {"FORCE_LOAD_BALANCE", k_::refused, "", "gates are the model's"},
  {"FUSED_SAMPLE_DETAIL_LOG", k_::no_effect, "", "a switch of DeepInfer's tests"},
  {"FUSED_SAMPLE_STRESS_TEST", k_::no_effect, "", "a switch of DeepInfer's tests"},
  {"GC_INTERVAL_STEP", k_::no_effect, "", "nothing is garbage collected"},
  {"GLOO_TIMEOUT", k_::no_effect, "", "there is no Gloo; cluster.start_timeout bounds the start"},
  {"HF_MODEL_DIR", k_::no_effect, "", "write model.path"},
  {"INDEX_ATTN_MEMORY_LIMIT", k_::no_effect, "", "index scores are bounded by roles.decode.step_rows"},
  {"JIT_CACHE_DIR", k_::no_effect, "", "nothing is compiled at run time"},
  {"LOGGING_INTERVAL_STEP", k_::no_effect, "", "metrics are kept per second, not logged by step"},
  {"MAX_BACKTRACKING_TOKENS", k_::no_effect, "", "rings are sized by the model's block"},
  {"MOE_LB_STAT_INTERVAL", k_::no_effect, "", "moe_lb is taken over 128 steps"},
  {"MULTIMODAL_POOL_SIZE_GB", k_::no_effect, "", "there are no images"},
  {"MULTI_MODAL_BUFFER_SIZE", k_::no_effect, "", "there are no images"},
  {"MULTI_MODAL_WORKER_TIMEOUT", k_::no_effect, "", "there are no images"},
  {"NCCL_MEMORY_SAMPLE_INTERVAL_STEPS", k_::no_effect, "", "there is no NCCL"},
  {"NCCL_NUM_SMS", k_::no_effect, "", "there is no NCCL"},
  {"NUM_STATE_SLOTS_RATIO", k_::no_effect, "", "state is sized by roles.decode.max_sequences"},
  {"OVERRIDE_NUM_EXTRA_EXPERTS", k_::key, "roles.decode.redundant_experts", "as it is; slots are rounded up to the ranks"},
  {"PREFILL_ANY_ATTEMPT_INTERVAL", k_::no_effect, "", "every step takes prompt rows that fit"},
  {"PREFILL_ATTEMPT_INTERVAL", k_::no_effect, "", "every step takes prompt rows that fit"},
  {"PREFILL_MAX_SUM_SEQLEN_K", k_::no_effect, "", "roles.decode.step_time bounds prompt chunks by what context costs"},
  {"PREFILL_STORE_EXTRA_SIZE", k_::no_effect, "", "snapshots have rings of their own"},
  {"PREFILL_STORE_EXTRA_STATE", k_::no_effect, "", "kv.snapshots is the room for window snapshots"},
  {"PROFILE_HTTP_ENABLE", k_::no_effect, "", "dilaunch trace shows what steps do"},
  {"PROFILE_HTTP_PORT_BASE", k_::no_effect, "", "dilaunch trace shows what steps do"},
  {"PROFILE_TORCH_CUDA_MEMORY", k_::no_effect, "", "dilaunch plan shows the memory of each rank"},
  {"REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", k_::no_effect, "", "when experts move is decided by what a move gains"},
  {"REARRANGE_P2P_GROUPS", k_::no_effect, "", "experts are loaded from the checkpoint"},
  {"RINGBUFFER_WARNING_INTERVAL", k_::no_effect, "", "queues are bounded and refuse"},
  {"SAMPLER_FORCE_TOPK", k_::refused, "", "write top_k in the prompt lines"},
  {"SHOW_EPLB_DETAIL", k_::no_effect, "", "log.counters shows the balance (di_rebalancer_*)"},
  {"SO_BUILDER_CPUS", k_::no_effect, "", "nothing is compiled at run time"},
  {"TORCH_PROFILER_DIR", k_::no_effect, "", "dilaunch trace shows what steps do"},
  {"USERBUFFER_COMM_SMS", k_::no_effect, "", "there is no DeepEP"},
  {"USE_MULTIMODAL_POOL", k_::no_effect, "", "there are no images"},
  {"USE_NEXTN_DECODE", k_::key, spec_key, "0: off; N: fixed:N, or varlen with DEEPINFER_ENABLE_MTP_VARLEN"},
  {"XGRAMMAR_CACHE_LIMIT_BYTES", k_::no_effect, "", "there is no structured output yet"},
  {"XGRAMMAR_DEBUG", k_::no_effect, "", "there is no structured output yet"},
  {"XGRAMMAR_DISABLE_CACHE", k_::no_effect, "", "there is no structured output yet"},
  {"XGRAMMAR_TIMEOUT", k_::no_effect, "", "there is no structured output yet"},
  {"YOCO_PREFILL_KEEP_TOKENS", k_::key, "roles.decode.prefill_keep", "as it is, with compact prefill"},
  {"YOCO_PREFILL_TRUNCATION_MODE", k_::key, "roles.decode.prefill", "off: full; compact: compact; mask is refused"},
  {"ZERO_OVERHEAD_SCHEDULING", k_::key, "roles.decode.steps_in_flight", "1: 2; 0: 1"},
};
// clang-format on

const foreign_row* find_row(std::string_view name) {
  const auto* at =
      std::lower_bound(std::begin(rows), std::end(rows), name,
                       [](const foreign_row& r, std::string_view n) { return r.name < n; });
  return at != std::end(rows) && at->name == name ? at : nullptr;
}

std::string nearest_name(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& r : rows)
    names.emplace_back(r.name);
  const auto best = nearest(name, names);
  return best.empty() ? best : fmt::format("{}{}", prefix, best);
}

/// As DeepInfer reads a boolean.
bool truth(std::string_view value) {
  return !(value.empty() || value == "0" || value == "false" || value == "False");
}

class reader {
public:
  explicit reader(std::span<const std::pair<std::string, std::string>> variables) {
    for (const auto& [name, value] : variables)
      if (name.starts_with(prefix))
        found_[name.substr(prefix.size())] = value;
  }

  foreign_switches read() {
    for (const auto& [name, value] : found_) {
      const foreign_row* row = find_row(name);
      if (!row) {
        const auto hint = nearest_name(name);
        problem(name, "not a name that DeepInfer knows{}",
                hint.empty() ? "" : fmt::format("; did you mean {}?", hint));
      } else if (row->kind == foreign_kind::no_effect) {
        note(name, "no effect: {}", row->doc);
      } else if (row->kind == foreign_kind::refused) {
        // ENGRAM_PAD_TOKEN is a number, not a switch: 2 is DeepInfer's default.
        if (name == "ENGRAM_PAD_TOKEN" ? value != "2" : truth(value) && value != "0.0")
          problem(name, "not part of this build: {}", row->doc);
      } else {
        take(name, value, std::string{row->key});
      }
    }
    return std::move(out_);
  }

private:
  template <class... Args>
  void problem(const std::string& name, fmt::format_string<Args...> text, Args&&... args) {
    out_.problems.push_back(
        fmt::format("{}: {}", shown(name), fmt::format(text, std::forward<Args>(args)...)));
  }
  template <class... Args>
  void note(const std::string& name, fmt::format_string<Args...> text, Args&&... args) {
    out_.notes.push_back(
        fmt::format("{}: {}", shown(name), fmt::format(text, std::forward<Args>(args)...)));
  }
  std::string shown(const std::string& name) const {
    return fmt::format("{}{}={}", prefix, name, std::string_view{found_.at(name)}.substr(0, 64));
  }
  void set(const std::string& name, const std::string& key, std::string_view value) {
    out_.sets.push_back(fmt::format("{}={}", key, value));
    out_.origins.push_back(shown(name));
    note(name, "sets {} to {}", key, value);
  }
  /// @return no value after a problem
  std::optional<std::int64_t> number(const std::string& name, std::int64_t high) {
    const auto n = parse_integer(found_.at(name));
    if (n.ok() && *n >= 0 && *n <= high)
      return *n;
    problem(name, "expected a whole number from 0 to {}", high);
    return std::nullopt;
  }

  void take(const std::string& name, const std::string& value, const std::string& key) {
    if (name == "USE_NEXTN_DECODE") {
      const auto n = number(name, 16);
      if (!n)
        return;
      const auto varlen = found_.find("ENABLE_MTP_VARLEN");
      if (*n == 0)
        set(name, key, "off");
      else if (varlen == found_.end() || !truth(varlen->second))
        set(name, key, fmt::format("fixed:{}", *n));
    } else if (name == "ENABLE_MTP_VARLEN") {
      const auto drafts = found_.find("USE_NEXTN_DECODE");
      if (truth(value) && (drafts == found_.end() || drafts->second != "0"))
        set(name, key, "varlen");
    } else if (name == "YOCO_PREFILL_TRUNCATION_MODE") {
      if (value == "off" || value == "compact")
        set(name, key, value == "off" ? "full" : "compact");
      else if (value == "mask")
        problem(name, "not part of this build; off and compact are");
      else
        problem(name, "expected off, mask or compact");
    } else if (name == "YOCO_PREFILL_KEEP_TOKENS") {
      const auto mode = found_.find("YOCO_PREFILL_TRUNCATION_MODE");
      const auto n = number(name, 1 << 20);
      if (n && *n > 0 && mode != found_.end() && mode->second == "compact")
        set(name, key, std::to_string(*n));
      else if (n && *n > 0)
        note(name, "no effect: only with {}YOCO_PREFILL_TRUNCATION_MODE=compact", prefix);
    } else if (name == "OVERRIDE_NUM_EXTRA_EXPERTS") {
      if (const auto n = number(name, 65536))
        set(name, key, std::to_string(*n));
    } else if (name == "EXPERT_COUNT_WINDOW_SIZE" || name == "EXPERT_REARRANGEMENT_STEP_INTERVAL") {
      if (const auto n = number(name, 1'000'000); n && *n > 0)
        set(name, key, std::to_string(*n));
    } else if (name == "BATCH_INVARIANT") {
      if (truth(value))
        set(name, key, "true");
      else
        note(name, "no effect: steps are always batch invariant here");
    } else if (name == "ZERO_OVERHEAD_SCHEDULING") {
      set(name, key, truth(value) ? "2" : "1");
    } else if (value == "off" || value == "error" || value == "warn" || value == "info") {
      set(name, key, value); // CPP_LOG_LEVEL
    } else {
      problem(name, "expected off, error, warn or info");
    }
  }

  std::map<std::string, std::string> found_; // without the prefix
  foreign_switches out_;
};

std::string describe(const foreign_row& r) {
  switch (r.kind) {
  case foreign_kind::key:
    return fmt::format("sets `{}`: {}", r.key, r.doc);
  case foreign_kind::no_effect:
    return fmt::format("no effect: {}", r.doc);
  case foreign_kind::refused:
    return fmt::format("refused: {}", r.doc);
  }
  return {};
}

} // namespace

std::span<const foreign_row> foreign_names() {
  return rows;
}

foreign_switches read_foreign(std::span<const std::pair<std::string, std::string>> variables) {
  return reader{variables}.read();
}

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** at = environ; at && *at; ++at) {
    const std::string_view line{*at};
    const auto equals = line.find('=');
    if (equals != std::string_view::npos)
      out.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return out;
}

result<topology> load_topology(const std::string& file, const foreign_switches& foreign,
                               const std::vector<std::string>& sets,
                               std::vector<std::string>& all_sets) {
  all_sets = foreign.sets;
  all_sets.insert(all_sets.end(), sets.begin(), sets.end());
  auto t = load_topology(file, all_sets);
  std::string problems;
  for (const auto& p : foreign.problems)
    problems += (problems.empty() ? "" : "\n") + p;
  if (t.ok() && problems.empty())
    return t;
  if (!t.ok()) {
    std::string what = "\n" + t.error().what;
    for (std::size_t i = 0; i < foreign.sets.size(); ++i) {
      const auto place = fmt::format("\n--set {}: ", foreign.sets[i]);
      for (std::size_t at = 0; (at = what.find(place, at)) != std::string::npos;)
        what.replace(at, place.size(), fmt::format("\n{}: ", foreign.origins[i]));
    }
    problems += problems.empty() ? what.substr(1) : what;
  }
  return fail(error{t.ok() ? ec::bad_config : t.error().code, problems});
}

result<std::string> explain_foreign(std::string_view name) {
  if (name.starts_with(prefix))
    name.remove_prefix(prefix.size());
  if (const foreign_row* row = find_row(name))
    return fmt::format("{}{} (a switch of DeepInfer)\n  {}\n", prefix, name, describe(*row));
  const auto hint = nearest_name(name);
  return fail(ec::not_found, "DeepInfer has no switch {}{}{}", prefix, name,
              hint.empty() ? "" : fmt::format("; did you mean {}?", hint));
}

std::string foreign_markdown() {
  std::string out =
      "\n## Switches of DeepInfer\n\n"
      "Environment variables of DeepInfer (`DEEPINFER_...`) are read by `dilaunch run`, `plan` and "
      "`validate`. What they set stands between the file and `--set`, and is printed. A name that "
      "DeepInfer does not have, a value that it would not take, and what is refused below end with "
      "exit code 2.\n\n"
      "| variable | here |\n|---|---|\n";
  for (const auto& r : rows)
    out += fmt::format("| `{}{}` | {} |\n", prefix, r.name, describe(r));
  return out;
}

} // namespace di::launch
