// SPDX-License-Identifier: Apache-2.0
// What RANK's core costs per step without a model: launch, draw, settle, plan, at up to 256 running
// sequences. Prints JSON. The sampler picks from 16 logits: drawing over a vocabulary is the
// sampler's bench.
#include "engine/core/rank_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace di::engine {
namespace {

constexpr std::uint32_t vocab = 16;

class counting_sampler final : public choice_sampler {
public:
  result<drawn_token> draw(std::span<const float> logits, std::span<const token_id> history,
                           std::span<const token_id> pending) override {
    const std::size_t position = history.size() + pending.size();
    return drawn_token{static_cast<token_id>((position * 7 + (logits[0] > 0 ? 1 : 0)) % vocab), {}};
  }
  proto::choice_end accept(token_id) override { return {}; }
};

struct times {
  std::vector<double> launch, draw, finish, plan, total; ///< [us] per step
};

double us_since(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - from).count();
}

double middle(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2),
                   all.end());
  return all[all.size() / 2];
}

/// `running` sequences that decode, in steps with `drafts` guesses each, and a prompt now and then.
times run(std::uint32_t running, std::uint32_t drafts, bool varlen) {
  rank_options o;
  o.vocab = vocab;
  o.context_tokens = 1U << 20;
  o.running_max = running + 4;
  o.step_rows = running * (1 + drafts) + 512;
  o.unacknowledged_max = 1U << 20;
  o.kv_tokens = std::uint64_t{running + 8} << 13;
  o.steps_in_flight = 2;
  o.draft_block = drafts;
  o.speculation = varlen       ? speculation_choice{speculation_mode::varlen, 0}
                  : drafts > 0 ? speculation_choice{speculation_mode::fixed, drafts}
                               : speculation_choice{};
  rank_core core{o, [](const proto::request_spec&, std::uint32_t) {
                   return result<std::unique_ptr<choice_sampler>>{
                       std::make_unique<counting_sampler>()};
                 }};
  outbox out;
  std::uint64_t requests = 0;
  const auto ask = [&](std::size_t prompt, std::uint32_t tokens) {
    proto::assign_request m;
    m.spec.request = request_id{++requests};
    m.spec.prompt.assign(prompt, 1);
    m.spec.sampling.max_tokens = tokens;
    m.attempt = 1;
    (void)core.on(m, {}, out);
  };
  for (std::uint32_t i = 0; i < running; ++i)
    ask(64 + i % 64, 6000);
  const std::vector<float> logits(std::size_t{vocab} * (1 + drafts), 1.0F);
  const std::vector<float> confidences(drafts, 1.0F);
  times t;
  for (int step = 0; step < 600; ++step) {
    if (step % 8 == 0)
      ask(200, 1); // comes and goes
    for (const draft_wish& w : core.draft_wishes({})) {
      std::vector<token_id> guesses(drafts, w.next);
      core.offer_drafts(w.sequence, guesses, confidences);
    }
    const auto launching = std::chrono::steady_clock::now();
    const step_plan& plan = core.launch({}, out);
    const double launch = us_since(launching);
    auto at = std::chrono::steady_clock::now();
    core.finish({}, out);
    const double finish = us_since(at);
    out.take();
    at = std::chrono::steady_clock::now();
    core.plan({});
    const double planning = us_since(at);
    std::vector<std::span<const float>> rows;
    for (const planned_segment& s : plan.segments)
      rows.push_back(s.draws ? std::span{logits}.first(std::size_t{vocab} * (1 + s.drafts))
                             : std::span<const float>{});
    at = std::chrono::steady_clock::now();
    core.draw(rows, {});
    const double draw = us_since(at);
    core.observe_step(1.0 + plan.rows * 0.01);
    core.observe_draft_pass(running, 0.5);

    if (step < 100)
      continue;
    t.launch.push_back(launch);
    t.finish.push_back(finish);
    t.plan.push_back(planning);
    t.draw.push_back(draw);
    t.total.push_back(launch + finish + planning + draw);
  }
  return t;
}

} // namespace
} // namespace di::engine

int main() {
  using di::engine::middle;
  using di::engine::run;
  using di::engine::times;
  fmt::print("{{\"rank_core_us_per_step\": [\n");
  bool first = true;
  for (const std::uint32_t running : {1U, 32U, 256U})
    for (const auto& [drafts, varlen] :
         {std::pair{0U, false}, std::pair{5U, false}, std::pair{5U, true}}) {
      const times t = run(running, drafts, varlen);
      fmt::print("{}  {{\"running\": {}, \"speculation\": \"{}\", \"launch\": {:.1f}, \"draw\": "
                 "{:.1f}, \"finish\": {:.1f}, \"plan\": {:.1f}, \"total\": {:.1f}}}",
                 first ? "" : ",\n", running,
                 varlen       ? "varlen"
                 : drafts > 0 ? "fixed:5"
                              : "off",
                 middle(t.launch), middle(t.draw), middle(t.finish), middle(t.plan),
                 middle(t.total));
      first = false;
    }
  fmt::print("\n]}}\n");
}
