// SPDX-License-Identifier: Apache-2.0
// Outcomes as CSV and as a picture.
#include "chaos/cost_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace di::chaos {
namespace {

constexpr double panel_width = 360, panel_height = 220, margin_x = 64, margin_y = 40;

struct panel {
  const char* title;
  double (*value)(const cost_outcome&);
};

constexpr panel panels[] = {
    {"tokens/s per rank", [](const cost_outcome& o) { return o.rank_tokens_per_s; }},
    {"tokens/s per user", [](const cost_outcome& o) { return o.user_tokens_per_s; }},
    {"time to first token [ms]", [](const cost_outcome& o) { return o.first_token_ms; }},
    {"moe_lb (1 = even)", [](const cost_outcome& o) { return o.moe_lb; }},
};

/// A round number at least as large.
double ceiling(double v) {
  if (v <= 0)
    return 1;
  const double unit = std::pow(10.0, std::floor(std::log10(v)));
  for (const double m : {1.0, 2.0, 2.5, 5.0})
    if (v <= m * unit)
      return m * unit;
  return 10 * unit;
}

std::string axes(const panel& p, double left, double top, double most) {
  std::string s = fmt::format("<g transform=\"translate({},{})\">\n<text x=\"0\" y=\"-12\" "
                              "font-weight=\"bold\">{}</text>\n",
                              left, top, p.title);
  for (int i = 0; i <= 4; ++i) {
    const double y = panel_height * (1 - i / 4.0);
    s += fmt::format(
        "<line x1=\"0\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" stroke=\"#ddd\"/><text x=\"-6\" "
        "y=\"{2}\" text-anchor=\"end\">{3:.4g}</text>\n",
        y, panel_width, y + 4, most * i / 4.0);
  }
  return s;
}

std::string draw(const panel& p, std::size_t place, std::span<const cost_options> options,
                 std::span<const cost_outcome> outcomes) {
  double most = 0;
  for (const cost_outcome& o : outcomes)
    most = std::max(most, p.value(o));
  most = ceiling(most);
  const double left = margin_x + static_cast<double>(place % 2) * (panel_width + 2 * margin_x);
  const double top = margin_y + static_cast<double>(place / 2) * (panel_height + 2 * margin_y);
  std::string s = axes(p, left, top, most), line;
  double low = 1e9, high = 0;
  for (const cost_options& o : options) {
    low = std::min(low, std::log2(o.load.ranks));
    high = std::max(high, std::log2(o.load.ranks));
  }
  for (std::size_t i = 0; i < options.size(); ++i) {
    const double at = high > low ? (std::log2(options[i].load.ranks) - low) / (high - low) : 0.5;
    const double x = panel_width * at, y = panel_height * (1 - p.value(outcomes[i]) / most);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    s += fmt::format(
        "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"3\" fill=\"#16a\"/><text x=\"{0:.1f}\" "
        "y=\"{2}\" text-anchor=\"middle\">{3}</text>\n",
        x, y, panel_height + 16, options[i].load.ranks);
  }
  return s + fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#16a\"/>\n</g>\n", line);
}

} // namespace

std::string csv_head() {
  return "ranks,sequences_per_rank,prompt_tokens,output_tokens,ranks_per_host,host_cores,skew,"
         "redundant,"
         "rebalance,tokens_per_s,tokens_per_s_per_rank,tokens_per_s_per_user,first_token_ms,"
         "first_token_p99_ms,step_ms,moe_lb,busy_share,control_share,mails\n";
}

std::string csv_row(const cost_options& o, const cost_outcome& r) {
  return fmt::format(
      "{},{},{},{},{},{},{:g},{},{},{:.1f},{:.2f},{:.2f},{:.2f},{:.2f},{:.3f},{:.3f},"
      "{:.3f},{:.3f},{}\n",
      o.load.ranks, o.load.sequences_per_rank, o.load.prompt_tokens, o.load.output_tokens,
      o.ranks_per_host, o.host_cores, o.skew, o.redundant, o.rebalance ? "auto" : "off",
      r.tokens_per_s, r.rank_tokens_per_s, r.user_tokens_per_s, r.first_token_ms,
      r.first_token_p99_ms, r.step_ms, r.moe_lb, r.busy_share, r.control_share, r.mails);
}

std::string plot_svg(std::span<const cost_options> options,
                     std::span<const cost_outcome> outcomes) {
  const double width = 2 * (panel_width + 2 * margin_x), height = 2 * (panel_height + 2 * margin_y);
  std::string s = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n",
      width, height);
  for (std::size_t i = 0; i < std::size(panels); ++i)
    s += draw(panels[i], i, options, outcomes);
  return s + "</svg>\n";
}

} // namespace di::chaos
