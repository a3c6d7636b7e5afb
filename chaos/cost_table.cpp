// SPDX-License-Identifier: Apache-2.0
// Reads tables of costs.
#include "chaos/cost_table.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <iterator>

namespace di::chaos {
namespace {

using json = nlohmann::json;

/// Looks numbers up; remembers the first that is not as it should be.
class reader {
public:
  double number(const json& at, const char* key, double low, double high) {
    if (!at.is_object() || !at.contains(key)) {
      complain(std::string{key} + " is missing");
      return low;
    }
    const json& value = at[key];
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < low
        || value.get<double>() > high) {
      complain(fmt::format("{} must be a number from {} to {}", key, low, high));
      return low;
    }
    return value.get<double>();
  }
  std::uint32_t count(const json& at, const char* key, std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint32_t>(number(at, key, low, high));
  }
  const json& section(const json& at, const char* key) {
    static const json nothing = json::object();
    if (at.is_object() && at.contains(key) && at[key].is_object())
      return at[key];
    complain(std::string{key} + " is missing");
    return nothing;
  }
  phase_cost phase(const json& root, const char* key, const char* fixed, const char* row) {
    const json& s = section(root, key);
    constexpr double us_max = 1e9;
    phase_cost c{number(s, fixed, 0, us_max), number(s, row, 0, us_max), 0};
    if (s.contains("row_position"))
      c.row_position_us = number(s, "row_position", 0, us_max);
    return c;
  }
  const std::string& complaint() const { return complaint_; }

private:
  void complain(std::string what) {
    if (complaint_.empty())
      complaint_ = std::move(what);
  }
  std::string complaint_;
};

} // namespace

result<cost_table> parse_cost_table(std::string_view text, const std::string& name) {
  const json root = json::parse(text, nullptr, false);
  if (root.is_discarded() || !root.is_object())
    return fail(ec::bad_format, "{}: no JSON object", name);
  reader r;
  cost_table t;
  const json& model = r.section(root, "model");
  t.layers = r.count(model, "layers", 1, 1024);
  t.experts = r.count(model, "experts", 1, 65'536);
  t.experts_per_token = r.count(model, "experts_per_token", 1, 64);
  t.cores = r.count(root, "cores", 1, 4096);
  t.attention = r.phase(root, "attention", "layer", "row");
  t.dispatch = r.phase(root, "dispatch", "layer", "row");
  t.experts_call = r.phase(root, "experts", "call", "entry");
  t.combine = r.phase(root, "combine", "call", "row");
  t.head = r.phase(root, "head", "step", "row");
  t.sample = r.phase(root, "sample", "step", "row");
  const json& mail = r.section(root, "mail");
  t.mail_us = r.number(mail, "us_per_mail", 0, 1e6);
  t.wake_us = r.number(mail, "us_per_wake", 0, 1e6);
  t.local_us = r.number(mail, "us_per_local_mail", 0, 1e6);
  t.latency_us = r.number(mail, "latency_us", 0, 1e6);
  if (root.contains("runs") && root["runs"].is_array())
    for (const json& run : root["runs"]) {
      measured_run m;
      m.load.ranks = r.count(run, "ranks", 1, 4096);
      m.load.sequences_per_rank = r.count(run, "sequences_per_rank", 1, 4096);
      m.load.prompt_tokens = r.count(run, "prompt_tokens", 1, 1U << 20U);
      m.load.output_tokens = r.count(run, "output_tokens", 2, 1U << 20U);
      m.tokens_per_s = r.number(run, "tokens_per_s", 1e-6, 1e12);
      m.first_token_ms = r.number(run, "first_token_ms", 1e-6, 1e9);
      m.held_out = run.contains("held_out") && run["held_out"] == true;
      t.runs.push_back(m);
    }
  if (r.complaint().empty() && t.experts_per_token > t.experts)
    return fail(ec::bad_format, "{}: {} experts per token of {}", name, t.experts_per_token,
                t.experts);
  if (!r.complaint().empty())
    return fail(ec::bad_format, "{}: {}", name, r.complaint());
  return t;
}

result<cost_table> read_cost_table(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file)
    return fail(ec::io_error, "{}: cannot be read", path);
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  return parse_cost_table(text, path);
}

} // namespace di::chaos
