// SPDX-License-Identifier: Apache-2.0
// Test-only: RANK's core with samplers that count, and the few turns of the crank that its tests
// need.
#pragma once

#include "engine/core/rank_core.hpp"
#include "tests/support/sent_mail.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

namespace di::engine {

using test::only;
using test::sent;

/// Draws 100, 101, …; ends with `stop_at`.
class counting_sampler final : public choice_sampler {
public:
  explicit counting_sampler(token_id stop_at) : stop_at_{stop_at} {}
  result<drawn_token> draw(std::span<const float> logits, std::span<const token_id>,
                           std::span<const token_id> pending) override {
    if (logits.empty())
      return fail(ec::internal, "no logits");
    return drawn_token{100 + drawn_ + static_cast<token_id>(pending.size()), {0.5, {}, {}}};
  }
  proto::choice_end accept(token_id token) override {
    ++drawn_;
    proto::choice_end end;
    if (token == stop_at_) {
      end.reason = proto::finish_reason::stop;
      end.kept_tokens = static_cast<std::uint32_t>(drawn_);
    }
    return end;
  }

private:
  token_id stop_at_;
  token_id drawn_ = 0;
};

inline rank_options small_rank() {
  rank_options o;
  o.rank = rank_id{3};
  o.life = incarnation{33};
  o.vocab = 200;
  o.context_tokens = 100;
  o.step_rows = 8;
  o.prefill_rows_min = 3;
  o.running_max = 16;
  o.waiting_max = 20;
  o.unacknowledged_max = 4;
  o.page_tokens = 10;
  o.kv_tokens = 1000;
  return o;
}

inline rank_core make_core(rank_options o = small_rank(), token_id stop_at = -1) {
  return rank_core{o, [stop_at](const proto::request_spec&, std::uint32_t) {
                     return result<std::unique_ptr<choice_sampler>>{
                         std::make_unique<counting_sampler>(stop_at)};
                   }};
}

inline proto::assign_request ask(std::uint64_t id, std::size_t prompt, std::uint32_t max_tokens) {
  proto::assign_request m;
  m.spec.request = request_id{id};
  m.spec.prompt.assign(prompt, 1);
  m.spec.sampling.max_tokens = max_tokens;
  m.attempt = 1;
  return m;
}

/// Draws the step that is out from logits that are there.
inline void draw(rank_core& core) {
  const std::vector<float> row(4);
  std::vector<std::span<const float>> logits;
  for (const planned_segment& s : core.launched().segments)
    logits.push_back(s.draws ? std::span{row} : std::span<const float>{});
  core.draw(logits, {});
  core.check();
}

/// Runs the next step.
inline std::vector<token_id> step(rank_core& core, outbox& out, instant now = {}) {
  if (core.launch(now, out).segments.empty())
    return {};
  core.check();
  draw(core);
  auto drawn = core.finish(now, out);
  core.check();
  return drawn;
}

inline ec refusal(rank_core& core, const proto::assign_request& m) {
  outbox out;
  EXPECT_TRUE(core.on(m, {}, out));
  core.check();
  return only<proto::assignment_refused>(out).code;
}

} // namespace di::engine
